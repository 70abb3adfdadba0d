package asp

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/text/unicode/norm"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A vector file, and one case of it.
type (
	vectorFile struct {
		Description string       `json:"description"`
		Source      string       `json:"source"`
		Cases       []vectorCase `json:"cases"`
	}
	vectorCase struct {
		Name   string      `json:"name"`
		Input  jsonx.Value `json:"input"`
		Expect jsonx.Value `json:"expect"`
		Note   string      `json:"note"`
		Basis  string      `json:"basis"`
	}
)

// vectorRunners has the runner of each file. The numbers are the entries of the
// conformance checklist that the file proves.
var vectorRunners = map[string]func(*testing.T, vectorCase){
	// ASP-001, ASP-002, ASP-003, ASP-004, ASP-005, ASP-006, ASP-007, ASP-008, ASP-009
	"canonical.json": vectorCanonical,
	// ASP-011, ASP-012
	"signing.json": vectorSigning,
	// ASP-034
	"keys.json": vectorKeys,
	// ASP-015
	"weak_keys.json": vectorWeakKeys,
	// ASP-019, ASP-022, ASP-023, ASP-031
	"sessions_valid.json": vectorSession,
	// ASP-013, ASP-014, ASP-016, ASP-017, ASP-018
	// ASP-019, ASP-020, ASP-021, ASP-022
	"sessions_attacked.json": vectorSession,
	// ASP-025, ASP-026, ASP-027, ASP-028
	"ingest.json": vectorIngest,
	// ASP-032, ASP-033, ASP-034, ASP-035, ASP-036, ASP-037, ASP-038, ASP-039, ASP-041
	"dpop.json": vectorDPoP,
	// ASP-050, ASP-051, ASP-052
	"msgpack.json": vectorMsgpack,
	// ASP-010, ASP-042, ASP-043
	"grammar.json": vectorGrammar,
	// ASP-044, ASP-045, ASP-046, ASP-047
	"envelope.json": vectorEnvelope,
	// ASP-048, ASP-049
	"limits.json": vectorLimits,
	// ASP-030
	"ordering.json": vectorOrdering,
	// ASP-053, ASP-054, ASP-056, ASP-059
	"state_machine.json": vectorStateMachine,
	// ASP-081
	"bodies.json": vectorBodies,
	// ASP-064, ASP-065
	"context.json": vectorContext,
	// ASP-060
	"trust.json": vectorTrust,
}

func vectorDir() string {
	if dir := os.Getenv("PARLEY_VECTORS"); dir != "" {
		return filepath.Join(dir, "asp")
	}
	return filepath.Join("..", "testdata", "vectors", "asp")
}

func TestVectors(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(vectorDir(), "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %s: %v", vectorDir(), err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run, ok := vectorRunners[name]
			if !ok {
				t.Fatalf("unknown vector file %s", name)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var f vectorFile
			if err := jsonx.DecodeKnown(b, &f); err != nil {
				t.Fatal(err)
			}
			if len(f.Cases) == 0 {
				t.Fatal("no cases")
			}
			for _, c := range f.Cases {
				t.Run(c.Name, func(t *testing.T) { run(t, c) })
			}
		})
	}
}

// load decodes a part of a case and fails on members unknown to the runner.
func load[T any](t *testing.T, v jsonx.Value) T {
	t.Helper()
	var out T
	if err := jsonx.DecodeKnown(v, &out); err != nil {
		t.Fatalf("case has another shape: %v\n%s", err, v)
	}
	return out
}

func codeOf(err error) string {
	if err == nil {
		return ""
	}
	return asError(err).Code
}

func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if got := codeOf(err); got != code {
		t.Errorf("got %q (%v), want %q", got, err, code)
	}
}

type verdict struct {
	Accept     bool    `json:"accept"`
	Error      string  `json:"error"`
	Path       *string `json:"path"`
	HTTPStatus *int    `json:"httpStatus"`
}

func (v verdict) compare(t *testing.T, err error) {
	t.Helper()
	if v.Accept == (v.Error != "") {
		t.Fatalf("case expects neither or both: %+v", v)
	}
	wantCode(t, err, v.Error)
	if err == nil {
		return
	}
	e := asError(err)
	if v.Path != nil && e.Path != *v.Path {
		t.Errorf("path %q, want %q", e.Path, *v.Path)
	}
	if v.HTTPStatus != nil && e.Status() != *v.HTTPStatus {
		t.Errorf("status %d, want %d", e.Status(), *v.HTTPStatus)
	}
}

func vectorCanonical(t *testing.T, c vectorCase) {
	in := load[struct {
		JSON string `json:"json"`
	}](t, c.Input)
	want := load[struct {
		Canonical string `json:"canonical"`
		Bytes     int    `json:"canonicalUtf8Bytes"`
		Hash      string `json:"hash"`
		JCS       string `json:"jcs"`
		Error     string `json:"error"`
	}](t, c.Expect)
	got, err := Canonical([]byte(in.JSON))
	wantCode(t, err, want.Error)
	if want.Error != "" {
		return
	}
	if string(got) != want.Canonical || len(got) != want.Bytes {
		t.Errorf("got %d bytes\n%s\nwant %d\n%s", len(got), got, want.Bytes, want.Canonical)
	}
	if h, err := ContentHash([]byte(in.JSON)); err != nil || h != want.Hash {
		t.Errorf("hash %s, %v; want %s", h, err, want.Hash)
	}
	jcs, err := jsonx.Canonicalize([]byte(in.JSON))
	if want.JCS == "" {
		want.JCS = want.Canonical
	}
	if err != nil || string(jcs) != want.JCS {
		t.Errorf("RFC 8785: %s, %v; want %s", jcs, err, want.JCS)
	}
}

func vectorSigning(t *testing.T, c vectorCase) {
	in := load[struct {
		Version        string `json:"version"`
		SessionID      string `json:"sessionId"`
		SequenceNumber int64  `json:"sequenceNumber"`
		Timestamp      string `json:"timestamp"`
		AgentID        string `json:"agentId"`
		Performative   string `json:"performative"`
		Hash           string `json:"hash"`
		PreviousHash   string `json:"previousHash"`
		Seed           string `json:"ed25519SeedHex"`
	}](t, c.Input)
	want := load[struct {
		Input     string `json:"signingInputHex"`
		Signature string `json:"signature"`
	}](t, c.Expect)
	e := &Envelope{Version: in.Version, SessionID: in.SessionID, SequenceNumber: in.SequenceNumber,
		Timestamp: in.Timestamp,
		Sender:    Sender{AgentID: in.AgentID}, Performative: Performative(in.Performative),
		Integrity: Integrity{Hash: in.Hash, PreviousHash: in.PreviousHash, Signature: want.Signature}}
	input := e.SigningInput()
	if hex.EncodeToString(input) != want.Input {
		t.Errorf("signing input %x", input)
	}
	key := ed25519.NewKeyFromSeed(unhex(t, in.Seed))
	if sig := "ed25519:" + hex.EncodeToString(ed25519.Sign(key, input)); sig != want.Signature {
		t.Errorf("signature %s", sig)
	}
	if !e.signedBy(key.Public().(ed25519.PublicKey)) {
		t.Error("does not verify")
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func vectorKeys(t *testing.T, c vectorCase) {
	in := load[struct {
		AgentID string `json:"agentId"`
		OrgID   string `json:"orgId"`
		Seed    string `json:"ed25519SeedHex"`
		Scalar  string `json:"p256PrivateScalarHex"`
	}](t, c.Input)
	want := load[struct {
		Public     string            `json:"ed25519PublicKeyHex"`
		PublicJWK  map[string]string `json:"ed25519PublicJwk"`
		Proof      map[string]string `json:"dpopPublicKey"`
		Thumbprint string            `json:"dpopJwkThumbprint"`
		Card       jsonx.Value       `json:"agentCard"`
	}](t, c.Expect)
	id, err := IdentityFromSeed(in.AgentID, in.OrgID, unhex(t, in.Seed), unhex(t, in.Scalar))
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(id.public); got != want.Public {
		t.Errorf("public key %s", got)
	}
	if proof := map[string]string{"kty": "EC", "crv": "P-256", "x": id.proof.x, "y": id.proof.y}; !maps.Equal(proof,
		want.Proof) ||
		id.proof.Thumbprint() != want.Thumbprint {
		t.Errorf("proof key %s, thumbprint %s", id.proof.jwk(), id.proof.Thumbprint())
	}
	card, err := ParseCard(want.Card)
	if err != nil {
		t.Fatal(err)
	}
	if card.AgentID != in.AgentID || card.OrgID != in.OrgID || !card.SigningKey.Equal(id.public) ||
		!card.ProofKey.Equal(id.proof) {
		t.Errorf("card %+v", card)
	}
	// A card of this package has the same keys.
	own := id.Card()
	own.Name, own.Capabilities, own.ConformanceLevel = card.Name, card.Capabilities, card.ConformanceLevel
	text, err := own.JSON()
	if err != nil {
		t.Fatal(err)
	}
	got, err1 := Canonical(text)
	wanted, err2 := Canonical(want.Card)
	if err1 != nil || err2 != nil || string(got) != string(wanted) {
		t.Errorf("card %s\nwant %s", got, wanted)
	}
	if jwk := map[string]string{"kty": "OKP", "crv": "Ed25519", "x": b64.EncodeToString(id.public)}; !maps.Equal(jwk,
		want.PublicJWK) {
		t.Errorf("JWK %v, want %v", jwk, want.PublicJWK)
	}
}

func vectorWeakKeys(t *testing.T, c vectorCase) {
	in := load[struct {
		Public string      `json:"ed25519PublicKeyHex"`
		Forged jsonx.Value `json:"forgedMessage"`
	}](t, c.Input)
	pub := unhex(t, in.Public)
	_, err := SigningKey(pub)
	load[verdict](t, c.Expect).compare(t, err)
	if in.Forged == nil {
		return
	}
	e, err := Decode(in.Forged)
	if err != nil {
		t.Fatal(err)
	}
	if e.signedBy(pub) {
		t.Error("the forged message verifies")
	}
}

func keysOf(t *testing.T, public map[string]string) StaticKeys {
	t.Helper()
	keys := make(StaticKeys)
	for agent, h := range public {
		keys[agent] = []Key{{Signing: unhex(t, h)}}
	}
	return keys
}

func vectorSession(t *testing.T, c vectorCase) {
	type failure struct {
		Index int64    `json:"index"`
		Codes []string `json:"codes"`
	}
	type warning struct {
		Index int64  `json:"index"`
		Code  string `json:"code"`
	}
	in := load[struct {
		PublicKeys map[string]string `json:"publicKeys"`
		Messages   []jsonx.Value     `json:"messages"`
	}](t, c.Input)
	want := load[struct {
		Valid    bool      `json:"valid"`
		Failures []failure `json:"failures"`
		Warnings []warning `json:"warnings"`
		Head     string    `json:"head"`
	}](t, c.Expect)
	chain := &Chain{Keys: keysOf(t, in.PublicKeys)}
	var failures []failure
	var warnings []warning
	for _, m := range in.Messages {
		f, err := chain.Add(context.Background(), m, JSON)
		if err != nil {
			t.Fatal(err)
		}
		if !f.OK() {
			failures = append(failures, failure{f.Index, f.Codes})
		}
		for _, w := range f.Warnings {
			warnings = append(warnings, warning{f.Index, w})
		}
	}
	if got := fmt.Sprint(failures); got != fmt.Sprint(want.Failures) || want.Valid != (len(failures) == 0) {
		t.Errorf("failures %v, want %v (valid %v)", failures, want.Failures, want.Valid)
	}
	if fmt.Sprint(warnings) != fmt.Sprint(want.Warnings) {
		t.Errorf("warnings %v, want %v", warnings, want.Warnings)
	}
	head := chain.head
	if len(in.Messages) == 0 {
		head = ZeroHash
	}
	if head != want.Head {
		t.Errorf("head %s, want %s", head, want.Head)
	}
}

func vectorDPoP(t *testing.T, c vectorCase) {
	in := load[struct {
		Proof   string      `json:"proof"`
		Session string      `json:"sessionId"`
		Card    jsonx.Value `json:"cardDpopPublicKey"`
		Now     int64       `json:"now"`
		Seen    []string    `json:"seenJti"`
		Token   *string     `json:"accessToken"`
	}](t, c.Input)
	want := load[struct {
		OK         bool   `json:"ok"`
		JTI        string `json:"jti"`
		Thumbprint string `json:"jkt"`
		Error      string `json:"error"`
	}](t, c.Expect)
	n, err := parseJSON(in.Card)
	if err != nil {
		t.Fatal(err)
	}
	key := proofKeyOf(n, nil)
	if key == nil {
		t.Fatal("card key")
	}
	now := time.Unix(in.Now, 0)
	mem := NewMemory(0, func() time.Time { return now })
	for _, jti := range in.Seen {
		if fresh, err := mem.Seen(t.Context(), (&Proof{JTI: jti, Thumbprint: key.Thumbprint()}).ReplayKey(),
			now.Add(time.Minute)); !fresh || err != nil {
			t.Fatal(fresh, err)
		}
	}
	token := ""
	if in.Token != nil {
		token = *in.Token
	}
	proof, err := checkProof(in.Proof, proofClaims{Method: messageMethod, URL: messageURL(in.Session), Key: key,
		AccessToken: token, Now: now})
	if err == nil {
		fresh, memErr := mem.Seen(t.Context(), proof.ReplayKey(), proof.Until)
		if err = memErr; !fresh {
			err = refuse("dpop_jti_replayed", "")
		}
	}
	wantCode(t, err, want.Error)
	if want.OK != (err == nil) {
		t.Errorf("ok = %v, want %v", err == nil, want.OK)
	}
	if err == nil && (proof.JTI != want.JTI || proof.Thumbprint != want.Thumbprint) {
		t.Errorf("got %+v", proof)
	}
}

func vectorMsgpack(t *testing.T, c vectorCase) {
	in := load[struct {
		Content string `json:"contentMsgpackHex"`
		Message string `json:"messageMsgpackHex"`
	}](t, c.Input)
	want := load[struct {
		Canonical string      `json:"canonical"`
		Hash      string      `json:"hash"`
		Message   jsonx.Value `json:"message"`
		Error     string      `json:"error"`
	}](t, c.Expect)
	if (in.Content == "") == (in.Message == "") {
		t.Fatal("case has another shape")
	}
	if in.Message != "" {
		e, err := DecodeMsgpack(unhex(t, in.Message))
		wantCode(t, err, want.Error)
		if err != nil {
			return
		}
		if err := e.checkHash(); err != nil {
			t.Error(err)
		}
		if want.Message != nil {
			ref, err := Decode(want.Message)
			if err != nil {
				t.Fatal(err)
			}
			if e.Digest() != ref.Digest() || e.Integrity != ref.Integrity {
				t.Errorf("got %s", e.JSON())
			}
		}
		return
	}
	text, err := msgpackAsJSON(unhex(t, in.Content))
	var canonical []byte
	if err == nil {
		canonical, err = Canonical(text)
	}
	wantCode(t, err, want.Error)
	if err != nil {
		return
	}
	if string(canonical) != want.Canonical || hashOf(canonical) != want.Hash {
		t.Errorf("got %s %s", canonical, hashOf(canonical))
	}
	packed, err := jsonToMsgpack(text)
	if err != nil {
		t.Fatal(err)
	}
	back, err := msgpackAsJSON(packed)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Canonical(back); err != nil || string(again) != want.Canonical {
		t.Errorf("and back %s, %v", again, err)
	}
}

func vectorGrammar(t *testing.T, c vectorCase) {
	in := load[struct {
		Kind  string `json:"kind"`
		Value string `json:"value"`
	}](t, c.Input)
	want := load[struct {
		Valid bool `json:"valid"`
	}](t, c.Expect)
	check, ok := map[string]func(string) bool{
		"uuidv7": ValidUUID, "agentId": ValidAgentID, "hash": validHash, "signature": validSignature,
		"version":      func(s string) bool { return versionForm(s) && supportedVersion(s) },
		"performative": func(s string) bool { return Performative(s).Valid() },
		"timestamp":    func(s string) bool { _, ok := ParseTimestamp(s); return ok },
	}[in.Kind]
	if !ok {
		t.Fatalf("unknown kind %q", in.Kind)
	}
	if got := check(in.Value); got != want.Valid {
		t.Errorf("%q: %v, want %v", in.Value, got, want.Valid)
	}
}

func vectorEnvelope(t *testing.T, c vectorCase) {
	in := load[struct {
		Message jsonx.Value `json:"message"`
	}](t, c.Input)
	_, err := Decode(in.Message)
	load[verdict](t, c.Expect).compare(t, err)
}

func vectorLimits(t *testing.T, c vectorCase) {
	in := load[struct {
		Fill         string `json:"fill"`
		FillRawJSON  string `json:"fillRawJson"`
		N            int    `json:"n"`
		BodyBytes    int    `json:"bodyCanonicalBytes"`
		RawBodyBytes int    `json:"rawBodyBytes"`
		MessageBytes int    `json:"messageBytes"`
		Padding      string `json:"padding"`
	}](t, c.Input)
	pad := in.FillRawJSON
	if pad == "" {
		pad = unquoted(t, in.Fill)
	}
	body := `{"pad":"` + strings.Repeat(pad, in.N) + `"}`
	if in.RawBodyBytes > len(body) { // the characters are sent decomposed
		body = `{"pad":"` + strings.Repeat(unquoted(t, norm.NFD.String(in.Fill)), in.N) + `"}`
	}
	if in.RawBodyBytes > 0 && len(body) != in.RawBodyBytes {
		t.Fatalf("raw body has %d bytes, want %d", len(body), in.RawBodyBytes)
	}
	if canonical, err := Canonical([]byte(body)); err != nil || in.BodyBytes > 0 && len(canonical) != in.BodyBytes {
		t.Fatalf("canonical body has %d bytes (%v), want %d", len(canonical), err, in.BodyBytes)
	}
	content := `{"mimeType":"application/json","body":` + body + `}`
	hash, err := ContentHash([]byte(content))
	if err != nil {
		t.Fatal(err)
	}
	frame := `{"version":"asp/1.0","messageId":"019cc8aa-1000-7aaa-8bbb-000000000000",` +
		`"sessionId":"019cc8aa-0001-7def-8a12-000000000001","sequenceNumber":0,"timestamp":"2026-03-07T14:30:00.000Z",` +
		`"sender":{"agentId":"agent://acme.example/services/procurement","orgId":"org_acme","trustScore":1,"dpopProof":"x"},` +
		`"performative":"OBSERVE","content":` + content + `,"integrity":{"hash":"` + hash + `","previousHash":"` +
		ZeroHash +
		`","signature":"ed25519:` + strings.Repeat("ab", 64) + `"}PAD}`
	before, after, char := "", "", ""
	if in.MessageBytes > 0 {
		switch in.Padding {
		case "":
			before, after, char = `,"x-pad":"`, `"`, "x"
		case "spaces between tokens":
			char = " "
		default:
			t.Fatalf("unknown padding %q", in.Padding)
		}
	}
	fill := max(in.MessageBytes-(len(frame)-len("PAD")+len(before)+len(after)), 0)
	if frame = strings.Replace(frame, "PAD}", before+strings.Repeat(char, fill)+after+"}", 1); in.MessageBytes > 0 &&
		len(frame) != in.MessageBytes {
		t.Fatalf("frame has %d bytes, want %d", len(frame), in.MessageBytes)
	}
	_, err = Decode([]byte(frame))
	load[verdict](t, c.Expect).compare(t, err)
}

// unquoted gives a text as in a JSON string, without the quotes.
func unquoted(t *testing.T, text string) string {
	t.Helper()
	b, err := jsonx.Encode(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[1 : len(b)-1])
}

func vectorOrdering(t *testing.T, c vectorCase) {
	in := load[[]struct {
		Ref            int64  `json:"ref"`
		Timestamp      string `json:"timestamp"`
		AgentID        string `json:"agentId"`
		SequenceNumber int64  `json:"sequenceNumber"`
	}](t, c.Input)
	want := load[struct {
		Order []int64 `json:"order"`
	}](t, c.Expect)
	type item struct {
		*Envelope
		ref int64
	}
	var list []item
	for _, i := range in {
		list = append(list, item{&Envelope{Timestamp: i.Timestamp, SequenceNumber: i.SequenceNumber,
			Sender: Sender{AgentID: i.AgentID}}, i.Ref})
	}
	slices.SortStableFunc(list, func(a, b item) int { return Compare(a.Envelope, b.Envelope) })
	var got []int64
	for _, i := range list {
		got = append(got, i.ref)
	}
	if !slices.Equal(got, want.Order) {
		t.Errorf("got %v, want %v", got, want.Order)
	}
}

func vectorStateMachine(t *testing.T, c vectorCase) {
	in := load[struct {
		State  State    `json:"state"`
		Event  string   `json:"event"`
		Events []string `json:"events"`
	}](t, c.Input)
	want := load[struct {
		Next    State    `json:"next"`
		Error   string   `json:"error"`
		Status  int      `json:"httpStatus"`
		Results []string `json:"results"`
	}](t, c.Expect)
	if in.Events == nil {
		before := resume // the vectors' name of the state before ESCALATED
		got, err := Next(in.State, in.Event, before)
		wantCode(t, err, want.Error)
		if err != nil {
			if asError(err).Status() != want.Status {
				t.Errorf("status %d", asError(err).Status())
			}
		} else if got != want.Next {
			t.Errorf("got %s, want %s", got, want.Next)
		}
		return
	}
	state, before := Idle, Idle
	var results []string
	for _, event := range in.Events {
		next, err := Next(state, event, before)
		if err != nil {
			results = append(results, codeOf(err))
			continue
		}
		if next == Escalated && state != Escalated {
			before = state
		}
		state = next
		results = append(results, string(state))
	}
	if !slices.Equal(results, want.Results) {
		t.Errorf("got %v\nwant %v", results, want.Results)
	}
}

func vectorBodies(t *testing.T, c vectorCase) {
	in := load[struct {
		Performative Performative `json:"performative"`
		Body         jsonx.Value  `json:"body"`
	}](t, c.Input)
	load[verdict](t, c.Expect).compare(t, CheckBody(in.Performative, in.Body))
}

func vectorContext(t *testing.T, c vectorCase) {
	in := load[struct {
		Timestamp string `json:"messageTimestamp"`
		Updates   []struct {
			Sender string        `json:"sender"`
			At     float64       `json:"at"`
			Object ContextObject `json:"object"`
		} `json:"updates"`
	}](t, c.Input)
	want := load[struct {
		Results []contextResult `json:"results"`
		Store   map[string]struct {
			Version int64       `json:"version"`
			Data    jsonx.Value `json:"data"`
		} `json:"store"`
		Checks []struct {
			At      float64 `json:"atSeconds"`
			Present bool    `json:"present"`
		} `json:"checks"`
		AfterClose []string `json:"afterClose"`
	}](t, c.Expect)
	sent, ok := ParseTimestamp(in.Timestamp)
	if !ok {
		t.Fatal("timestamp")
	}
	after := func(s float64) time.Time {
		return sent.Add(time.Duration(math.Round(s * float64(time.Second))))
	}
	s := contextStore{}
	get := func(id string, at time.Time) (ContextEntry, bool) {
		e, ok := s[id]
		return e, ok && !e.expired(at)
	}
	ids := func() []string {
		return slices.Sorted(func(yield func(string) bool) {
			for id, e := range s {
				if !e.expired(sent) && !yield(id) {
					return
				}
			}
		})
	}
	var results []contextResult
	for _, u := range in.Updates {
		results = append(results, s.Apply(u.Object, u.Sender, after(u.At)))
	}
	if !slices.Equal(results, want.Results) {
		t.Errorf("results %v, want %v", results, want.Results)
	}
	for id, w := range want.Store {
		if got, ok := get(id, sent); !ok || got.Version != w.Version || !sameJSON(got.Data, w.Data) {
			t.Errorf("%s: %+v", id, got)
		}
	}
	if want.Store != nil && len(ids()) != len(want.Store) {
		t.Errorf("store has %v", ids())
	}
	for _, check := range want.Checks {
		for _, u := range in.Updates {
			if _, ok := get(u.Object.ID, after(check.At)); ok != check.Present {
				t.Errorf("%s at %v s: %v", u.Object.ID, check.At, ok)
			}
		}
	}
	if want.AfterClose != nil {
		s.End()
		if got := ids(); !slices.Equal(got, want.AfterClose) {
			t.Errorf("after close %v", got)
		}
	}
}

func vectorTrust(t *testing.T, c vectorCase) {
	in := load[struct {
		Components TrustComponents `json:"components"`
	}](t, c.Input)
	want := load[struct {
		Score float64 `json:"trustScore"`
	}](t, c.Expect)
	if got := math.Round(in.Components.Score()*100) / 100; got != want.Score {
		t.Errorf("got %v, want %v", got, want.Score)
	}
}

// vectorIngest runs the arrivals through a server's whole pipeline. The clock follows the
// accepted messages.
func vectorIngest(t *testing.T, c vectorCase) {
	in := load[struct {
		PublicKeys map[string]string `json:"publicKeys"`
		Arrivals   []jsonx.Value     `json:"arrivals"`
	}](t, c.Input)
	want := load[struct {
		Results []string `json:"results"`
	}](t, c.Expect)
	clock := &fakeClock{}
	s := &Server{Now: clock.now}
	for agent, public := range in.PublicKeys {
		if _, err := s.Register(t.Context(), vectorCard(t, agent, public, in.Arrivals)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, raw := range in.Arrivals {
		last := clock.t
		if e, err := Decode(raw); err == nil {
			if sent, ok := ParseTimestamp(e.Timestamp); ok && sent.After(last) {
				clock.t = sent
			}
		}
		switch receipt, err := s.Ingest(t.Context(), raw, Transport{}, ""); {
		case err != nil:
			clock.t = last
			got = append(got, codeOf(err))
		case receipt.Duplicate:
			got = append(got, "duplicate")
		default:
			got = append(got, "accepted")
		}
	}
	if !slices.Equal(got, want.Results) {
		t.Errorf("got %v, want %v", got, want.Results)
	}
}

// vectorCard makes the card of an agent from its key and from its first message, which
// has the organization and the key of the proofs.
func vectorCard(t *testing.T, agent, public string, messages []jsonx.Value) []byte {
	t.Helper()
	other := testIdentity(t, agent, "org_silent").Card() // for an agent without messages
	card := &Card{AgentID: agent, OrgID: other.OrgID, SigningKey: unhex(t, public), ProofKey: other.ProofKey}
	for _, raw := range messages {
		e, err := Decode(raw)
		if err != nil || e.Sender.AgentID != agent {
			continue
		}
		header, _, _ := strings.Cut(e.Sender.DPoPProof, ".")
		text, err := b64.DecodeString(header)
		if err != nil {
			continue
		}
		n, err := parseJSON(text)
		if err != nil {
			continue
		}
		if key := proofKeyOf(n.get("jwk"), nil); key != nil {
			card.OrgID, card.ProofKey = e.Sender.OrgID, key
			break
		}
	}
	b, err := card.JSON()
	if err != nil {
		t.Fatal(err)
	}
	return b
}
