"""An agent of the A2E Python SDK, unmodified: it answers one request of its inbox
with what another agent says to it.

usage: a2e_relay.py BASE_URL TOKEN AGENT

Writes two lines of JSON: that it is ready, and what it heard and was answered.
"""
import json
import logging
import os
import sys

if os.environ.get("A2E_SDK"):
    sys.path.insert(0, os.environ["A2E_SDK"])

from a2e.caps.tools.client import ToolAPI
from a2e.core.client.client import A2EClient
from a2e.core.transports.http import HTTPTransport

logging.basicConfig(level=logging.ERROR)
log = logging.getLogger("agent")


def main():
    url, token, ask = sys.argv[1:4]
    client = A2EClient(HTTPTransport(url, log), log, auth_token=token, agent_caps=["tools"])
    client.connect()
    tools = ToolAPI(client)
    print(json.dumps({"ready": True}), flush=True)
    got = tools.call("parley_inbox", {"max": 1}, timeout=300).data["messages"][0]
    # The SDK's id of the turn is the trace of what it works on.
    trace = got["metadata"]["parley"]["trace"]
    answer = tools.call("parley_ask", {"agent": ask, "content": got["content"] + " > a2e"}, timeout=120, correlation_id=trace)
    said = answer.data["text"] + " < a2e" if answer.success else answer.error
    replied = tools.call("parley_reply", {"id": got["id"], "content": said}, timeout=60).success
    client.disconnect()
    print(json.dumps({"heard": got["content"], "from": got["from"], "answer": answer.data, "replied": replied}), flush=True)


main()
