"""An independent ASP peer: it verifies exported transcripts, and signs.

Written from the message format and docs/asp.md, with nothing of Parley's.

    asp_peer.py verify FILE
    asp_peer.py card KEYFILE AGENT ORG
    asp_peer.py sign KEYFILE AGENT ORG SESSION SEQUENCE PREVIOUS PERFORMATIVE BODY [RECIPIENT RECIPIENT_ORG]
"""

import base64
import datetime
import hashlib
import json
import math
import os
import sys
import time
import unicodedata

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ZERO = "sha256:" + "0" * 64


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def unb64(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def no_duplicates(pairs):
    out = {}
    for key, value in pairs:
        key = unicodedata.normalize("NFC", key)
        if key in out:
            raise ValueError("duplicate key " + key)
        out[key] = value
    return out


def parse(text):
    return json.loads(text, object_pairs_hook=no_duplicates, parse_constant=lambda c: (_ for _ in ()).throw(ValueError(c)))


def number(value):
    """A number as ECMAScript writes it."""
    double = float(value)
    if math.isinf(double) or math.isnan(double):
        raise ValueError("number out of range")
    if double == 0:
        return "0"
    sign, double = ("-" if double < 0 else ""), abs(double)
    mantissa, _, exponent = ("%r" % double).partition("e")
    whole, _, fraction = mantissa.partition(".")
    if fraction == "0":
        fraction = ""
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    n = len(digits)
    if n <= point <= 21:
        return sign + digits + "0" * (point - n)
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    e = point - 1
    return sign + digits[0] + ("." + digits[1:] if n > 1 else "") + "e" + ("+" if e >= 0 else "-") + str(abs(e))


SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def string(text):
    text = unicodedata.normalize("NFC", text)
    return '"' + "".join(SHORT.get(c) or ("\\u%04x" % ord(c) if c < " " else c) for c in text) + '"'


def canonical(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, str):
        return string(value)
    if isinstance(value, list):
        return "[" + ",".join(canonical(v) for v in value) + "]"
    keys = sorted(value, key=lambda k: k.encode("utf-16-be"))
    return "{" + ",".join(string(k) + ":" + canonical(value[k]) for k in keys) + "}"


def digest(value):
    return "sha256:" + hashlib.sha256(canonical(value).encode()).hexdigest()


def signing_input(m):
    i = m["integrity"]
    parts = [m["version"], m["sessionId"], str(m["sequenceNumber"]), m["timestamp"], m["sender"]["agentId"], m["performative"], i["hash"], i["previousHash"]]
    return "\0".join(parts).encode()


def thumbprint(jwk):
    text = json.dumps({k: jwk[k] for k in ("crv", "kty", "x", "y")}, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def check_proof(m, card, faults):
    head, payload, signature = m["sender"]["dpopProof"].split(".")
    header, claims = parse(unb64(head)), parse(unb64(payload))
    if header["typ"] != "dpop+jwt" or header["alg"] != "ES256" or "d" in header["jwk"]:
        faults.append("dpop_bad_header")
        return
    if thumbprint(header["jwk"]) != thumbprint(card["dpopPublicKey"]):
        faults.append("dpop_key_mismatch")
    x, y = (int.from_bytes(unb64(header["jwk"][k]), "big") for k in "xy")
    raw = unb64(signature)
    der = utils.encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
    try:
        ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key().verify(der, (head + "." + payload).encode(), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        faults.append("dpop_bad_signature")
    if claims["htm"] != "ASP" or claims["htu"] != "asp://" + m["sessionId"]:
        faults.append("dpop_htu_mismatch")


def verify(path):
    with open(path, "rb") as f:
        lines = f.read().split(b"\n")
    faults, messages, previous, count = [], 0, ZERO, {}

    def sealed(line, prefix, suffix):
        if not line.startswith(prefix) or not line.endswith(suffix):
            raise ValueError("not a line of a transcript")
        body = line[len(prefix) : len(line) - len(suffix)]
        text, _, chain = body.rpartition(b',"chain":"')
        return text, chain.rstrip(b'"').decode()

    header_text, stated = sealed(lines[0], b'{"header":', b",")
    chain = hashlib.sha256(hashlib.sha256(b"asp-transcript\0").digest() + header_text).digest()
    if chain.hex() != stated:
        faults.append("header: chain")
    header = parse(header_text)
    cards = {p["agentId"]: [c["card"] for c in p["cards"]] for p in header["participants"]}
    position = 0
    rest = lines[2:]
    while rest and not rest[0].startswith(b"],"):
        if rest[0] in (b"],", b"]"):
            break
        line = rest.pop(0)
        text, stated = sealed(line, b',{"record":' if position else b'{"record":', b"}")
        chain = hashlib.sha256(chain + text).digest()
        where = "message at position %d: " % position
        if chain.hex() != stated:
            faults.append(where + "chain")
        record = parse(text)
        if record["position"] != position:
            faults.append(where + "position")
        position += 1
        if record["kind"] != "message":
            continue
        messages += 1
        m, own = record["message"], []
        if digest(m["content"]) != m["integrity"]["hash"]:
            own.append("hash_mismatch")
        if m["integrity"]["previousHash"] != previous:
            own.append("chain_mismatch")
        previous = m["integrity"]["hash"]
        if m["sessionId"] != header["sessionId"]:
            own.append("session_mismatch")
        sender = m["sender"]["agentId"]
        if m["sequenceNumber"] != count.get(sender, 0):
            own.append("sequence")
        count[sender] = m["sequenceNumber"] + 1
        if digest(m) != record["digest"]:
            own.append("digest")
        for card in reversed(cards[sender]):
            try:
                key = Ed25519PublicKey.from_public_bytes(unb64(card["signingPublicKey"]["x"]))
                key.verify(bytes.fromhex(m["integrity"]["signature"].removeprefix("ed25519:")), signing_input(m))
                check_proof(m, card, own)
                break
            except InvalidSignature:
                continue
        else:
            own.append("bad_signature")
        faults += [where + f for f in own]
    trailer = parse(b"{" + b"\n".join(rest).strip().removeprefix(b"],").strip())["trailer"]
    if (trailer["count"], trailer["messages"], trailer["head"], trailer["chain"]) != (position, messages, previous, chain.hex()):
        faults.append("trailer: cut or lengthened")
    if "serverKey" in header:
        text = "\0".join([str(trailer["count"]), str(trailer["messages"]), trailer["head"], trailer["state"], trailer["chain"]])
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(header["serverKey"].removeprefix("ed25519:")))
        try:
            key.verify(bytes.fromhex(trailer["signature"].removeprefix("ed25519:")), b"asp-transcript\0" + text.encode())
        except InvalidSignature:
            faults.append("trailer: bad_signature")
    return {"ok": not faults, "messages": messages, "head": previous, "faults": faults}


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
    return {"agentId": agent, "orgId": org, "name": "Python peer", "protocols": ["asp/1.0"], "conformanceLevel": "minimal",
            "signingPublicKey": {"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}, "dpopPublicKey": jwk(proving)}


def uuid7():
    raw = bytearray(int(time.time() * 1000).to_bytes(6, "big") + os.urandom(10))
    raw[6], raw[8] = raw[6] & 0x0F | 0x70, raw[8] & 0x3F | 0x80
    h = raw.hex()
    return "-".join([h[:8], h[8:12], h[12:16], h[16:20], h[20:]])


def sign(path, agent, org, session, sequence, previous, performative, body, recipient=None, recipient_org=None):
    signing, proving = keys(path)
    now = datetime.datetime.now(datetime.timezone.utc)
    head = b64(json.dumps({"typ": "dpop+jwt", "alg": "ES256", "jwk": jwk(proving)}).encode())
    payload = b64(json.dumps({"htm": "ASP", "htu": "asp://" + session, "iat": int(now.timestamp()), "jti": b64(os.urandom(16))}).encode())
    r, s = utils.decode_dss_signature(proving.sign((head + "." + payload).encode(), ec.ECDSA(hashes.SHA256())))
    proof = head + "." + payload + "." + b64(r.to_bytes(32, "big") + s.to_bytes(32, "big"))
    content = {"mimeType": "application/json", "body": parse(body)}
    m = {"version": "asp/1.0", "messageId": uuid7(), "sessionId": session, "sequenceNumber": int(sequence),
         "timestamp": now.strftime("%Y-%m-%dT%H:%M:%S.") + "%03dZ" % (now.microsecond // 1000),
         "sender": {"agentId": agent, "orgId": org, "trustScore": 50, "dpopProof": proof},
         "performative": performative, "content": content,
         "integrity": {"hash": digest(content), "previousHash": previous}}
    if recipient:
        m["recipient"] = {"agentId": recipient, "orgId": recipient_org}
    m["integrity"]["signature"] = "ed25519:" + signing.sign(signing_input(m)).hex()
    return m


if __name__ == "__main__":
    command = {"verify": verify, "card": card, "sign": sign}[sys.argv[1]]
    print(json.dumps(command(*sys.argv[2:]), ensure_ascii=False))
