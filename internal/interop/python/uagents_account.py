"""A chat agent of uagents-core alone, registered for an account at the hub.

It answers each chat message with "core heard " and its text. It tells what
happens in lines of JSON on its standard output, and obeys lines of JSON on its
standard input:
  {"do": "register", "token": T, "name": N, "readme": R, …}   register_chat_agent
  {"do": "batch", "token": T, "names": [N]}                   register_batch_in_agentverse, of the agent alone
  {"do": "check"}                                             the library's command line: agent --all --raw
  {"do": "send", "to": ADDRESS, "text": T}                    send_message_to_agent
"""

import argparse
import contextlib
import io
import json
import sys
import threading
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

from uagents_core.agentverse.cli.agent import check_agent
from uagents_core.agentverse.cli.resolve import resolve
from uagents_core.config import AgentverseConfig
from uagents_core.contrib.protocols.chat import ChatAcknowledgement, ChatMessage, EndSessionContent, TextContent
from uagents_core.envelope import Envelope
from uagents_core.identity import Identity
from uagents_core.registration import BatchRegistrationRequest, RegistrationRequest
from uagents_core.utils.messages import parse_envelope, send_message_to_agent
from uagents_core.utils.registration import (
    AgentverseRequestError,
    RegistrationRequestCredentials,
    register_batch_in_agentverse,
    register_chat_agent,
)

parser = argparse.ArgumentParser()
parser.add_argument("--hub", required=True)
parser.add_argument("--seed", required=True)
args = parser.parse_args()

prefix, base = args.hub.split("://")
hub = AgentverseConfig(base_url=base, http_prefix=prefix)
identity = Identity.from_seed(args.seed, 0)
lock = threading.Lock()


def tell(event, **more):
    with lock:
        print(json.dumps({"event": event, **more}), flush=True)


def say(to, session, msg):
    return send_message_to_agent(to, msg, identity, session_id=session, agentverse_config=hub)


def now():
    return datetime.now(timezone.utc)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
        env = Envelope.model_validate_json(body)
        env.verify()
        msg = parse_envelope(env, {ChatMessage, ChatAcknowledgement})
        if isinstance(msg, ChatAcknowledgement):
            tell("ack", sender=env.sender)
            return
        text = "".join(c.text for c in msg.content if isinstance(c, TextContent))
        ended = any(isinstance(c, EndSessionContent) for c in msg.content)
        tell("chat", sender=env.sender, text=text)
        say(env.sender, env.session, ChatAcknowledgement(timestamp=now(), acknowledged_msg_id=msg.msg_id))
        if not ended:
            content = [TextContent(type="text", text="core heard " + text), EndSessionContent(type="end-session")]
            say(env.sender, env.session, ChatMessage(timestamp=now(), msg_id=uuid4(), content=content))

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
endpoint = f"http://127.0.0.1:{server.server_port}/submit"


def obey(c):
    if c["do"] == "register":
        credentials = RegistrationRequestCredentials(agentverse_api_key=c.pop("token"), agent_seed_phrase=args.seed)
        c.pop("do")
        try:
            register_chat_agent(endpoint=endpoint, active=True, credentials=credentials, agentverse_config=hub, **c)
            tell("registered")
        except AgentverseRequestError as error:
            tell("refused", error=str(error))
    elif c["do"] == "batch":
        agents = [RegistrationRequest(address=identity.address, name=n, url=endpoint) for n in c["names"]]
        tell("batch", ok=register_batch_in_agentverse(BatchRegistrationRequest(agents=agents), c["token"], agentverse_config=hub))
    elif c["do"] == "check":
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            check_agent(identity.address, full_readme=True, include_raw_records=True, agentverse=hub)
            resolve(identity.address, agentverse=hub)
        tell("check", text=out.getvalue())
    elif c["do"] == "send":
        say(c["to"], uuid4(), ChatMessage(timestamp=now(), msg_id=uuid4(), content=[TextContent(type="text", text=c["text"])]))
        tell("sent")


tell("ready", address=identity.address)
for line in sys.stdin:
    obey(json.loads(line))
