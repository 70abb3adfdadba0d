"""Verify the transcript of an ASP session as a Parley hub exports it, without Parley.

    python3 check.py session.json

It needs the package cryptography and follows docs/asp.md, "The file of a transcript". It prints
what it found as JSON and exits with 0 if the file holds, 1 if it does not.
"""

import base64
import hashlib
import json
import math
import sys
import unicodedata

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

ZERO = "sha256:" + "0" * 64


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
        m, own = record.get("message"), []
        if m is None:
            if record.get("format") == "application/asp+msgpack":
                raise ValueError("this example reads sessions in JSON only")
            m = parse(base64.b64decode(record["raw"]))
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


if __name__ == "__main__":
    try:
        found = verify(sys.argv[1])
    except (ValueError, KeyError, IndexError, TypeError) as e:
        found = {"ok": False, "messages": 0, "faults": ["not a transcript as the server wrote it: %s" % e]}
    print(json.dumps(found, ensure_ascii=False))
    sys.exit(0 if found["ok"] else 1)
