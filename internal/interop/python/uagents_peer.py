"""One unmodified uAgent, driven by lines of JSON on its standard input.

It tells what happens in lines of JSON on its standard output. Commands:
  {"do": "send", "to": ADDRESS, "text": T, "count": N, "timeout": S}   EchoRequest, one way
  {"do": "ask",  "to": ADDRESS, "text": T}                             and wait for the EchoResponse in the session
  {"do": "sync", "to": ADDRESS, "text": T, "as": "agent" | "user"}     over the HTTP response
  {"do": "chat", "to": ADDRESS, "text": T}
  {"do": "stop"}
"""

import argparse
import asyncio
import json
import os
import sys
from datetime import datetime, timezone
from uuid import uuid4

from uagents import Agent, Context, Model, Protocol
from uagents.communication import send_sync_message
from uagents.registration import AlmanacApiRegistrationPolicy
from uagents.resolver import AlmanacApiResolver
from uagents_core.contrib.protocols.chat import (
    ChatAcknowledgement,
    ChatMessage,
    EndSessionContent,
    TextContent,
    chat_protocol_spec,
)
from uagents_core.contrib.protocols.chat.cards import (
    CtaAction,
    FormCardPayload,
    FormField,
    create_card_content,
)


class EchoRequest(Model):
    text: str


class EchoResponse(Model):
    text: str


class RegistryOnly(AlmanacApiResolver):
    """Where the registry says "not found", does not ask the ledger."""

    async def resolve(self, destination):
        return await self._api_resolve(destination)


def tell(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


parser = argparse.ArgumentParser()
parser.add_argument("--hub", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--seed", required=True)
parser.add_argument("--mailbox", action="store_true")
parser.add_argument("--quiet", action="store_true", help="chat messages are acknowledged and not answered")
parser.add_argument("--ask", help="a chat message is passed on to this address, and what that answers is answered")
args = parser.parse_args()

agent = Agent(
    name="peer-" + args.seed,
    seed=args.seed,
    port=args.port,
    endpoint=None if args.mailbox else f"http://127.0.0.1:{args.port}/submit",
    mailbox=args.mailbox,
    agentverse=args.hub,
    registration_policy=AlmanacApiRegistrationPolicy(almanac_api=args.hub + "/v1/almanac"),
    resolve=RegistryOnly(almanac_api_url=args.hub + "/v1/almanac"),
    log_level="WARNING",
    publish_agent_details=False,
)


def say(text, *more):
    return ChatMessage(timestamp=datetime.now(timezone.utc), msg_id=uuid4(), content=[TextContent(type="text", text=text), *more])


def words(msg):
    return "".join(c.text for c in msg.content if isinstance(c, TextContent))


def form():
    """An interactive card, as the library makes it."""
    send = CtaAction(label="Send", selection={})
    return create_card_content(
        FormCardPayload(fields=[FormField(name="city", kind="text", label="City")], submit_cta=send)
    )


tasks = set()  # the loop keeps no reference of its own

echo = Protocol(name="EchoProtocol", version="1.0.0")
chat = Protocol(spec=chat_protocol_spec)


@echo.on_message(model=EchoRequest, replies=EchoResponse)
async def on_request(ctx: Context, sender: str, msg: EchoRequest):
    tell("request", sender=sender, text=msg.text, session=str(ctx.session))
    await ctx.send(sender, EchoResponse(text=msg.text))


@agent.on_message(model=EchoResponse)
async def on_response(ctx: Context, sender: str, msg: EchoResponse):
    tell("response", sender=sender, text=msg.text, session=str(ctx.session))


@chat.on_message(ChatMessage)
async def on_chat(ctx: Context, sender: str, msg: ChatMessage):
    text = words(msg)
    ended = any(isinstance(c, EndSessionContent) for c in msg.content)
    tell("chat", sender=sender, text=text, ended=ended, session=str(ctx.session))
    await ctx.send(sender, ChatAcknowledgement(timestamp=datetime.now(timezone.utc), acknowledged_msg_id=msg.msg_id))
    if ended or args.quiet:
        return
    if text == "show me the form":
        await ctx.send(sender, ChatMessage(timestamp=datetime.now(timezone.utc), msg_id=uuid4(), content=[form()]))
        return
    answer = "you said " + text
    if args.ask:
        # In the session in which it was asked: the library does so by itself.
        reply, status = await ctx.send_and_receive(args.ask, say(text + " > uagents"), response_type=ChatMessage, timeout=120)
        answer = words(reply) + " < uagents" if reply else str(status.detail)
    await ctx.send(sender, say(answer, EndSessionContent(type="end-session")))


@chat.on_message(ChatAcknowledgement)
async def on_ack(ctx: Context, sender: str, msg: ChatAcknowledgement):
    tell("ack", sender=sender, of=str(msg.acknowledged_msg_id), session=str(ctx.session))


agent.include(echo, publish_manifest=True)
agent.include(chat, publish_manifest=True)


async def obey(ctx: Context, c: dict):
    try:
        if c["do"] == "send":
            for i in range(c.get("count", 1)):
                status = await ctx.send(c["to"], EchoRequest(text=f"{c['text']}{i}"), timeout=c.get("timeout", 30))
                if str(status.status) not in ("delivered", "DeliveryStatus.DELIVERED"):
                    tell("undelivered", text=f"{c['text']}{i}", detail=str(status.detail))
            tell("sent", count=c.get("count", 1))
        elif c["do"] == "ask":
            reply, status = await ctx.send_and_receive(c["to"], EchoRequest(text=c["text"]), response_type=EchoResponse)
            tell("answer", text=getattr(reply, "text", None), detail=str(status.detail))
        elif c["do"] == "sync":
            sender = agent._identity if c.get("as") != "user" else None
            reply = await send_sync_message(
                c["to"], EchoRequest(text=c["text"]), response_type=EchoResponse, sender=sender, resolver=agent._resolver
            )
            tell("answer", text=getattr(reply, "text", None), detail=repr(reply))
        elif c["do"] == "chat":
            await ctx.send(c["to"], say(c["text"]))
            tell("sent", count=1)
    except Exception as e:  # told to the test, which fails
        tell("failed", detail=repr(e))


@agent.on_event("startup")
async def startup(ctx: Context):
    async def read():
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            command = json.loads(line)
            if command["do"] == "stop":
                break
            tasks.add(asyncio.create_task(obey(ctx, command)))
        sys.stdout.flush()
        os._exit(0)  # the test does not wait for the library's own end

    tasks.add(asyncio.create_task(read()))
    tell("ready", address=agent.address)


if __name__ == "__main__":
    agent.run()
