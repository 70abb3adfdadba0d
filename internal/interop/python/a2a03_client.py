"""Calls an agent with the client of the official A2A SDK for Python, version 0.3, unmodified.

usage: a2a03_client.py URL TOKEN [reference]

URL is the agent's base URL, below which its card is; the agent does what python/a2a_server.py
does. Prints one line of JSON with what the client saw. The server of this SDK sends no
task at the beginning of a subscription: with "reference" the client asks for none.
"""
import asyncio
import http.server
import json
import sys
import threading
import uuid

import httpx

from a2a.client import ClientCallContext, ClientConfig, ClientFactory
from a2a.client.auth import AuthInterceptor, InMemoryContextCredentialStore
from a2a.client.errors import A2AClientError
from a2a.types import (
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    GetTaskPushNotificationConfigParams,
    Message,
    MessageSendConfiguration,
    Part,
    PushNotificationConfig,
    Role,
    Task,
    TaskIdParams,
    TaskPushNotificationConfig,
    TaskQueryParams,
    TextPart,
)

url, token = sys.argv[1:3]
reference = sys.argv[3:] == ["reference"]
session = ClientCallContext(state={"sessionId": "s"})


def message(text, parts=(), **more):
    return Message(role=Role.user, message_id=str(uuid.uuid4()), parts=[Part(root=TextPart(text=text)), *parts], **more)


def words(parts):
    return "\n".join(p.root.text for p in parts if p.root.kind == "text")


def text(task):
    if task.artifacts:
        return "\n".join(words(a.parts) for a in task.artifacts)
    return words(task.status.message.parts)


def state(task):
    return task.status.state.value


def webhook():
    """A webhook: its URL, and what it got."""
    got, more = [], threading.Event()

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            got.append((self.headers.get("X-A2A-Notification-Token") or self.headers.get("A2A-Notification-Token"),
                        body))
            self.send_response(204)
            self.end_headers()
            if "completed" in body.lower():
                more.set()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/hook", got, more


async def main():
    credentials = InMemoryContextCredentialStore()
    await credentials.set_credentials("s", "parley", token)
    web = httpx.AsyncClient(timeout=60)
    seen = {}

    async def connect(streaming):
        return await ClientFactory.connect(url, ClientConfig(streaming=streaming, httpx_client=web),
                                           interceptors=[AuthInterceptor(credentials)])

    plain, streams = await connect(False), await connect(True)

    async def send(m, **configuration):
        if isinstance(m, str):
            m = message(m)
        async for event in plain.send_message(m, configuration=MessageSendConfiguration(**configuration),
                                              context=session):
            return event if isinstance(event, Message) else event[0]
        raise RuntimeError("no answer")

    async def error(call):
        try:
            await call
            return None
        except A2AClientError as e:
            return e.error.code if hasattr(e, "error") else str(e)

    async def get(task, **more):
        return await plain.get_task(TaskQueryParams(id=task.id, **more), context=session)

    said = await send("say Grüezi")
    seen["send"] = [state(said), text(said)]

    events = []
    async for task, update in streams.send_message(message("count 3"), context=session):
        counted = task
        if update is None:
            events.append(["task", state(task)])
        elif update.kind == "artifact-update":
            events.append(["artifact_update", words(update.artifact.parts), bool(update.append)])
        else:
            events.append(["status_update", state(update), update.final])
    seen["stream"] = events
    got = await get(counted)
    seen["get"] = [state(got), text(got).splitlines()[-1]]
    seen["history"] = [len((await get(counted, history_length=n)).history or []) for n in (0, 1)]

    asked = await send("ask where to?")
    answered = await send(message("Bern", context_id=asked.context_id, task_id=asked.id))
    seen["input"] = [state(asked), words(asked.status.message.parts), state(answered), text(answered),
                     answered.id == asked.id]

    held = await send("hold", blocking=False)
    if reference:
        cancelled = await plain.cancel_task(TaskIdParams(id=held.id), context=session)
    else:
        cancelled, kinds = None, []
        async for task, update in streams.resubscribe(TaskIdParams(id=held.id), context=session):
            kinds.append("task" if update is None else update.kind)
            if cancelled is None:
                cancelled = await plain.cancel_task(TaskIdParams(id=held.id), context=session)
            seen["subscribed"] = state(task)
        seen["subscribe"] = kinds[0]
    seen["cancel"] = [state(cancelled), state(await get(held))]

    echoed = await send(message("parts", [
        Part(root=DataPart(data={"n": 1.5, "list": ["é"]})),
        Part(root=FilePart(file=FileWithBytes(bytes="iVBORw==", mime_type="image/png", name="a.png"))),
        Part(root=FilePart(file=FileWithUri(uri="https://example.com/b.pdf", mime_type="application/pdf",
                                            name="b.pdf")))]))
    seen["parts"] = [p.model_dump(by_alias=True, exclude_none=True) for a in echoed.artifacts for p in a.parts]

    for verb in ("fail", "reject"):
        ended = await send(verb + " because")
        seen[verb] = [state(ended), words(ended.status.message.parts)]

    missing = "00000000-0000-7000-8000-000000000000"
    seen["errors"] = {
        "get": await error(plain.get_task(TaskQueryParams(id=missing), context=session)),
        "cancel": await error(plain.cancel_task(TaskIdParams(id=said.id), context=session)),
        "send": await error(send(message("say more", task_id=missing))),
    }

    hook, calls, done = webhook()
    await send("say pushed", blocking=False, push_notification_config=PushNotificationConfig(url=hook, token="tok"))
    seen["push"] = await asyncio.to_thread(done.wait, 60)
    seen["tokens"] = sorted({str(token) for token, _ in calls})

    held = await send("hold", blocking=False)
    await plain.set_task_callback(TaskPushNotificationConfig(
        task_id=held.id, push_notification_config=PushNotificationConfig(id="two", url=hook, token="tok")),
        context=session)
    one = await plain.get_task_callback(
        GetTaskPushNotificationConfigParams(id=held.id, push_notification_config_id="two"), context=session)
    seen["configs"] = [one.push_notification_config.id, one.push_notification_config.url == hook]
    await plain.cancel_task(TaskIdParams(id=held.id), context=session)
    await web.aclose()
    print(json.dumps(seen), flush=True)


asyncio.run(main())
