"""An ASP agent in Python that a Parley hub asks: it repeats what it is told.

    python3 agent.py card KEYFILE AGENT ORG          # prints the card that the operator adds
    python3 agent.py serve SERVER KEYFILE AGENT ORG

It needs the package cryptography and follows docs/asp.md, "Write an agent that is asked".
"""

import base64
import datetime
import hashlib
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from check import digest, signing_input, unb64


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def keys(path):
    """Two private keys of a file, made at first use."""
    try:
        with open(path) as f:
            stored = json.load(f)
    except FileNotFoundError:
        stored = {"seed": os.urandom(32).hex(), "scalar": ec.generate_private_key(ec.SECP256R1()).private_numbers().private_value}
        with open(path, "w") as f:
            json.dump(stored, f)
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(stored["seed"])), ec.derive_private_key(stored["scalar"], ec.SECP256R1())


def jwk(proving):
    n = proving.public_key().public_numbers()
    return {"kty": "EC", "crv": "P-256", "x": b64(n.x.to_bytes(32, "big")), "y": b64(n.y.to_bytes(32, "big"))}


def card(path, agent, org):
    signing, proving = keys(path)
    raw = signing.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    return {"agentId": agent, "orgId": org, "name": "Python agent", "protocols": ["asp/1.0"], "conformanceLevel": "minimal",
            "signingPublicKey": {"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}, "dpopPublicKey": jwk(proving)}


def uuid7():
    raw = bytearray(int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10))
    raw[6], raw[8] = raw[6] & 0x0F | 0x70, raw[8] & 0x3F | 0x80
    h = raw.hex()
    return "-".join([h[:8], h[8:12], h[12:16], h[16:20], h[20:]])


class Agent:
    def __init__(self, server, path, agent, org):
        self.server, self.agent, self.org = server.rstrip("/"), agent, org
        self.signing, self.proving = keys(path)
        self.token = None

    def proof(self, method, url):
        """A DPoP proof, of an HTTP request or ("ASP", "asp://SESSION") of a message."""
        claims = {"htm": method, "htu": url, "iat": int(time.time()), "jti": b64(os.urandom(16))}
        if self.token:
            claims["ath"] = b64(hashlib.sha256(self.token.encode()).digest())
        text = ".".join(b64(json.dumps(v).encode()) for v in ({"typ": "dpop+jwt", "alg": "ES256", "jwk": jwk(self.proving)}, claims))
        r, s = utils.decode_dss_signature(self.proving.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return text + "." + b64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))

    def call(self, method, path, body=None, kind="application/asp+json"):
        url = self.server + path
        headers = {"DPoP": self.proof(method, url), "Content-Type": kind}
        if self.token:
            headers["Authorization"] = "DPoP " + self.token
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        return urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method))

    def log_in(self):
        self.token = None
        with self.call("POST", "/oauth/token", {"grant_type": "client_credentials", "client_id": self.agent}, "application/json") as r:
            self.token = json.load(r)["access_token"]

    def events(self, path):
        """The server-sent events of a stream: (event, data)."""
        with self.call("GET", path) as stream:
            kind, data = "", ""
            for line in stream:
                name, _, value = line.decode().rstrip("\r\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    data += value
                elif not name and data:
                    yield kind, json.loads(data)
                    kind, data = "", ""

    def check(self, m):
        """Whether a message is from whom it says it is, and as it was sent."""
        with self.call("GET", "/v1/asp/agents/" + urllib.parse.quote(m["sender"]["agentId"], safe="") + "/card") as r:
            key = Ed25519PublicKey.from_public_bytes(unb64(json.load(r)["signingPublicKey"]["x"]))
        if digest(m["content"]) != m["integrity"]["hash"]:
            raise ValueError("the content is not what was signed")
        key.verify(bytes.fromhex(m["integrity"]["signature"].removeprefix("ed25519:")), signing_input(m))

    def say(self, session, performative, body, head, number):
        """Send a message as the next of its session. Where another one came first the server says what it follows."""
        for _ in range(8):
            now = datetime.datetime.now(datetime.timezone.utc)
            content = {"mimeType": "application/json", "body": body}
            m = {"version": "asp/1.0", "messageId": uuid7(), "sessionId": session, "sequenceNumber": number,
                 "timestamp": now.strftime("%Y-%m-%dT%H:%M:%S.") + "%03dZ" % (now.microsecond // 1000),
                 "sender": {"agentId": self.agent, "orgId": self.org, "trustScore": 0, "dpopProof": self.proof("ASP", "asp://" + session)},
                 "performative": performative, "content": content,
                 "integrity": {"hash": digest(content), "previousHash": head}}
            m["integrity"]["signature"] = "ed25519:" + self.signing.sign(signing_input(m)).hex()
            try:
                self.call("POST", "/v1/asp/sessions/" + session + "/messages", m).close()
                return
            except urllib.error.HTTPError as e:
                details = json.load(e)["error"].get("details", {})
                if e.code != 409 or "head" not in details:
                    raise
                head, number = details["head"], details["nextSequenceNumber"]
        raise RuntimeError("the session is too busy")

    def follow(self, session):
        """Take part in one session, until it ends."""
        number = 0
        for kind, data in self.events("/v1/asp/sessions/" + session + "/events"):
            if kind == "session_state" and data["state"] in ("CLOSED", "FAILED"):
                return
            if kind != "message":
                continue
            m = data["envelope"]
            if m["sender"]["agentId"] == self.agent:
                number = m["sequenceNumber"] + 1
                continue
            self.check(m)
            body, head = m["content"]["body"], m["integrity"]["hash"]
            if m["performative"] == "PROPOSE" and body["type"] == "session-invitation":
                self.say(session, "ACCEPT", {"referenceId": body["proposalId"]}, head, number)
            elif m["performative"] == "QUERY":
                answer = {"informType": "result", "referenceId": body["queryId"], "data": {"echo": body.get("parameters", {})}}
                self.say(session, "INFORM", answer, head, number)

    def serve(self):
        """Follow every session to which the agent is invited."""
        self.log_in()
        known = set()
        for kind, data in self.events("/v1/asp/agents/" + urllib.parse.quote(self.agent, safe="") + "/inbox"):
            if kind == "message" and data["envelope"]["sessionId"] not in known:
                known.add(data["envelope"]["sessionId"])
                threading.Thread(target=self.follow, args=(data["envelope"]["sessionId"],), daemon=True).start()


if __name__ == "__main__":
    if sys.argv[1] == "card":
        print(json.dumps(card(*sys.argv[2:])))
    else:
        Agent(*sys.argv[2:]).serve()
