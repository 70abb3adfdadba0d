package uagents

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/bech32"
	"github.com/parley-hub/parley/internal/jsonx"
)

// vectorCase is one case of a vector file.
type vectorCase struct {
	Name   string         `json:"name"`
	Input  map[string]raw `json:"input"`
	Expect map[string]raw `json:"expect"`
}

type raw = json.RawMessage

type vectorFile struct {
	Keys  map[string]any `json:"keys"`
	Cases []vectorCase   `json:"cases"`
}

// vectorRunners maps each file to its runner. A file without a runner fails the test.
func vectorRunners() map[string]func(*testing.T, vectorFile, vectorCase) {
	return map[string]func(*testing.T, vectorFile, vectorCase){
		"almanac_attestation": vectorAttestation,
		"attestation_token":   vectorToken,
		"bech32":              vectorBech32,
		"chat_messages":       vectorChat,
		"envelope_digest":     vectorDigest,
		"envelope_parse":      vectorParse,
		"envelope_serialise":  vectorSerialise,
		"envelope_verify":     vectorVerify,
		"identifier_parse":    vectorIdentifier,
		"identity_from_seed":  vectorIdentity,
		"message_serialise":   vectorMessage,
		"other_signatures":    vectorOther,
		"payload_base64":      vectorPayload,
		"protocol_digest":     vectorProtocol,
		"schema_digest":       vectorSchema,
	}
}

func vectorDir() string {
	if dir := os.Getenv("PARLEY_VECTORS"); dir != "" {
		return filepath.Join(dir, "uagents")
	}
	return "../testdata/vectors/uagents"
}

func loadVectors(t *testing.T, path string) vectorFile {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f vectorFile
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	if len(f.Cases) == 0 {
		t.Fatal("no cases")
	}
	return f
}

func TestVectors(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(vectorDir(), "*.json"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	runners := vectorRunners()
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".json")
		t.Run(name, func(t *testing.T) {
			f := loadVectors(t, path)
			if name == "http_submit" {
				vectorHTTP(t, f)
				return
			}
			run := runners[name]
			if run == nil {
				t.Fatalf("no runner for %s", path)
			}
			for _, c := range f.Cases {
				t.Run(c.Name, func(t *testing.T) {
					defer func() {
						if p := recover(); p != nil {
							t.Errorf("panic: %v", p) // the other cases still count
						}
					}()
					run(t, f, c)
				})
			}
		})
	}
}

// field reads a member of a case and fails when it is missing.
func field[T any](t testing.TB, m map[string]raw, name string) T {
	t.Helper()
	var v T
	b, ok := m[name]
	if !ok {
		t.Fatalf("case has no %q", name)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return v
}

// known fails when a case holds members that the runner would ignore.
func known(t testing.TB, m map[string]raw, names ...string) {
	t.Helper()
	for k := range m {
		found := false
		for _, n := range names {
			found = found || n == k
		}
		if !found {
			t.Fatalf("unknown member %q", k)
		}
	}
}

func policy(t testing.TB, c vectorCase) string {
	if _, ok := c.Expect["hub_policy"]; !ok {
		return ""
	}
	return field[string](t, c.Expect, "hub_policy")
}

func same(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// UAG-001, UAG-002, UAG-003, UAG-004.
func vectorIdentity(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "ok", "private_key_hex", "public_key_hex", "address", "identifier_mainnet", "identifier_testnet",
		"default_display_name", "storage_name", "wallet_private_key_hex", "wallet_address", "seed_hash_hex",
		"prefix_hash_hex", "reference_error")
	known(t, c.Input, "seed", "index")
	seed, index := field[string](t, c.Input, "seed"), field[int](t, c.Input, "index")
	id, err := IdentityFromSeed(seed, index)
	if ok := field[bool](t, c.Expect, "ok"); !ok {
		if !errors.Is(err, ErrSeedIndex) { // UAG-002
			t.Fatalf("err = %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	want := func(name string) string { return field[string](t, c.Expect, name) }
	same(t, "private key", hex.EncodeToString(id.PrivateKey()), want("private_key_hex"))
	same(t, "public key", hex.EncodeToString(id.Public()), want("public_key_hex"))
	same(t, "address", id.Address(), want("address"))
	same(t, "identifier", id.Identifier(false), want("identifier_mainnet"))
	same(t, "test identifier", id.Identifier(true), want("identifier_testnet"))
	same(t, "short name", id.ShortName(), want("default_display_name"))
	same(t, "storage name", id.ShortName(), want("storage_name"))
	wallet, err := WalletKeyFromSeed(seed, index)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "wallet key", hex.EncodeToString(wallet), want("wallet_private_key_hex"))
	address, err := WalletAddress(wallet)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "wallet address", address, want("wallet_address"))
	if len(id.Address()) != addressLength || !strings.HasPrefix(id.Address(), "agent1q") {
		t.Errorf("address %s", id.Address())
	}
}

// UAG-005, UAG-006.
func vectorBech32(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "ok", "hrp", "data_hex", "string", "reference_error")
	ok := field[bool](t, c.Expect, "ok")
	if _, decode := c.Input["string"]; !decode {
		known(t, c.Input, "hrp", "data_hex")
		data, err := hex.DecodeString(field[string](t, c.Input, "data_hex"))
		if err != nil {
			t.Fatal(err)
		}
		s, err := bech32.Encode(field[string](t, c.Input, "hrp"), data)
		if (err == nil) != ok {
			t.Fatalf("err = %v", err)
		}
		if !ok {
			same(t, "text", AsError(bechError(err)).Text, field[string](t, c.Expect, "reference_error"))
		}
		if ok {
			same(t, "text", s, field[string](t, c.Expect, "string"))
		}
		return
	}
	known(t, c.Input, "string")
	hrp, data, err := bech32.DecodeNoLimit(field[string](t, c.Input, "string"))
	if (err == nil) != ok {
		t.Fatalf("err = %v, want ok %v", err, ok)
	}
	if !ok {
		// The reference sends this text.
		same(t, "text", AsError(bechError(err)).Text, field[string](t, c.Expect, "reference_error"))
		return
	}
	same(t, "hrp", hrp, field[string](t, c.Expect, "hrp"))
	same(t, "data", hex.EncodeToString(data), field[string](t, c.Expect, "data_hex"))
}

// UAG-007.
func vectorIdentifier(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "prefix", "name", "address", "rebuilt", "valid_prefix", "is_user_address_of_input",
		"is_valid_address_of_input")
	known(t, c.Input, "identifier")
	s := field[string](t, c.Input, "identifier")
	id := ParseIdentifier(s)
	want := func(name string) string { return field[string](t, c.Expect, name) }
	same(t, "prefix", id.Prefix, want("prefix"))
	same(t, "name", id.Name, want("name"))
	same(t, "address", id.Address, want("address"))
	same(t, "rebuilt", id.String(), want("rebuilt"))
	if id.Valid() != field[bool](t, c.Expect, "valid_prefix") {
		t.Errorf("valid prefix: %v", id.Valid())
	}
	if IsUser(s) != field[bool](t, c.Expect, "is_user_address_of_input") {
		t.Errorf("user address: %v", IsUser(s))
	}
	if IsAddress(s) != field[bool](t, c.Expect, "is_valid_address_of_input") {
		t.Errorf("address: %v", IsAddress(s))
	}
	// UAG-008.
	if _, err := resolveAddress(s); !id.Valid() && err == nil {
		t.Error("an identifier with an unknown prefix resolves")
	}
}

// UAG-011.
func vectorSerialise(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "json")
	known(t, c.Input, "envelope")
	e, err := Decode(c.Input["envelope"])
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "json", string(b), field[string](t, c.Expect, "json"))
	again, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if b2, err := again.Encode(); err != nil || string(b2) != string(b) {
		t.Errorf("round trip: %s, %v", b2, err)
	}
	answer, err := e.encodeAnswer()
	if err != nil || jsonx.Valid(answer, 0) != nil {
		t.Errorf("answer: %s, %v", answer, err)
	}
}

// UAG-012, UAG-013, UAG-014, UAG-015, UAG-016, UAG-017, UAG-018.
func vectorParse(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "accepted", "normalised_json", "session_in_digest", "error_fields", "error_types", "note")
	known(t, c.Input, "body")
	body := field[string](t, c.Input, "body")
	e, err := Decode([]byte(body))
	if accepted := field[bool](t, c.Expect, "accepted"); accepted != (err == nil) {
		t.Fatalf("err = %v, want accepted %v", err, accepted)
	}
	if err != nil {
		if _, ok := c.Expect["error_fields"]; ok && !errors.Is(err, ErrShape) {
			t.Errorf("err = %v, want ErrShape", err)
		}
		return
	}
	b, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	same(t, "normalised", string(b), field[string](t, c.Expect, "normalised_json"))
	same(t, "session", e.Session, field[string](t, c.Expect, "session_in_digest"))
	same(t, "raw", string(e.Raw()), body)
}

// UAG-019, UAG-020.
func vectorPayload(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "ok", "text", "payload", "hub_policy", "reference_error", "note")
	if _, encode := c.Input["text"]; encode {
		known(t, c.Input, "text")
		same(t, "payload", EncodePayload([]byte(field[string](t, c.Input, "text"))),
			field[string](t, c.Expect, "payload"))
		return
	}
	known(t, c.Input, "payload")
	ok := field[bool](t, c.Expect, "ok")
	switch p := policy(t, c); p {
	case "reject":
		ok = false
	case "":
	default:
		t.Fatalf("unknown policy %q", p)
	}
	payload := field[*string](t, c.Input, "payload")
	if payload == nil {
		m, err := (&Envelope{}).Message()
		if err != nil || string(m.Payload) != field[string](t, c.Expect, "text") {
			t.Fatalf("got %q, %v", m.Payload, err)
		}
		return
	}
	b, err := decodePayloadLenient(*payload)
	if (err == nil) != ok {
		t.Fatalf("err = %v, want ok %v", err, ok)
	}
	strict, strictErr := DecodePayload(*payload)
	if strictErr == nil && (err != nil || string(strict) != string(b)) {
		t.Errorf("strict takes more than lenient")
	}
	if ok {
		same(t, "text", string(b), field[string](t, c.Expect, "text"))
		if EncodePayload(b) == *payload && strictErr != nil {
			t.Errorf("strict refuses the plain form: %v", strictErr)
		}
	}
}

// UAG-022, UAG-023, UAG-024, UAG-025, UAG-026.
func vectorDigest(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "ok", "digest_hex", "reference_error")
	known(t, c.Input, "envelope")
	e, err := Decode(c.Input["envelope"])
	if err != nil {
		t.Fatal(err)
	}
	d, err := e.Digest()
	if !field[bool](t, c.Expect, "ok") {
		if !errors.Is(err, ErrRange) || AsError(err).Status() != 400 { // UAG-026
			t.Fatalf("err = %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	same(t, "digest", hex.EncodeToString(d[:]), field[string](t, c.Expect, "digest_hex"))
}

// UAG-027, UAG-028, UAG-029, UAG-030, UAG-031,
// UAG-032, UAG-033, UAG-034, UAG-035. The policies are those of a zero Verifier,
// whose clock stands just before the expiry in the vectors.
func vectorVerify(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "valid", "digest_hex", "hub_policy", "wire_error", "reference_error", "note")
	known(t, c.Input, "envelope", "now")
	e, err := Decode(c.Input["envelope"])
	if err != nil {
		t.Fatal(err)
	}
	now := int64(1767225590)
	if c.Input["now"] != nil {
		now = field[int64](t, c.Input, "now")
	}
	valid := field[bool](t, c.Expect, "valid")
	err = e.VerifySignature()
	v := &Verifier{Now: func() time.Time { return time.Unix(now, 0) }}
	_, full := v.Check(e)
	// The server refuses the same envelopes, with the text of the vectors.
	s := &Server{Verifier: v, Log: quiet(), Resolve: func(_ context.Context, address string) (*Agent, error) {
		return &Agent{Address: address, Handler: func(context.Context, *Request) (Response, error) {
			return Response{},
				nil
		}}, nil
	}}
	status, answer := submit(s, c.Input["envelope"])
	if refused := status != 200; refused != (full != nil) && e.Payload != nil && *e.Payload != "" {
		t.Errorf("Check = %v, but the server answers %d %s", full, status, answer)
	}
	if c.Expect["wire_error"] != nil {
		same(t, "status", strconv.Itoa(status), "400")
		same(t, "answer", answer, `{"error": "`+field[string](t, c.Expect, "wire_error")+`"}`)
	}
	p := policy(t, c)
	switch p {
	case "":
	case "do_not_trust_field":
		if full != nil {
			t.Errorf("Check: %v", full)
		}
	case "reject_noncanonical_address":
		if !errors.Is(err, ErrAddress) || !errors.Is(full, ErrAddress) { // UAG-009
			t.Errorf("err = %v, %v", err, full)
		}
		return
	default:
		want := map[string]error{
			"expires_required_or_cap_lifetime": ErrAmbiguous,
			"check_schema_digest_grammar":      ErrSchemaDigest,
			"cap_expires_in_future":            ErrHorizon,
			"reject_expired":                   ErrStale,
		}[p]
		if want == nil {
			t.Fatalf("unknown policy %q", p)
		}
		if !errors.Is(full, want) {
			t.Errorf("Check = %v, want %v", full, want)
		}
	}
	if (err == nil) != valid {
		t.Fatalf("err = %v, want valid %v", err, valid)
	}
	if valid {
		d, err := e.Digest()
		if err != nil {
			t.Fatal(err)
		}
		same(t, "digest", hex.EncodeToString(d[:]), field[string](t, c.Expect, "digest_hex"))
		return
	}
	if full == nil {
		t.Error("Check accepts a signature that VerifySignature refuses")
	}
}

// UAG-063: both texts of a message decode to the same content.
func vectorMessage(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "agent_text", "core_helper_text", "payload_from_agent", "payload_from_core_helper")
	known(t, c.Input, "value", "digest")
	if d := field[string](t, c.Input, "digest"); !IsSchemaDigest(d) {
		t.Errorf("digest %s", d)
	}
	agent, core := field[string](t, c.Expect, "agent_text"), field[string](t, c.Expect, "core_helper_text")
	if string(c.Input["value"]) != "null" {
		got, err := MessageJSON(c.Input["value"])
		if err != nil {
			t.Fatal(err)
		}
		same(t, "agent text", string(got), agent)
		got, err = compactJSON(c.Input["value"])
		if err != nil {
			t.Fatal(err)
		}
		same(t, "core text", string(got), core)
	}
	for name, text := range map[string]string{"payload_from_agent": agent, "payload_from_core_helper": core} {
		payload := field[string](t, c.Expect, name)
		same(t, name, EncodePayload([]byte(text)), payload)
		if b, err := DecodePayload(payload); err != nil || string(b) != text {
			t.Errorf("%s: %s, %v", name, b, err)
		}
	}
	if again, err := compactJSON([]byte(agent)); err == nil {
		same(t, "the two texts", string(again), core)
	} else if string(c.Input["value"]) != "null" {
		t.Error(err)
	}
}

// Digest §4, other signatures; UAG-080.
func vectorOther(t *testing.T, _ vectorFile, c vectorCase) {
	known(t, c.Expect, "valid", "digest_hex", "sign_doc_text", "sign_doc_base64", "low_s")
	in := func(name string) string { return field[string](t, c.Input, name) }
	var err error
	var digest string
	switch {
	case c.Input["challenge"] != nil:
		known(t, c.Input, "address", "challenge", "challenge_response")
		err = VerifyText(in("address"), []byte(in("challenge")), in("challenge_response"))
		digest = hexSHA256(in("challenge"))
	case c.Input["contract_address"] != nil:
		known(t, c.Input, "contract_address", "agent_address", "timestamp", "wallet_address", "signature")
		d := registrationDigest(in("contract_address"), in("agent_address"), field[uint64](t, c.Input, "timestamp"),
			in("wallet_address"))
		err, digest = VerifyDigest(in("agent_address"), d, in("signature")), hex.EncodeToString(d[:])
	case c.Input["data_text"] != nil:
		known(t, c.Input, "data_text", "signer", "signature_base64")
		doc := signDoc(in("signer"), []byte(in("data_text")))
		same(t, "document", doc, field[string](t, c.Expect, "sign_doc_text"))
		same(t, "document", EncodePayload([]byte(doc)), field[string](t, c.Expect, "sign_doc_base64"))
		same(t, "digest", hexSHA256(doc), field[string](t, c.Expect, "digest_hex"))
		if err := VerifyArbitrary(in("signer"), []byte(in("data_text")), in("signature_base64")); err != nil {
			t.Error(err)
		}
		return
	default:
		t.Fatal("unknown operation")
	}
	if valid := field[bool](t, c.Expect, "valid"); valid != (err == nil) {
		t.Fatalf("err = %v, want valid %v", err, valid)
	}
	if c.Expect["digest_hex"] != nil {
		same(t, "digest", digest, field[string](t, c.Expect, "digest_hex"))
	}
}
