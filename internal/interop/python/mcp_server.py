"""An MCP server of the official SDK for Python, version 1 or 2, unmodified.

usage: mcp_server.py stdio
       mcp_server.py http [TOKEN]

With http it writes one line of JSON with its URL, wants the bearer TOKEN if one is given, and ends with its input.

Tools: add(a, b) {"sum"}; echo(text); slow(steps), 50 ms each, with a progress message; hold(), which says one and
waits for its cancel; fail(text); ask(question), which asks for {"answer"} and echoes it; big(size); change(text), which
changes the description of echo; log() {"cancelled", "calls"}.
"""

import json
import os
import socket
import sys
import threading
from typing import Annotated

import anyio
from pydantic import BaseModel

try:
    from mcp.server.mcpserver import Context, MCPServer as Server
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.server.mcpserver.resolve import Elicit, Resolve
    from mcp.server.elicitation import ElicitationResult
    TWO = True
except ImportError:
    from mcp.server.fastmcp import Context, FastMCP as Server
    from mcp.server.fastmcp.exceptions import ToolError
    TWO = False


class Sum(BaseModel):
    sum: int


class Answer(BaseModel):
    answer: str


class Log(BaseModel):
    cancelled: int
    calls: int


log = Log(cancelled=0, calls=0)
server = Server("workshop", instructions="Tools that test what lies between.")


@server.tool(description="Adds two numbers.")
def add(a: int, b: int) -> Sum:
    log.calls += 1
    return Sum(sum=a + b)


def echo(text: str) -> str:
    log.calls += 1
    return text


server.add_tool(echo, description="Gives the text back.", structured_output=False)


@server.tool(description="Takes so many steps.", structured_output=False)
async def slow(steps: int, ctx: Context) -> str:
    log.calls += 1
    for i in range(1, steps + 1):
        await ctx.report_progress(i, steps, f"step {i} of {steps}")
        await anyio.sleep(0.05)
    return f"took {steps} steps"


@server.tool(description="Waits until it is cancelled.", structured_output=False)
async def hold(ctx: Context) -> str:
    log.calls += 1
    await ctx.report_progress(1, None, "holding")
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        log.cancelled += 1
        raise


@server.tool(description="Fails.", structured_output=False)
def fail(text: str) -> str:
    log.calls += 1
    raise ToolError(text)


def said(outcome) -> str:
    return "got " + outcome.data.answer if outcome.action == "accept" else outcome.action


if TWO:
    def question_of(question: str) -> Elicit[Answer]:
        return Elicit(question, Answer)

    @server.tool(description="Asks back.", structured_output=False)
    def ask(question: str, outcome: Annotated[ElicitationResult[Answer], Resolve(question_of)]) -> str:
        log.calls += 1
        return said(outcome)
else:
    @server.tool(description="Asks back.", structured_output=False)
    async def ask(question: str, ctx: Context) -> str:
        log.calls += 1
        return said(await ctx.elicit(question, Answer))


@server.tool(description="Gives so many characters.", structured_output=False)
def big(size: int) -> str:
    log.calls += 1
    return "x" * size


@server.tool(description="Changes the description of echo.", structured_output=False)
async def change(text: str, ctx: Context) -> str:
    server.remove_tool("echo")
    server.add_tool(echo, description=text, structured_output=False)
    if TWO:
        await ctx.notify_tools_changed()
    if not TWO or ctx.protocol_version < "2026-07-28":
        await ctx.session.send_tool_list_changed()
    return "changed"


@server.tool(name="log", description="Tells what happened.")
def tell() -> Log:
    return log


def guarded(app, token):
    async def guard(scope, receive, send):
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer " + token.encode():
            await send({"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)
    return guard


def http(token):
    import uvicorn

    app = server.streamable_http_app()
    s = socket.create_server(("127.0.0.1", 0))
    print(json.dumps({"url": f"http://127.0.0.1:{s.getsockname()[1]}/mcp"}), flush=True)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    uvicorn.Server(uvicorn.Config(guarded(app, token) if token else app, log_level="warning")).run(sockets=[s])


if sys.argv[1] == "stdio":
    server.run("stdio")
else:
    http((sys.argv[2:] + [""])[0])
