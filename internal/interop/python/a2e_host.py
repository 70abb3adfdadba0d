"""A host of the A2E Python SDK, unmodified, with two tools and a memory.

usage: a2e_host.py http PORT
       a2e_host.py stdio

The SDK is the folder named by A2E_SDK, or an installed package. Over HTTP its
own server listens on 127.0.0.1. Over stdio its own session runs behind the
SDK's in-process transport, whose other end is joined to the standard streams
here: the SDK has no host that writes to them.
"""
import logging
import os
import sys
import threading
import uuid

if os.environ.get("A2E_SDK"):
    sys.path.insert(0, os.environ["A2E_SDK"])
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.modules["a2e_host"] = sys.modules["__main__"]  # the SDK imports plug-ins by name

from a2e import A2EServer
from a2e.caps.memory.plugin import MemoryPlugin
from a2e.caps.tools.plugin import ToolPlugin
from a2e.caps.tools.protocol import ToolDefinition, ToolParameter
from a2e.core.server.executor import A2EServerRuntimeExecutor
from a2e.core.transports.direct import DirectTransport
from a2e.schema import A2EHostConfig

logging.basicConfig(level=logging.ERROR)
log = logging.getLogger("host")


class Tools(ToolPlugin):
    name = "tools"

    def _list_tools(self):
        number = lambda name: ToolParameter(name=name, type="integer", description=name, required=True)
        return [
            ToolDefinition(name="add", description="Adds two numbers", input_parameters=[number("a"), number("b")]),
            ToolDefinition(name="steps", description="Reports three steps", streaming=True),
        ]

    def _execute_tool(self, name, arguments):
        if name == "add":
            return {"sum": arguments["a"] + arguments["b"]}
        if name == "steps":
            for n in range(3):
                self.emit("status", {"step": n})
            return {"done": True}
        raise KeyError(name)


class Memory(MemoryPlugin):
    name = "memory"

    def on_init(self, namespace, scope, metadata=None):
        return uuid.uuid4().hex, []

    def on_store(self, memory, entries):
        memory.extend(entries)
        return [e.model_dump() for e in entries], []

    def on_retrieve(self, memory, req):
        return [e for e in memory if not req.tags or set(req.tags) & set(e.tags)]

    def on_forget(self, memory, req):
        gone = [e for e in memory if set(req.tags) & set(e.tags)]
        for e in gone:
            memory.remove(e)
        return len(gone)


def config(port=0):
    return A2EHostConfig(
        server={"host": "127.0.0.1", "port": port},
        transport={"type": "http", "config": {"base_url": "http://127.0.0.1", "send_path": "/send", "stream_path": "/stream"}},
        plugins=[
            {"name": "tools", "type": "tools", "cls": "a2e_host.Tools"},
            {"name": "memory", "type": "memory", "cls": "a2e_host.Memory"},
        ],
    )


def main():
    if sys.argv[1] == "http":
        import uvicorn

        port = int(sys.argv[2])
        app = A2EServer(config=config(port), logger=log).start()
        uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")
        return
    # The SDK prints what it sends, from threads of its own: not among the frames.
    frames, sys.stdout = sys.stdout, sys.stderr
    ours, theirs = DirectTransport(log), DirectTransport(log)
    ours.connect(theirs)
    lock = threading.Lock()

    def write(line):
        with lock:
            frames.write(line.rstrip("\n") + "\n")
            frames.flush()

    ours.set_message_handler(write)
    host = A2EServerRuntimeExecutor(config(), theirs, log)
    host.start()
    ours.start()
    write("A2E_SUBPROCESS_HOST_READY")
    for line in sys.stdin:
        if line.strip():
            ours.send(line.strip())
    host.stop()


if __name__ == "__main__":
    main()
