"""An agent of the official A2A SDK for Python, version 0.3, unmodified.

usage: a2a03_server.py

It serves JSON-RPC in 0.3, prints one line of JSON with its URL, and does what
python/a2a_server.py does.
"""
import asyncio
import json
import socket

import httpx
import uvicorn

from a2a.server.agent_execution import AgentExecutor
from a2a.server.apps import A2AStarletteApplication
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_task


def part(text):
    return Part(root=TextPart(text=text))


class Teller(AgentExecutor):
    stopped = 0

    async def execute(self, context, queue):
        asked = context.current_task
        if asked is None:
            await queue.enqueue_event(new_task(context.message))
        up = TaskUpdater(queue, context.message.task_id or context.task_id, context.context_id)

        def said(text):
            return up.new_agent_message([part(text)])

        text = context.get_user_input()
        if asked is not None:
            await up.add_artifact([part("got " + text)], name="answer")
            return await up.complete()
        verb, _, rest = text.partition(" ")
        if verb == "say":
            await up.add_artifact([part(rest)], name="said", last_chunk=True)
            await up.complete()
        elif verb == "count":
            await up.start_work(said("begun"))
            for i in range(int(rest)):
                await up.add_artifact([part(f"piece {i + 1}")], artifact_id="pieces", append=i > 0)
            await up.add_artifact([part("counted " + rest)], artifact_id="pieces", last_chunk=True)
            await up.complete()
        elif verb == "fail":
            await up.failed(said(rest))
        elif verb == "reject":
            await up.reject(said(rest))
        elif verb == "ask":
            await up.requires_input(said(rest), final=True)
        elif verb == "hold":
            await up.start_work()
            await asyncio.Event().wait()
        elif verb == "stopped":
            await up.add_artifact([part(str(self.stopped))])
            await up.complete()
        elif verb == "parts":
            await up.add_artifact(context.message.parts, name="parts")
            await up.complete()
        else:
            await up.reject(said("it knows say, count, fail, reject, ask, hold, stopped, parts"))

    async def cancel(self, context, queue):
        self.stopped += 1
        await TaskUpdater(queue, context.task_id, context.context_id).cancel()


def main():
    s = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{s.getsockname()[1]}"
    card = AgentCard(
        name="teller", description="Does what it is told.", version="1.0.0", url=url + "/",
        default_input_modes=["text/plain"], default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=True, push_notifications=True),
        skills=[AgentSkill(id="tell", name="Tell", description="Does what the text says.", tags=["test"])],
    )
    store = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(Teller(), InMemoryTaskStore(), push_config_store=store,
                                    push_sender=BasePushNotificationSender(httpx.AsyncClient(), store))
    app = A2AStarletteApplication(agent_card=card, http_handler=handler).build()
    print(json.dumps({"url": url}), flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[s])


main()
