"""Calls an agent with the client of the official A2A SDK for Python, version 1, unmodified.

usage: a2a_client.py URL TOKEN [BINDING]

URL is the agent's base URL, below which its card is; the agent does what python/a2a_server.py
does. BINDING is JSONRPC or HTTP+JSON. Prints one line of JSON with what the client saw.
"""
import asyncio
import http.server
import json
import sys
import threading

import httpx
from google.protobuf.json_format import MessageToDict

from a2a.client import ClientCallContext, ClientConfig, create_client
from a2a.client.auth import AuthInterceptor, InMemoryContextCredentialStore
from a2a.helpers.proto_helpers import (
    get_artifact_text,
    get_message_text,
    new_data_part,
    new_message,
    new_raw_part,
    new_text_message,
    new_text_part,
    new_url_part,
)
from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import A2AError

url, token = sys.argv[1:3]
binding = sys.argv[3] if len(sys.argv) > 3 else "JSONRPC"
session = ClientCallContext(state={"sessionId": "s"}, timeout=60)


def state(task):
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower().replace("_", "-")


def text(task):
    if task.artifacts:
        return "\n".join(get_artifact_text(a) for a in task.artifacts)
    return get_message_text(task.status.message)


def webhook():
    """A webhook: its URL, and what it got."""
    got, more = [], threading.Event()

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.headers.get("X-A2A-Notification-Token") or self.headers.get("A2A-Notification-Token"),
                        self.headers.get("Authorization"), body))
            self.send_response(204)
            self.end_headers()
            if "COMPLETED" in json.dumps(body):
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
        config = ClientConfig(streaming=streaming, httpx_client=web, supported_protocol_bindings=[binding])
        return await create_client(url, config, interceptors=[AuthInterceptor(credentials)])

    plain, streams = await connect(False), await connect(True)

    async def send(message, **configuration):
        if isinstance(message, str):
            message = new_text_message(message, role=Role.ROLE_USER)
        request = SendMessageRequest(message=message, configuration=SendMessageConfiguration(**configuration))
        async for event in plain.send_message(request, context=session):
            return event.task
        raise RuntimeError("no answer")

    async def error(call):
        try:
            await call
            return None
        except A2AError as e:
            return type(e).__name__

    async def get(task, **more):
        return await plain.get_task(GetTaskRequest(id=task.id, **more), context=session)

    said = await send("say Grüezi")
    seen["send"] = [state(said), text(said)]

    events = []
    async for event in streams.send_message(
            SendMessageRequest(message=new_text_message("count 3", role=Role.ROLE_USER)), context=session):
        kind = event.WhichOneof("payload")
        if kind == "artifact_update":
            events.append([kind, get_artifact_text(event.artifact_update.artifact), event.artifact_update.append])
        elif kind == "status_update":
            events.append([kind, state(event.status_update)])
        else:
            counted = event.task
            events.append([kind, state(event.task)])
    seen["stream"] = events
    got = await get(counted)
    seen["get"] = [state(got), text(got).splitlines()[-1]]
    seen["history"] = [len((await get(counted, history_length=n)).history) for n in (0, 1)]

    listed = await plain.list_tasks(ListTasksRequest(context_id=said.context_id), context=session)
    seen["list"] = [[t.id == said.id for t in listed.tasks], listed.total_size, listed.next_page_token]

    asked = await send("ask where to?")
    answer = new_text_message("Bern", context_id=asked.context_id, task_id=asked.id, role=Role.ROLE_USER)
    answered = await send(answer)
    seen["input"] = [state(asked), get_message_text(asked.status.message), state(answered), text(answered),
                     answered.id == asked.id]

    held = await send("hold", return_immediately=True)
    subscribed = []
    cancelled = None
    async for event in streams.subscribe(SubscribeToTaskRequest(id=held.id), context=session):
        kind = event.WhichOneof("payload")
        subscribed.append(kind)
        if cancelled is None:
            cancelled = await plain.cancel_task(CancelTaskRequest(id=held.id), context=session)
        if kind == "status_update":
            seen["subscribed"] = state(event.status_update)
    seen["subscribe"] = subscribed[0]
    seen["cancel"] = [state(cancelled), state(await get(held))]

    parts = [new_text_part("parts"), new_data_part({"n": 1.5, "list": ["é"]}),
             new_raw_part(b"\x89PNG", media_type="image/png", filename="a.png"),
             new_url_part("https://example.com/b.pdf", media_type="application/pdf", filename="b.pdf")]
    echoed = await send(new_message(parts, role=Role.ROLE_USER))
    seen["parts"] = [MessageToDict(p) for a in echoed.artifacts for p in a.parts]

    for verb in ("fail", "reject"):
        ended = await send(verb + " because")
        seen[verb] = [state(ended), get_message_text(ended.status.message)]

    missing = "00000000-0000-7000-8000-000000000000"
    seen["errors"] = {
        "get": await error(plain.get_task(GetTaskRequest(id=missing), context=session)),
        "cancel": await error(plain.cancel_task(CancelTaskRequest(id=said.id), context=session)),
        "send": await error(send(new_text_message("say more", task_id=missing, role=Role.ROLE_USER))),
        "over": await error(send(new_text_message("say more", task_id=said.id, context_id=said.context_id,
                                                  role=Role.ROLE_USER))),
    }

    hook, calls, done = webhook()
    pushed = await send("say pushed", return_immediately=True, task_push_notification_config=TaskPushNotificationConfig(
        id="one", url=hook, token="tok"))
    seen["push"] = await asyncio.to_thread(done.wait, 60)
    seen["tokens"] = sorted({str(token) for token, _, _ in calls})

    held = await send("hold", return_immediately=True)
    config = await plain.create_task_push_notification_config(
        TaskPushNotificationConfig(task_id=held.id, id="two", url=hook, token="tok"), context=session)
    one = await plain.get_task_push_notification_config(
        GetTaskPushNotificationConfigRequest(task_id=held.id, id=config.id), context=session)
    many = ListTaskPushNotificationConfigsRequest(task_id=held.id)
    before = await plain.list_task_push_notification_configs(many, context=session)
    await plain.delete_task_push_notification_config(
        DeleteTaskPushNotificationConfigRequest(task_id=held.id, id=config.id), context=session)
    after = await plain.list_task_push_notification_configs(many, context=session)
    seen["configs"] = [config.id, one.url == hook, len(before.configs), len(after.configs)]
    await plain.cancel_task(CancelTaskRequest(id=held.id), context=session)
    await web.aclose()
    print(json.dumps(seen), flush=True)


asyncio.run(main())
