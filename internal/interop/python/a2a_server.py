"""An agent of the official A2A SDK for Python, version 1, unmodified.

usage: a2a_server.py [ASK_URL TOKEN]

It serves JSON-RPC and HTTP+JSON in 1.0, and JSON-RPC in 0.3, and prints one line of
JSON with its URL. What it does is the text of the message:

    say TEXT    an artifact with TEXT
    count N     N pieces of an artifact, then the artifact with "counted N"
    fail TEXT   fails
    reject TEXT rejects
    ask TEXT    asks back, and answers "got " and the next message
    hold        works until it is cancelled
    stopped     an artifact with the number of tasks that it was told to cancel
    parts       an artifact with the parts of the message
    relay TEXT  with ASK_URL: asks the agent there, and answers "TEXT > a2a" and its answer
"""
import asyncio
import json
import socket
import sys

import httpx
import uvicorn
from starlette.applications import Starlette

from a2a.client import ClientConfig, create_client
from a2a.helpers.proto_helpers import (
    get_artifact_text,
    get_message_text,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Role,
    SendMessageRequest,
    TaskState,
)


class Teller(AgentExecutor):
    def __init__(self, ask=None, token=None):
        self.ask, self.token, self.stopped = ask, token, 0

    async def execute(self, context, queue):
        asked = context.current_task
        if asked is None:
            await queue.enqueue_event(new_task_from_user_message(context.message))
        up = TaskUpdater(queue, context.task_id, context.context_id)

        def said(text):
            return up.new_agent_message([new_text_part(text)])

        text = get_message_text(context.message)
        if asked is not None:
            await up.add_artifact([new_text_part("got " + text)], name="answer")
            return await up.complete()
        verb, _, rest = text.partition(" ")
        if verb == "say":
            await up.add_artifact([new_text_part(rest)], name="said", last_chunk=True)
            await up.complete()
        elif verb == "count":
            await up.start_work(said("begun"))
            for i in range(int(rest)):
                await up.add_artifact([new_text_part(f"piece {i + 1}")], artifact_id="pieces", append=i > 0)
            await up.add_artifact([new_text_part("counted " + rest)], artifact_id="pieces", last_chunk=True)
            await up.complete()
        elif verb == "fail":
            await up.failed(said(rest))
        elif verb == "reject":
            await up.reject(said(rest))
        elif verb == "ask":
            await up.requires_input(said(rest))
        elif verb == "hold":
            await up.start_work()
            await asyncio.Event().wait()
        elif verb == "stopped":
            await up.add_artifact([new_text_part(str(self.stopped))])
            await up.complete()
        elif verb == "parts":
            await up.add_artifact(list(context.message.parts), name="parts")
            await up.complete()
        elif verb == "relay":
            answer = await self.relay(rest + " > a2a", context)
            await up.add_artifact([new_text_part(answer + " < a2a")])
            await up.complete()
        else:
            await up.reject(said("it knows say, count, fail, reject, ask, hold, stopped, parts, relay"))

    async def cancel(self, context, queue):
        self.stopped += 1
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()

    async def relay(self, text, context):
        """Asks another agent, in the trace in which this one was asked."""
        headers = {"Authorization": "Bearer " + self.token}
        trace = context.call_context.state.get("headers", {}).get("traceparent")
        if trace:
            headers["traceparent"] = trace
        async with httpx.AsyncClient(headers=headers, timeout=120) as web:
            client = await create_client(self.ask, ClientConfig(streaming=False, httpx_client=web))
            request = SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER))
            async for event in client.send_message(request):
                if event.HasField("message"):
                    return get_message_text(event.message)
                task = event.task
                if task.status.state != TaskState.TASK_STATE_COMPLETED:
                    raise RuntimeError(f"the other agent: {task.status}")
                return "\n".join(get_artifact_text(a) for a in task.artifacts)


def main():
    s = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{s.getsockname()[1]}"
    card = AgentCard(
        name="teller", description="Does what it is told.", version="1.0.0",
        default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        supported_interfaces=[
            AgentInterface(url=url + "/rpc", protocol_binding="JSONRPC", protocol_version="1.0"),
            AgentInterface(url=url + "/rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
            AgentInterface(url=url + "/rpc", protocol_binding="JSONRPC", protocol_version="0.3"),
        ],
        skills=[AgentSkill(id="tell", name="Tell", description="Does what the text says.", tags=["test"])],
    )
    store = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        Teller(*sys.argv[1:]), InMemoryTaskStore(), card, push_config_store=store,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(), store))
    app = Starlette(routes=[
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
        *create_rest_routes(handler, path_prefix="/rest"),
    ])
    print(json.dumps({"url": url}), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[s])


main()
