"""Calls an MCP server with the client of the official SDK for Python, 1 or 2, unmodified.

usage: mcp_client.py [--legacy] [--no-input] URL [TOKEN]
       mcp_client.py [--legacy] [--no-input] -- COMMAND [ARGUMENT...]

With --legacy, version 2 begins with initialize; with --no-input, the client declares no elicitation.

Reads steps, each a line of JSON, and ends with its input. Writes lines of JSON: first {"connected", "server",
"tools_change"}, then what each step saw, whose last line has "done", the step's verb:

  {"do": "list"}                       {"done", "tools": as on the wire}
  {"do": "call", "name", "arguments"}  {"done", "content", "structured", "error", "meta"}, all as on the wire
      "progress": true                 before that, each message: {"progress", "message"}
      "answer": {"action", "content"}  before that, each question: {"asked", "schema"}
      "cancel": true                   cancels at the first progress message: {"done", "cancelled"}
      "meta": {...}                    goes along
  {"do": "read", "uri"}                {"done", "contents"}
  {"do": "watch"}                      {"watching"}, then {"done"} once the list of tools has changed

A JSON-RPC error is {"done", "failed": {"code", "message"}}. Anything else ends the program, with its trace.
"""

import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import version

import anyio
from mcp import StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

TWO = version("mcp").startswith("2.")
if TWO:
    import httpx2 as httpx
    from mcp import Client, MCPError
else:
    import httpx
    from mcp import ClientSession
    from mcp.shared.exceptions import McpError as MCPError


def wire(x):
    return None if x is None else x.model_dump(by_alias=True, mode="json", exclude_none=True)


def say(**what):
    print(json.dumps(what), flush=True)


class Caller:
    def __init__(self, options):
        self.answer, self.cancelling, self.client = None, None, None
        self.changed = anyio.Event()
        self.legacy = "--legacy" in options
        self.input = None if "--no-input" in options else self.elicit

    async def elicit(self, _, params):
        p = wire(params)
        say(asked=p["message"], schema=p.get("requestedSchema"))
        return types.ElicitResult(**(self.answer or {"action": "decline"}))

    async def message(self, message):
        message = getattr(message, "root", message)
        if isinstance(message, types.ToolListChangedNotification):
            self.changed.set()
        elif isinstance(message, types.ProgressNotification) and self.cancelling and not TWO:
            # Version 1 does not tell the server of a cancel. Its progress tokens are request ids.
            scope, self.cancelling = self.cancelling, None
            await self.client.send_notification(types.ClientNotification(types.CancelledNotification(
                params=types.CancelledNotificationParams(requestId=message.params.progressToken, reason="not wanted"))))
            scope.cancel()

    @asynccontextmanager
    async def connect(self, transport):
        if TWO:
            async with Client(transport, mode="legacy" if self.legacy else "auto", elicitation_callback=self.input,
                              message_handler=self.message) as client:
                tools = client.server_capabilities.tools
                say(connected=client.protocol_version, server=wire(client.server_info),
                    tools_change=bool(tools and tools.list_changed))
                yield client
            return
        async with transport as streams:
            async with ClientSession(*streams[:2], elicitation_callback=self.input,
                                     message_handler=self.message) as client:
                got = await client.initialize()
                tools = got.capabilities.tools
                say(connected=got.protocolVersion, server=wire(got.serverInfo),
                    tools_change=bool(tools and tools.listChanged))
                yield client

    async def list(self, client, _):
        tools, cursor = [], None
        while True:
            if TWO:
                page = await client.list_tools(cursor=cursor)
            else:
                page = await client.list_tools(params=types.PaginatedRequestParams(cursor=cursor))
            page = wire(page)
            tools += page["tools"]
            cursor = page.get("nextCursor")
            if cursor is None:
                return {"tools": tools}

    async def call(self, client, step):
        scope = anyio.CancelScope()
        self.answer, self.cancelling = step.get("answer"), scope if step.get("cancel") else None

        async def progress(progress, total, message):
            say(progress=progress, message=message)
            if TWO and self.cancelling:
                scope.cancel()

        reports = step.get("progress") or step.get("cancel")
        with scope:
            got = await client.call_tool(step["name"], step.get("arguments"), meta=step.get("meta"),
                                         progress_callback=progress if reports else None)
        if scope.cancelled_caught:
            return {"cancelled": True}
        got = wire(got)
        return {"content": got["content"], "structured": got.get("structuredContent"),
                "error": got.get("isError", False), "meta": got.get("_meta")}

    async def read(self, client, step):
        return {"contents": wire(await client.read_resource(step["uri"]))["contents"]}

    async def watch(self, client, _):
        if TWO and client.protocol_version >= "2026-07-28":
            async with client.listen(tools_list_changed=True) as changes:
                say(watching=True)
                async for _ in changes:
                    return {}
                raise RuntimeError("the server ended the subscription")
        say(watching=True)
        await self.changed.wait()
        self.changed = anyio.Event()
        return {}

    async def steps(self, client):
        self.client = client
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            step = json.loads(line)
            try:
                saw = await getattr(self, step["do"])(client, step)
            except MCPError as e:
                saw = {"failed": {"code": e.error.code, "message": e.error.message}}
            say(done=step["do"], **saw)


async def main():
    args = sys.argv[1:]
    options = []
    while args[0] in ("--legacy", "--no-input"):
        options.append(args.pop(0))
    async with AsyncExitStack() as stack:
        if args[0] == "--":
            transport = stdio_client(StdioServerParameters(command=args[1], args=args[2:]))
        else:
            url, token = (args + [""])[:2]
            http = await stack.enter_async_context(httpx.AsyncClient(
                headers={"Authorization": "Bearer " + token} if token else {}, timeout=httpx.Timeout(30, read=300)))
            transport = streamable_http_client(url, http_client=http)
        caller = Caller(options)
        async with caller.connect(transport) as client:
            await caller.steps(client)


anyio.run(main)
