"""Runs an agent with the SDK's server until its input ends.

usage: samvad_server.py KEYS_DIR PEER_ID PEER_KEY

Writes one line of JSON when it listens: its URL, its identity and its key.
"""

import asyncio
import json
import socket
import sys

import uvicorn
from pydantic import BaseModel
from samvad import Agent, RateLimit, SkillContext


class Question(BaseModel):
    text: str
    times: int = 1


class Answer(BaseModel):
    text: str
    sender: str


async def repeat(q: Question, ctx: SkillContext) -> Answer:
    return Answer(text=q.text * q.times, sender=ctx.sender)


async def fail(q: Question, ctx: SkillContext) -> Answer:
    raise RuntimeError("secret of the handler")


async def main() -> None:
    keys_dir, peer_id, peer_key = sys.argv[1:4]
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    modes = ["sync", "async", "stream"]
    agent = Agent(
        name="pythonist",
        description="An agent of the Python SDK",
        url=url,
        keys_dir=keys_dir,
        rate_limit=RateLimit(requestsPerMinute=10000, requestsPerSender=10000),
    )
    for name, handler in (("repeat", repeat), ("talk", repeat), ("fail", fail)):
        agent.skill(
            name=name,
            description=name,
            input_schema=Question,
            output_schema=Answer,
            modes=modes,
            trust="public",
            handler=handler,
        )
    agent.trust_peer(peer_id, peer_key)
    card = agent.build_card()
    server = uvicorn.Server(uvicorn.Config(agent.build_app(), log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if serving.done():
            raise SystemExit("the server did not start")
        await asyncio.sleep(0.01)
    print(json.dumps({"url": url, "id": card.id, "key": card.public_keys[0].key}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


asyncio.run(main())
