package uagents

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func hexSHA256(s string) string {
	d := sha256.Sum256([]byte(s))
	return hex.EncodeToString(d[:])
}

// UAG-059.
func vectorSchema(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "canonical", "digest")
	known(t, c.Input, "schema")
	m, err := ParseModel(c.Input["schema"])
	if err != nil {
		t.Fatal(err)
	}
	b, err := pySorted.write(nil, m.schema)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "canonical", string(b), field[string](t, c.Expect, "canonical"))
	same(t, "digest", m.Digest(), field[string](t, c.Expect, "digest"))
}

// UAG-060, UAG-062.
func vectorProtocol(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "digest", "canonical", "same_as", "valid_protocol_digest", "note")
	if c.Input["digest"] != nil {
		known(t, c.Input, "digest")
		d := field[string](t, c.Input, "digest")
		if got := isLooseProtocolDigest(d); got != field[bool](t, c.Expect, "valid_protocol_digest") {
			t.Errorf("IsLooseProtocolDigest(%q) = %v", d, got)
		}
		return
	}
	known(t, c.Input, "manifest")
	m, err := ParseManifest(c.Input["manifest"])
	if err != nil {
		t.Fatal(err)
	}
	same(t, "digest", m.Digest(), field[string](t, c.Expect, "digest"))
	// A manifest verifies exactly if its own claims are true.
	honest := m.root.get("metadata").get("digest").str() == m.Digest()
	for i, one := range m.root.get("models").vals {
		honest = honest && one.get("digest").str() == m.models[i].Digest()
	}
	if err := m.Verify(); honest != (err == nil) {
		t.Errorf("Verify = %v, honest %v", err, honest)
	}
}

// UAG-064.
func vectorChat(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "text", "schema_digest", "accepted", "normalised", "hub_policy", "reference_error_class", "note")
	if c.Input["kind"] != nil {
		known(t, c.Input, "kind", "value")
		var m *Model
		var decoded any
		var err error
		switch kind := field[string](t, c.Input, "kind"); kind {
		case "ChatMessage":
			m = ModelOf[ChatMessage]()
			decoded, err = DecodeChatMessage(c.Input["value"])
		case "ChatAcknowledgement":
			m = ModelOf[ChatAcknowledgement]()
			decoded, err = DecodeChatAcknowledgement(c.Input["value"])
		default:
			t.Fatalf("unknown kind %q", kind)
		}
		if err != nil {
			t.Fatal(err)
		}
		same(t, "digest", m.Digest(), field[string](t, c.Expect, "schema_digest"))
		want := field[string](t, c.Expect, "text")
		fromText := m.MessageText(c.Input["value"])
		if fromText.Err() != nil {
			t.Fatal(fromText.Err())
		}
		same(t, "from text", string(fromText.Payload), want)
		fromValue := m.Message(decoded)
		if fromValue.Err() != nil {
			t.Fatal(fromValue.Err())
		}
		// Go maps have no order: compare with sorted members.
		same(t, "from value", sortedJSON(t, fromValue.Payload), sortedJSON(t, []byte(want)))
		return
	}
	known(t, c.Input, "text")
	accepted := field[bool](t, c.Expect, "accepted")
	switch p := policy(t, c); p {
	case "reject":
		accepted = false
	case "":
	default:
		t.Fatalf("unknown policy %q", p)
	}
	text := field[string](t, c.Input, "text")
	m, err := DecodeChatMessage([]byte(text))
	if (err == nil) != accepted {
		t.Fatalf("err = %v, want accepted %v", err, accepted)
	}
	if valid := ModelOf[ChatMessage]().Validate([]byte(text)); (valid == nil) != accepted {
		t.Errorf("Validate = %v, want accepted %v", valid, accepted)
	}
	if err != nil {
		if !errors.Is(err, ErrContent) {
			t.Errorf("err = %v", err)
		}
		return
	}
	out := m.Message()
	if out.Err() != nil {
		t.Fatal(out.Err())
	}
	same(t, "normalised", sortedJSON(t, out.Payload), sortedJSON(t, c.Expect["normalised"]))
}

func sortedJSON(t *testing.T, b []byte) string {
	t.Helper()
	n, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pySigned.write(nil, n)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// UAG-068, UAG-069, UAG-071.
func vectorAttestation(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "signed_text", "digest_hex", "valid", "schema_error_fields", "reference_error")
	known(t, c.Input, "kind", "body")
	var a *Attestation
	var err error
	switch kind := field[string](t, c.Input, "kind"); kind {
	case "attestation":
		a, err = decodeAttestation(c.Input["body"], false)
	case "status":
		a, err = decodeAttestation(c.Input["body"], true)
	default:
		t.Fatalf("unknown kind %q", kind)
	}
	if c.Expect["schema_error_fields"] != nil {
		if !errors.Is(err, ErrAttestation) {
			t.Fatalf("err = %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := a.SignedText()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "signed text", string(b), field[string](t, c.Expect, "signed_text"))
	same(t, "digest", hexSHA256(string(b)), field[string](t, c.Expect, "digest_hex"))
	if err := a.VerifySignature(); (err == nil) != field[bool](t, c.Expect, "valid") {
		t.Errorf("VerifySignature = %v", err)
	}
	// The encoded attestation decodes to the same statement.
	sent, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	again, err := decodeAttestation(sent, a.Active != nil)
	if err != nil {
		t.Fatal(err)
	}
	b2, err := again.SignedText()
	if err != nil || string(b2) != string(b) || again.Signature != a.Signature {
		t.Errorf("round trip: %s, %v", b2, err)
	}
}

// UAG-073.
func vectorToken(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "valid", "valid_from", "valid_to", "public_key_hex", "signed_digest_hex", "payload_hex",
		"nonce_hex", "reason")
	known(t, c.Input, "token", "expected_address", "now")
	now := field[int64](t, c.Input, "now")
	token, address := field[string](t, c.Input, "token"), field[string](t, c.Input, "expected_address")
	v := TokenVerifier{Now: func() time.Time { return time.Unix(now, 0) }, Skew: -1}
	got, err := v.Verify(token, address)
	if field[bool](t, c.Expect, "valid") != (err == nil) {
		t.Fatalf("err = %v", err)
	}
	if err != nil {
		want := map[string]error{"expired": ErrTokenExpired, "address mismatch": ErrOtherAgent,
			"signature": ErrToken}[field[string](t, c.Expect, "reason")]
		if want != nil && !errors.Is(err, want) {
			t.Errorf("err = %v, want %v", err, want)
		}
		return
	}
	payload := field[string](t, c.Expect, "payload_hex")
	if got.From != field[uint64](t, c.Expect, "valid_from") || got.To != field[uint64](t, c.Expect, "valid_to") {
		t.Errorf("window %d to %d", got.From, got.To)
	}
	same(t, "nonce", hex.EncodeToString(got.Nonce[:]), field[string](t, c.Expect, "nonce_hex"))
	same(t, "address", got.Address, address)
	same(t, "key", payload[:66], field[string](t, c.Expect, "public_key_hex"))
	b, err := hex.DecodeString(payload)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "payload", "attr:"+EncodePayload(b), token[:strings.LastIndexByte(token, ':')])
	same(t, "digest", hexSHA256(string(b)), field[string](t, c.Expect, "signed_digest_hex"))
	if _, err := v.VerifyHeader("Agent "+token, address); err != nil {
		t.Error(err)
	}
}

// UAG-061: Go types alone give the digests of the library's models.
func TestWellKnownDigests(t *testing.T) {
	type Message struct {
		Message string `json:"message"`
	}
	for _, c := range []struct {
		m    *Model
		want string
	}{
		{ModelOf[ErrorMessage](), ErrorMessageDigest},
		{ModelOf[ChatMessage](), ChatMessageDigest},
		{ModelOf[ChatAcknowledgement](), ChatAcknowledgementDigest},
		{ModelOf[Message](), "model:29f75d79d429d3b533c9a956e3592ce146cd77443f6788ba81cb4e6f7f957e05"},
	} {
		if c.m.Err() != nil {
			t.Fatal(c.m.Err())
		}
		same(t, c.m.Name(), c.m.Digest(), c.want)
	}
	for _, c := range []struct {
		p          *Protocol
		role, want string
	}{
		{ChatProtocol(), "", ChatProtocolDigest},
		{PaymentProtocol(), "", PaymentProtocolDigest},
		{PaymentProtocol(), "seller", PaymentSellerDigest},
		{PaymentProtocol(), "buyer", PaymentBuyerDigest},
		{SubscriptionProtocol(), "", SubscriptionProtocolDigest},
		{&Protocol{Name: "e"}, "", "proto:a98290009c0891bc431c5159357074527d10eff6b2e86a61fcf7721b472f1125"},
	} {
		m, err := c.p.Manifest(c.role)
		if err != nil {
			t.Fatal(err)
		}
		same(t, c.p.Name+" "+c.role, m.Digest(), c.want)
		if err := m.Verify(); err != nil {
			t.Error(err)
		}
		b, err := m.JSON()
		if err != nil || !json.Valid(b) {
			t.Errorf("JSON: %s, %v", b, err)
		}
		again, err := ParseManifest(b)
		if err != nil || again.Digest() != m.Digest() || again.Name() != c.p.Name {
			t.Errorf("round trip: %v", err)
		}
	}
	if _, err := PaymentProtocol().Manifest("nobody"); !errors.Is(err, ErrManifest) {
		t.Errorf("unknown role: %v", err)
	}
}
