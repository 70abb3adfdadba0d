package agh

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/parley-hub/parley/internal/jsonx"
)

func testIdentity(t testing.TB, n byte) *Identity {
	t.Helper()
	id, err := IdentityFromSeed("worker", bytes.Repeat([]byte{n}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func signedGreet(t testing.TB, id *Identity, capabilities ...string) []byte {
	t.Helper()
	e := &Envelope{ID: "g1", WorkspaceID: "ws", Channel: "c", TS: clock}
	if err := e.SetContent(&Greet{Card: &Card{PeerID: id.ID(), Capability: capabilities}}); err != nil {
		t.Fatal(err)
	}
	b, err := id.Sign(e)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func signedSay(t testing.TB, id *Identity) string {
	t.Helper()
	b, err := id.signJSON([]byte(with(sayText, "from", nil, "proof", nil, "ext", js(`{"n":1.50}`))), nil)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func trusted(raw string) (Trust, error) {
	v, err := (&Verifier{Trust: true, Now: atClock}).Verify(context.Background(), []byte(raw))
	return trustOf(v, err), err
}

func proofMember(raw, name string, value any) string {
	var m map[string]json.RawMessage
	if json.Unmarshal([]byte(raw), &m) != nil {
		return ""
	}
	return with(raw, "proof", js(with(string(m["proof"]), name, value)))
}

// AGH-090 (sign), AGH-099 (JCS) are TestVectors/trust-sign.json and jcs.json.
func TestTrustChecklist(t *testing.T) {
	ctx := context.Background()
	id := testIdentity(t, 1)
	raw := signedSay(t, id)
	rejects := func(t *testing.T, what, raw string) {
		t.Helper()
		if state, err := trusted(raw); state != TrustRejected || ReasonOf(err) != ReasonVerificationFailed {
			t.Errorf("%s: %s, %v", what, state, err)
		}
	}
	t.Run("AGH-090 a signature verifies", func(t *testing.T) {
		if state, err := trusted(raw); state != TrustVerified {
			t.Error(err)
		}
		again := signedSay(t, id)
		if again != raw {
			t.Error("signing is not deterministic")
		}
	})
	t.Run("AGH-091 tampering", func(t *testing.T) {
		for m, v := range map[string]any{"id": "m2", "workspace_id": "w2", "channel": "d", "thread_id": "thread_xyz",
			"to": "bob", "work_id": "work_1", "ts": clock + 1,
			"expires_at": js("null"), "reply_to": js("null"), "ext": js(`{"n":1.51}`), "body": js(`{"text":"x"}`)} {
			rejects(t, m, with(raw, m, v))
		}
		rejects(t, "to removed", with(raw, "to", nil))
		rejects(t, "a member added to the proof", proofMember(raw, "x", 1))
	})
	t.Run("AGH-092 stripping", func(t *testing.T) {
		rejects(t, "null", with(raw, "proof", js("null")))
		rejects(t, "absent", with(raw, "proof", nil))
		if state, _ := trusted(sayText); state != TrustUnverified {
			t.Error(state)
		}
	})
	t.Run("AGH-093 other profiles", func(t *testing.T) {
		for _, v := range []any{"acme/v1", nil, 1, js("null"), Profile + "x"} {
			rejects(t, "handle", proofMember(raw, "profile", v))
			if state, err := trusted(with(sayText, "proof", js(`{"profile":"acme"}`))); state != TrustUnverified {
				t.Error(err)
			}
		}
		v := &Verifier{Trust: true, StrictProfile: true, Now: atClock}
		if _, err := v.Verify(ctx, []byte(with(sayText, "proof",
			js(`{"profile":"acme"}`)))); ReasonOf(err) != ReasonUnsupportedProfile {
			t.Error(err)
		}
	})
	t.Run("AGH-094 strict forms", func(t *testing.T) {
		var m struct{ Proof map[string]string }
		if err := json.Unmarshal([]byte(raw), &m); err != nil {
			t.Fatal(err)
		}
		sig, pub := m.Proof["sig"], m.Proof["pubkey"]
		tail := func(s string) string { // the same bytes, other unused bits
			const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
			i := strings.IndexByte(alphabet, s[len(s)-1])
			return s[:len(s)-1] + alphabet[i^1:i^1+1]
		}
		for name, values := range map[string][]any{
			"alg": {"ed25519", "EdDSA", nil},
			"key_id": {strings.ToUpper(m.Proof["key_id"]), m.Proof["key_id"][7:], KeyID(testIdentity(t, 2).Public()),
				nil},
			"sig": {sig + "==", tail(sig), sig[:85], strings.Replace(sig, sig[:1], "+", 1), nil, 1, "", sig[:40] +
				"\n" + sig[40:]},
			"pubkey": {pub + "=", tail(pub), pub[:42], nil, strings.Repeat("A", 43),
				"AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"},
		} {
			for _, v := range values {
				rejects(t, name, proofMember(raw, name, v))
			}
		}
		other := testIdentity(t, 2)
		rejects(t, "fingerprint of another key", with(raw, "from", other.ID()))
		rejects(t, "signed by another", with(signedSay(t, other), "from", id.ID()))
	})
	t.Run("a key of small order signs nothing", func(t *testing.T) {
		pub := make(ed25519.PublicKey, 32)
		pub[0] = 1 // the identity
		sig := make([]byte, 64)
		sig[0] = 1
		forged := with(sayText, "from", Handle("worker", pub),
			"proof", map[string]string{"profile": Profile, "alg": "Ed25519", "key_id": KeyID(pub),
				"pubkey": b64.EncodeToString(pub), "sig": b64.EncodeToString(sig)})
		rejects(t, "forged", forged)
	})
	t.Run("AGH-095 a plain sender with a proof of the profile", func(t *testing.T) {
		rejects(t, "plain", with(raw, "from", "alice"))
	})
	t.Run("AGH-096 freshness first", func(t *testing.T) {
		if _, err := trusted(with(raw, "ts", 1)); ReasonOf(err) != ReasonExpired {
			t.Error(err)
		}
	})
	t.Run("AGH-097 a rejected message changes nothing", func(t *testing.T) {
		r := &Router{Verifier: Verifier{Trust: true, Now: atClock}}
		good := signedGreet(t, id)
		if res := receive(r, with(string(good), "trace_id", "x")); res.Outcome != Refused ||
			len(r.Peers("ws", "c")) != 0 {
			t.Errorf("%+v", res)
		}
		if res := receive(r, string(good)); res.Outcome != Accepted || len(r.Peers("ws", "c")) != 1 ||
			!res.Verdict.Verified {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-098 signed messages are passed on unchanged", func(t *testing.T) {
		pretty := "{ " + raw[1:]
		r := &Router{Relay: true, Verifier: Verifier{Trust: true, Now: atClock}}
		res := receive(r, pretty)
		if !res.Relay || string(res.Envelope.Raw()) != pretty {
			t.Errorf("%+v", res)
		}
		v := &Verifier{Trust: true, Lenient: true, Now: atClock}
		unknown, err := id.signJSON([]byte(with(sayText, "from", nil, "foo", 1)), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := v.Verify(ctx, unknown); err != nil || !bytes.Equal(got.Envelope.Raw(), unknown) {
			t.Errorf("an unknown member: %v", err)
		}
		if _, err := v.Verify(ctx, []byte(with(string(unknown), "foo", nil))); !errors.Is(err, ErrSignature) {
			t.Errorf("an unknown member dropped: %v", err)
		}
	})
	t.Run("AGH-099 no canonical form", func(t *testing.T) {
		for _, s := range []string{`["\ud800"]`, `{"a":1,"a":2}`, `[1e400]`, `[-1e400]`} {
			if _, err := canonicalize([]byte(s)); err == nil {
				t.Errorf("%s has one", s)
			}
		}
		if out, err := canonicalize([]byte(`["1.7976931348623157e+308",1.7976931348623157e308]`)); err != nil {
			t.Errorf("%s, %v", out, err)
		}
		rejects(t, "overflow", with(raw, "ext", js(`{"n":1e400}`)))
	})
	t.Run("AGH-100 route token of a handle", func(t *testing.T) {
		_, fingerprint, _ := SplitHandle(id.ID())
		want := "agh.network.v0.ws.c.peer." + fingerprint
		if s, err := VerifiedPeerSubject("ws", "c", id.ID()); s != want || err != nil {
			t.Errorf("%s, %v", s, err)
		}
	})
	t.Run("pins", func(t *testing.T) {
		other := testIdentity(t, 2)
		for name, c := range map[string]struct {
			v    Verifier
			want error
		}{
			"pinned handle":   {Verifier{Keys: StaticKeys{id.ID(): {id.Public()}}}, nil},
			"pinned nickname": {Verifier{Keys: StaticKeys{"worker": {other.Public(), id.Public()}}}, nil},
			"another key pinned": {Verifier{Keys: StaticKeys{"worker": {other.Public()}}},
				ErrUnknownKey},
			"not pinned":            {Verifier{Keys: StaticKeys{}}, nil},
			"pin required":          {Verifier{Keys: StaticKeys{}, RequirePin: true}, ErrUnknownKey},
			"pin required, no Keys": {Verifier{RequirePin: true}, ErrUnknownKey},
			"pins unreadable":       {Verifier{Keys: brokenKeys{}}, ErrUnknownKey},
		} {
			c.v.Trust, c.v.Now = true, atClock
			got, err := c.v.Verify(ctx, []byte(raw))
			if !errors.Is(err, c.want) || err == nil && got.Verdict.Pinned != strings.HasPrefix(name, "pinned") {
				t.Errorf("%s: %v", name, err)
			}
		}
		v := Verifier{Trust: true, RequireVerified: true, Now: atClock}
		if _, err := v.Verify(ctx, []byte(sayText)); !errors.Is(err, ErrSignature) {
			t.Errorf("plain: %v", err)
		}
	})
	t.Run("Memory makes Verify refuse replays", func(t *testing.T) {
		v := Verifier{Memory: &ReplayMemory{Now: atClock}, Now: atClock}
		if _, err := v.Verify(ctx, []byte(sayText)); err != nil {
			t.Error(err)
		}
		if _, err := v.Verify(ctx, []byte(sayText)); !errors.Is(err, ErrReplay) {
			t.Error(err)
		}
	})
	t.Run("keys of identities", func(t *testing.T) {
		for _, n := range []string{"", "A", "a.b", strings.Repeat("a", 33)} {
			if _, err := NewIdentity(n); err == nil {
				t.Errorf("nickname %q", n)
			}
		}
		if _, err := IdentityFromSeed("a", nil); err == nil {
			t.Error("empty seed")
		}
		if _, err := NewIdentity("a"); err != nil {
			t.Error(err)
		}
	})
}

type brokenKeys struct{}

func (brokenKeys) Keys(context.Context, string) ([]ed25519.PublicKey, error) {
	return nil, errors.New("no")
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{sayText, greetText, workText, with(sayText, "foo", 1, "ext", js(`{"a":[1.0]}`))} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, d := range []Decoder{{}, {Lenient: true, Handles: true}} {
			e, err := d.Decode(b)
			if err != nil {
				var own *Error
				if !errors.As(err, &own) || !own.Code.known() {
					t.Fatalf("uncoded: %v", err)
				}
				continue
			}
			if jsonx.Valid(b, 0) != nil || !bytes.Equal(e.Raw(), b) {
				t.Fatal("accepted a text that is not strict JSON, or changed it")
			}
			out, err := e.Encode()
			if err != nil {
				if len(e.ReplyTo)+len(e.TraceID)+len(e.CausationID) < 4096 {
					t.Fatalf("accepted but not written: %v", err)
				}
				continue
			}
			again, err := (&Decoder{Lenient: true, Handles: true}).Decode(out)
			if err != nil {
				t.Fatal(err)
			}
			if out2, err := again.Encode(); err != nil || !bytes.Equal(out, out2) {
				t.Fatalf("not stable: %s then %s, %v", out, out2, err)
			}
		}
	})
}

func FuzzRouter(f *testing.F) {
	for _, s := range []string{sayText, greetText, workText, traceText("bob", "alice", "working", "t"),
		receiptText("bob", "alice", "rejected", "r")} {
		f.Add([]byte(s), byte(0))
		f.Add([]byte(s), byte(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, mode byte) {
		r := &Router{Relay: mode&1 != 0, Self: "hub", Verifier: Verifier{Now: atClock, Trust: mode&4 != 0,
			Lenient: mode&8 != 0}}
		card, _ := NewCard("bob", "", nil)
		if _, err := r.Host(&Local{WorkspaceID: "ws", Channel: "c", Card: card}); err != nil {
			t.Fatal(err)
		}
		receive(r, workText)
		for range 2 {
			res := receive(r, string(b))
			if (res.Outcome == Accepted) != (res.Err == nil) {
				t.Fatalf("%+v", res)
			}
			if res.Outcome != Accepted && (res.Relay || len(res.Deliver) > 0) {
				t.Fatalf("refused but passed on: %+v", res)
			}
			for _, out := range res.Published {
				if _, err := (&Verifier{Now: atClock, Trust: true}).Verify(context.Background(), out.Data); err != nil {
					t.Fatalf("published an invalid message: %s: %v", out.Data, err)
				}
			}
		}
	})
}

func FuzzTrust(f *testing.F) {
	id := testIdentity(f, 1)
	good := signedSay(f, id)
	f.Add([]byte(good))
	f.Add(signedGreet(f, id))
	signed, err := SignedBytes([]byte(good))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := (&Verifier{Trust: true, Now: atClock}).Verify(context.Background(), b)
		if err != nil || !v.Verdict.Verified || v.Envelope.ID != "m1" {
			return
		}
		if got, err := SignedBytes(b); v.Envelope.From == id.ID() && (err != nil || !bytes.Equal(got, signed)) {
			t.Fatalf("a signature for other content: %s", b)
		}
	})
}

// trustOf gives the trust state for a result of Verify.
func trustOf(v *Verified, err error) Trust {
	if err != nil || v == nil {
		return TrustRejected
	}
	return v.Verdict.Trust
}
