"""An agent of the A2E Python SDK, unmodified, at a hub.

usage: a2e_agent.py http BASE_URL TOKEN
       a2e_agent.py stdio COMMAND TOKEN

The SDK is the folder named by A2E_SDK, or an installed package. The agent does
what an SDK agent can do with a host, waits for one request in its inbox, answers
it, and prints one line of JSON with what it saw.
"""
import json
import logging
import os
import shlex
import sys
import time

if os.environ.get("A2E_SDK"):
    sys.path.insert(0, os.environ["A2E_SDK"])

from a2e.caps.memory.client import MemoryAPI
from a2e.caps.multi_agent.client import MultiAgentAPI
from a2e.caps.skills.client import SkillAPI
from a2e.caps.tools.client import ToolAPI
from a2e.core.client.client import A2EClient, A2EClientError
from a2e.core.transports.http import HTTPTransport
from a2e.core.transports.subprocess import SubprocessTransport

logging.basicConfig(level=logging.ERROR)
log = logging.getLogger("agent")


def main():
    how, where, token = sys.argv[1:4]
    if how == "http":
        transport = HTTPTransport(where, log)
    else:
        transport = SubprocessTransport(shlex.split(where), log)
    seen = {}
    client = A2EClient(transport, log, auth_token=token, agent_caps=["tools", "memory", "multi_agent"])
    client.connect()
    seen["session"] = len(client._session_id)
    seen["caps"] = [c.capability.value if hasattr(c.capability, "value") else c.capability for c in client._accepted_caps]

    tools = ToolAPI(client)
    seen["tools"] = [t.name for t in tools.list(timeout=10)]
    events = []
    result = tools.call("crew-echo__pieces", {}, on_event=lambda e: events.append([e.seq, e.data]), timeout=20)
    seen["pieces"] = [result.success, result.data, events]
    seen["echo"] = tools.call("crew/echo.echo", {"text": "Grüezi"}, timeout=20).data
    try:
        tools.call("nobody__x", {}, timeout=20)
    except A2EClientError as e:
        seen["unknown"] = e.code

    memory = MemoryAPI(client)
    memory.init(namespace="interop")
    stored, errors = memory.store([{"key": {"k": 1}, "content": {"v": 2}, "tier": "episodic", "tags": ["t"]}])
    seen["memory"] = [len(stored), errors, [e.content for e in memory.retrieve(tags=["t"])]]
    memory.forget(tags=["t"])
    seen["forgotten"] = len(memory.retrieve(tags=["t"]))

    agents = MultiAgentAPI(client)
    sub = agents.spawn("crew-echo__echo")
    agents.delegate(sub.subagent_id, "say", "hello")
    done = agents.await_(sub.subagent_id, timeout=20)
    seen["await"] = [str(getattr(done.status, "value", done.status)), done.result]
    seen["list"] = len(agents.list().subagents)
    seen["terminate"] = agents.terminate(sub.subagent_id).success

    seen["skill"] = SkillAPI(client).call("crew-echo__echo", {"text": "skill"}, timeout=20).data

    print(json.dumps({"ready": True}), flush=True)
    got = tools.call("parley_inbox", {"max": 1}, on_event=lambda e: None, timeout=60).data["messages"][0]
    seen["inbox"] = [got["from"], got["content"], got["metadata"]["parley"]["assurance"]]
    seen["reply"] = tools.call("parley_reply", {"id": got["id"], "content": {"answer": 42}}, timeout=20).success
    start = time.monotonic()
    client.disconnect()
    seen["disconnected"] = time.monotonic() - start < 4
    print(json.dumps(seen), flush=True)


main()
