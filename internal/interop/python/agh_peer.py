"""An AGH peer written from the public protocol pages alone, with nats-py.

It sends what the pages show: pretty-printed JSON with to and proof always
there, optional members left out; it asks whois by a NATS request and answers it
on the reply subject. Driven by lines of JSON on standard input, it tells what
happens in lines of JSON on standard output. Commands:
  {"do": "greet"}
  {"do": "whois", "to": PEER | null, "query": Q}     event whois: the first answer
  {"do": "say", "text": T, "to": PEER | null, "thread": ID, "work": ID | null}
  {"do": "direct", "text": T, "to": PEER, "work": ID | null}
  {"do": "spoof", "from": PEER, "kind": "greet" | "answer", "to": PEER}
  {"do": "intrude", "workspace": W}                  publishes and subscribes in another workspace
  {"do": "stop"}
Work that is given to it is accepted, worked on, and completed; with --ask it asks
another peer, in work of the same trace, and completes with what that answers.
"""

import argparse
import asyncio
import hashlib
import json
import sys
import time
import uuid

import nats

parser = argparse.ArgumentParser()
parser.add_argument("--url", required=True)
parser.add_argument("--token")
parser.add_argument("--user")
parser.add_argument("--password")
parser.add_argument("--workspace", required=True)
parser.add_argument("--channel", required=True)
parser.add_argument("--peer", required=True)
parser.add_argument("--everything", action="store_true", help="listen to all subjects of the workspace")
parser.add_argument("--ask", help="peer that does the work")
args = parser.parse_args()

BASE = f"agh.network.v0.{args.workspace}.{args.channel}"
BROADCAST = BASE + ".broadcast"


def peer_subject(peer):
    return BASE + ".peer." + hashlib.sha256(peer.encode()).digest()[:16].hex()


def room(a, b):
    low, high = sorted([a, b])
    text = "\0".join(["agh-network/direct-room/v0", args.workspace, args.channel, low, high])
    return "direct_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def card(peer):
    return {
        "peer_id": peer,
        "display_name": peer.title(),
        "profiles_supported": ["agh-network/v0"],
        "capabilities": ["mending"],
        "artifacts_supported": ["capability"],
        "trust_modes_supported": [],
    }


def envelope(kind, body, to=None, sender=None, **more):
    e = {
        "protocol": "agh-network/v0",
        "id": str(uuid.uuid4()),
        "workspace_id": args.workspace,
        "kind": kind,
        "channel": args.channel,
        "from": sender or args.peer,
        "to": to,
        "ts": int(time.time()),
        "body": body,
        "proof": None,
    }
    e.update({k: v for k, v in more.items() if v is not None})
    return e


def encode(e):
    return (json.dumps(e, indent=2) + "\n").encode()


def tell(event, **more):
    print(json.dumps({"event": event, **more}), flush=True)


async def main():
    # A peer that may not in is told so at once.
    async def failed(err):
        tell("failed", error=str(err))

    nc = await nats.connect(
        args.url, token=args.token, user=args.user, password=args.password, allow_reconnect=False, connect_timeout=10, error_cb=failed
    )

    async def publish(e):
        await nc.publish(peer_subject(e["to"]) if e["to"] else BROADCAST, encode(e))

    async def heard(msg):
        e = json.loads(msg.data)
        if e["from"] == args.peer and not args.everything:
            return  # our own broadcast
        if e["kind"] == "whois" and e["body"]["type"] == "request":
            q = e["body"].get("query") or ""
            if e.get("to") == args.peer or q in ("", args.peer, "mending"):
                answer = envelope("whois", {"type": "response", "peer_card": card(args.peer)}, to=e["from"], reply_to=e["id"])
                await nc.publish(msg.reply or peer_subject(e["from"]), encode(answer))
            return
        tell("heard", subject=msg.subject, envelope=e)
        if e["kind"] == "say" and e.get("to") == args.peer and e.get("work_id") and e["work_id"] not in given:
            given.add(e["work_id"])
            at = {k: e[k] for k in ("surface", "thread_id", "direct_id", "work_id", "trace_id") if e.get(k)}

            async def answer(kind, body):
                await publish(envelope(kind, body, to=e["from"], reply_to=e["id"], **at))

            await answer("receipt", {"for_id": e["id"], "status": "accepted"})
            await answer("trace", {"state": "working", "message": "at it"})
            if args.ask:
                work = "work_" + uuid.uuid4().hex
                given.add(work)
                asked[work] = answer
                more = dict(surface="direct", direct_id=room(args.peer, args.ask), work_id=work, trace_id=e.get("trace_id"))
                await publish(envelope("say", {"text": e["body"]["text"] + " > nats"}, to=args.ask, **more))
            else:
                await answer("trace", {"state": "completed", "message": "mended", "result": {"ok": True, "heard": e["body"]["text"]}})
        if e["kind"] == "trace" and e["body"]["state"] in ("completed", "failed") and e.get("work_id") in asked:
            said = e["body"].get("result") or {}
            said = said.get("text") or said.get("value") or json.dumps(said)
            await asked.pop(e["work_id"])("trace", {"state": e["body"]["state"], "result": {"text": said + " < nats"}})

    given = set()
    asked = {}  # how to answer who gave us the work, by the work that we gave
    if args.everything:
        await nc.subscribe(f"agh.network.v0.{args.workspace}.>", cb=heard)
    else:
        await nc.subscribe(BROADCAST, cb=heard)
        await nc.subscribe(peer_subject(args.peer), cb=heard)
    await nc.flush()
    tell("ready")

    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        c = json.loads(line)
        if c["do"] == "stop":
            break
        if c["do"] == "greet":
            await publish(envelope("greet", {"peer_card": card(args.peer), "summary": "here"}))
        elif c["do"] == "whois":
            e = envelope("whois", {"type": "request", "query": c["query"]}, to=c["to"])
            try:
                answer = await nc.request(peer_subject(c["to"]) if c["to"] else BROADCAST, encode(e), timeout=10)
                a = json.loads(answer.data)
                tell("whois", envelope=a, answers=a["reply_to"] == e["id"])
            except nats.errors.Error as err:
                tell("whois", error=repr(err))
        elif c["do"] == "say":
            if c.get("work"):
                given.add(c["work"])
            await publish(envelope("say", {"text": c["text"], "intent": "question"}, to=c.get("to"), surface="thread", thread_id=c["thread"], work_id=c.get("work")))
        elif c["do"] == "direct":
            if c.get("work"):
                given.add(c["work"])
            await publish(envelope("say", {"text": c["text"]}, to=c["to"], surface="direct", direct_id=room(args.peer, c["to"]), work_id=c.get("work")))
        elif c["do"] == "spoof":
            if c["kind"] == "greet":
                await publish(envelope("greet", {"peer_card": dict(card(c["from"]), display_name="EVIL")}, sender=c["from"]))
            else:
                await publish(envelope("whois", {"type": "response", "peer_card": dict(card(args.peer), display_name="EVIL")}, to=c["to"], reply_to="never asked"))
        elif c["do"] == "intrude":
            there = f"agh.network.v0.{c['workspace']}.{args.channel}.broadcast"
            await nc.subscribe(there, cb=heard)
            await nc.publish(there, encode(envelope("greet", {"peer_card": card(args.peer)}, workspace_id=c["workspace"])))
        await nc.flush()
        tell("done", do=c["do"])
    await nc.close()


try:
    asyncio.run(main())
except nats.errors.Error as err:
    tell("refused", error=repr(err))
    sys.exit(3)
