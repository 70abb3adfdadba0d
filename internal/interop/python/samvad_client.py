"""Calls an agent with the SDK's client, the way its documentation shows.

usage: samvad_client.py key KEYS_DIR KID
       samvad_client.py call|task|stream KEYS_DIR KID URL SKILL PAYLOAD

Writes one line of JSON: the public key, or what the SDK gave back.
"""

import asyncio
import json
import sys

import httpx
from samvad import AgentClient


async def main() -> object:
    what, keys_dir, kid = sys.argv[1:4]
    if what == "key":
        return {"key": AgentClient.prepare(keys_dir=keys_dir, kid=kid).public_key_b64}
    url, skill, payload = sys.argv[4], sys.argv[5], json.loads(sys.argv[6])
    client = await AgentClient.from_url(url, keys_dir=keys_dir, kid=kid)
    try:
        if what == "call":
            return await client.call(skill, payload)
        if what == "task":
            return await client.task_and_poll(skill, payload, interval=0.05, timeout=20)
        if what == "stream":
            return [event async for event in client.stream(skill, payload)]
    except httpx.HTTPStatusError as e:
        body = await e.response.aread()
        return {"http": e.response.status_code, "body": json.loads(body)}
    raise SystemExit(f"unknown command {what}")


print(json.dumps(asyncio.run(main())))
