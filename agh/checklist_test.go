package agh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const clock = 1776366000

// member changes one member of an envelope text: a nil value removes it.
func member(base string, name string, value any) string {
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(base), &m); err != nil {
		panic(err)
	}
	delete(m, name)
	if raw, ok := value.(json.RawMessage); ok {
		m[name] = raw
	} else if value != nil {
		b, err := json.Marshal(value)
		if err != nil {
			panic(err)
		}
		m[name] = b
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func with(base string, pairs ...any) string {
	for i := 0; i < len(pairs); i += 2 {
		base = member(base, pairs[i].(string), pairs[i+1])
	}
	return base
}

type js = json.RawMessage

const (
	sayText = `{"protocol":"agh-network/v0","id":"m1","workspace_id":"ws","kind":"say","channel":"c","surface":"thread","thread_id":"thread_abc",
		"from":"alice","to":null,"ts":1776366000,"body":{"text":"hello"},"proof":null}`
	cardText  = `{"peer_card":{"peer_id":"alice","profiles_supported":[],"capabilities":[],"artifacts_supported":[],"trust_modes_supported":[]}}`
	greetText = `{"protocol":"agh-network/v0","id":"g1","workspace_id":"ws","kind":"greet","channel":"c","from":"alice","ts":1776366000,"body":` + cardText + `}`
	workText  = `{"protocol":"agh-network/v0","id":"m1","workspace_id":"ws","kind":"say","channel":"c","surface":"thread","thread_id":"thread_abc",
		"from":"alice","to":"bob","work_id":"work_1","ts":1776366000,"body":{"text":"hello"},"proof":null}`
)

func atClock() time.Time { return time.Unix(clock, 0) }

func verifyText(text string) error {
	_, err := (&Verifier{Now: atClock}).Verify(context.Background(), []byte(text))
	return err
}

func accepts(t *testing.T, what, text string) {
	t.Helper()
	if err := verifyText(text); err != nil {
		t.Errorf("%s: refused: %v", what, err)
	}
}

func refuses(t *testing.T, what, text string, reason Reason) {
	t.Helper()
	err := verifyText(text)
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%s: got %v, want %s", what, err, reason)
	} else if e.Code != reason {
		t.Errorf("%s: got %s (%v), want %s", what, e.Code, err, reason)
	}
}

func TestEnvelopeChecklist(t *testing.T) {
	t.Run("AGH-001 the page's examples are accepted and written again", func(t *testing.T) {
		for _, raw := range []string{`{"protocol":"agh-network/v0","id":"msg_01jz8f6m6x4f4s8e9b2c3d4e5f","workspace_id":"ws_alpha","kind":"say","channel":"builders","surface":"thread","thread_id":"thread_migration_check_20260416","from":"ops-coordinator.session-42","to":"patch-worker.session-19","work_id":"work_migration_check_20260416","trace_id":"trace_release_20260416","causation_id":"msg_01jz8f5p4q0n3a2b1c9d8e7f6a","ts":1776366000,"expires_at":1776366300,"body":{"text":"Run the migration smoke test against the staging branch and report blockers.","intent":"request","artifacts":[{"type":"git-ref","repo":"github.com/acme/app","ref":"refs/heads/staging"}]},"proof":null,"ext":{"acme.priority":"high"}}`,
			`{"protocol":"agh-network/v0","id":"msg_01jz8f7p2nq2c5b1n8m3kqdv7w","workspace_id":"ws_alpha","kind":"say","channel":"builders","surface":"direct","direct_id":"direct_99401d24bee62651d189e5a561785466","from":"ops-coordinator.session-42","to":"patch-worker.session-19","work_id":"work_migration_check_20260416_review","trace_id":"trace_release_20260416","ts":1776366260,"body":{"text":"Continuing the review privately so we can paste internal log lines.","intent":"handoff"},"proof":null}`} {
			e, err := Decode([]byte(raw))
			if err != nil {
				t.Fatal(err)
			}
			if err := (Limits{}).Fresh(e, atClock()); err != nil {
				t.Error(err)
			}
			if out, err := e.Encode(); err != nil || string(out) != raw {
				t.Errorf("got %s, %v", out, err)
			}
		}
	})
	t.Run("AGH-002 one JSON object", func(t *testing.T) {
		for _, s := range []string{"", " ", "null", "[]", `"x"`, "1", "[" + sayText + "]", sayText[:len(sayText)-1],
			sayText + "x", sayText + sayText, "\ufeff" + sayText} {
			refuses(t, s, s, ReasonMalformed)
		}
		accepts(t, "white space around", "\n "+sayText+"\n")
	})
	t.Run("AGH-003 required members", func(t *testing.T) {
		for _, m := range []string{"protocol", "id", "workspace_id", "channel", "from", "ts", "body"} {
			refuses(t, m, with(sayText, m, nil), ReasonMalformed)
			refuses(t, m+" null", with(sayText, m, js("null")), ReasonMalformed)
		}
		refuses(t, "kind", with(sayText, "kind", nil), ReasonUnsupportedKind)
	})
	t.Run("AGH-004 protocol", func(t *testing.T) {
		for _, s := range []string{"agh-network/v1", "AGH-NETWORK/V0", "agh-network/v0 ", ""} {
			refuses(t, s, with(sayText, "protocol", s), ReasonMalformed)
		}
	})
	t.Run("AGH-005 kinds", func(t *testing.T) {
		for _, s := range []string{"direct", "recipe", "SAY", "", " say"} {
			refuses(t, s, with(sayText, "kind", s), ReasonUnsupportedKind)
		}
	})
	t.Run("AGH-006 interaction_id", func(t *testing.T) {
		for _, v := range []js{js(`"x"`), js("null"), js("{}")} {
			refuses(t, string(v), with(sayText, "interaction_id", v), ReasonMalformed)
			if _, err := (&Decoder{Lenient: true}).Decode([]byte(with(sayText, "interaction_id", v))); err == nil {
				t.Error("lenient mode takes it")
			}
		}
	})
	t.Run("AGH-007 unknown members", func(t *testing.T) {
		raw := with(sayText, "foo", js("1.50"))
		refuses(t, "strict", raw, ReasonMalformed)
		e, err := (&Decoder{Lenient: true}).Decode([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		out, err := e.Encode()
		if err != nil || !strings.Contains(string(out), `"foo":1.50`) {
			t.Errorf("lenient mode writes %s, %v", out, err)
		}
	})
	t.Run("AGH-008 channel", func(t *testing.T) {
		for _, s := range []string{"a", "0", "a_-", strings.Repeat("a", 64)} {
			accepts(t, s, with(sayText, "channel", s))
		}
		for _, s := range []string{"", "A", "a.b", "-a", "_a", "a b", "a\n", strings.Repeat("a", 65)} {
			refuses(t, s, with(sayText, "channel", s), ReasonMalformed)
		}
	})
	t.Run("AGH-009 peer ids", func(t *testing.T) {
		for _, name := range []string{"from", "to"} {
			for _, s := range []string{"a", "a.b_c-d", strings.Repeat("a", 128)} {
				accepts(t, name+s, with(sayText, name, s))
			}
			for _, s := range []string{"A", ".a", "_a", "a:b", "a/b", "a@b", "bob@" + strings.Repeat("0", 32),
				strings.Repeat("a", 129)} {
				refuses(t, name+s, with(sayText, name, s), ReasonMalformed)
			}
		}
	})
	t.Run("AGH-010 workspace", func(t *testing.T) {
		for _, s := range []string{"a.b", "a b", "*", ">", "a\u0001", "a\u007f", "", "  ",
			strings.Repeat("w", maxWorkspace+1)} {
			refuses(t, s, with(sayText, "workspace_id", s), ReasonMalformed)
		}
		accepts(t, "other characters", with(sayText, "workspace_id", "WS/ä"))
	})
	t.Run("AGH-011 null is absent", func(t *testing.T) {
		for _, m := range []string{"to", "work_id", "reply_to", "trace_id", "causation_id", "expires_at", "proof",
			"ext", "direct_id"} {
			accepts(t, m, with(sayText, m, js("null")))
		}
		for _, m := range []string{"surface", "thread_id", "direct_id", "work_id"} {
			accepts(t, m, with(greetText, m, js("null")))
		}
	})
	t.Run("AGH-012 blank and padded identifiers", func(t *testing.T) {
		for _, s := range []string{"", " ", "\t"} {
			for _, m := range []string{"to", "id", "from", "channel", "thread_id", "work_id", "surface"} {
				refuses(t, m, with(sayText, m, s), ReasonMalformed)
			}
		}
		for _, m := range []string{"to", "from", "channel", "work_id"} {
			refuses(t, m, with(with(sayText, m, nil), m, " bob "), ReasonMalformed)
		}
	})
	t.Run("AGH-013 ts", func(t *testing.T) {
		for _, v := range []js{js(`"1776366000"`), js("1776366000.0"), js("1.776366e9"), js("0"), js("-1"),
			js("9223372036854775808"), js("true")} {
			refuses(t, string(v), with(sayText, "ts", v), ReasonMalformed)
		}
	})
	t.Run("AGH-014 ambiguous JSON", func(t *testing.T) { // digest §12 (6)
		for _, s := range []string{
			strings.Replace(sayText, `"from":"alice"`, `"from":"alice","from":"alice"`, 1),
			strings.Replace(sayText, `{"text":"hello"}`, `{"text":"hello","text":"x"}`, 1),
			strings.Replace(sayText, `{"text":"hello"}`, `{"text":"hello","x":[{"a":1,"\u0061":2}]}`, 1),
			strings.Replace(sayText, `"kind"`, `"KIND"`, 1),
			with(sayText, "From", "mallory"),
			strings.Replace(sayText, "hello", "\xff", 1),
			strings.Replace(sayText, "hello", `\ud800`, 1),
		} {
			refuses(t, s, s, ReasonMalformed)
		}
	})
	t.Run("AGH-015 size and nesting", func(t *testing.T) {
		pad := func(n int) string {
			s := strings.Replace(sayText, "hello", "~", 1)
			return strings.Replace(s, "~", strings.Repeat("a", n-len(s)+1), 1)
		}
		accepts(t, "1 MiB", pad(1<<20))
		refuses(t, "1 MiB + 1", pad(1<<20+1), ReasonMalformed)
		deep := func(n int) string {
			return with(sayText, "ext", js(`{"a":`+strings.Repeat("[", n)+strings.Repeat("]", n)+"}"))
		}
		accepts(t, "deep", deep(100))
		refuses(t, "too deep", strings.Replace(sayText, `"proof"`, `"ext":{"a":`+
			strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`},"proof"`, 1), ReasonMalformed)
		v := Verifier{Now: atClock, Limits: Limits{Depth: 50}}
		if _, err := v.Verify(context.Background(), []byte(deep(100))); !errors.Is(err, ErrMalformed) {
			t.Errorf("configured depth: %v", err)
		}
	})
	t.Run("AGH-016 ext is kept", func(t *testing.T) {
		e, err := Decode([]byte(with(sayText, "ext", js(`{"acme.n":[1.0,1e2,0.10,-0],"x":null}`))))
		if err != nil {
			t.Fatal(err)
		}
		out, err := e.Encode()
		if err != nil || !strings.Contains(string(out), `"acme.n":[1.0,1e2,0.10,-0]`) ||
			string(e.ExtValue("acme.n")) != "[1.0,1e2,0.10,-0]" {
			t.Errorf("%s, %v", out, err)
		}
	})
	t.Run("AGH-017 proof is opaque", func(t *testing.T) {
		raw := with(sayText, "proof", js(`{"profile":"x","n":1.0}`))
		accepts(t, "object", raw)
		if e, err := Decode([]byte(raw)); err != nil || string(e.Proof) != `{"profile":"x","n":1.0}` {
			t.Error(err)
		}
		for _, v := range []js{js("[]"), js(`"x"`), js("1")} {
			refuses(t, string(v), with(sayText, "proof", v), ReasonMalformed)
		}
	})
	t.Run("AGH-018 to and proof are written as null", func(t *testing.T) {
		e, err := Decode([]byte(sayText))
		if err != nil {
			t.Fatal(err)
		}
		if out, err := e.Encode(); err != nil || !strings.Contains(string(out), `"to":null`) ||
			!strings.Contains(string(out), `"proof":null`) {
			t.Errorf("%s, %v", out, err)
		}
	})
}

func TestSurfaceChecklist(t *testing.T) {
	direct := with(sayText, "thread_id", nil, "surface", "direct", "direct_id", "direct_"+strings.Repeat("0a", 16),
		"to", "bob")
	t.Run("AGH-020 discovery has no conversation", func(t *testing.T) {
		for m, v := range map[string]string{"surface": "thread", "thread_id": "thread_abc", "direct_id": "direct_" +
			strings.Repeat("0a", 16), "work_id": "work_1"} {
			refuses(t, m, with(greetText, m, v), ReasonMalformed)
			refuses(t, m, with(greetText, "kind", "whois", "body", js(`{"type":"request"}`), m, v), ReasonMalformed)
		}
	})
	t.Run("AGH-021 conversation needs a surface", func(t *testing.T) {
		for _, v := range []any{nil, js("null"), "room", "Thread", ""} {
			refuses(t, fmt.Sprint(v), with(sayText, "surface", v), ReasonMalformed)
		}
	})
	t.Run("AGH-022 containers", func(t *testing.T) {
		accepts(t, "direct", direct)
		refuses(t, "thread without id", with(sayText, "thread_id", nil), ReasonMalformed)
		refuses(t, "direct without id", with(direct, "direct_id", nil), ReasonMalformed)
		refuses(t, "both", with(direct, "thread_id", "thread_abc"), ReasonMalformed)
		refuses(t, "id alone", with(direct, "surface", nil), ReasonMalformed)
		refuses(t, "one peer", with(direct, "to", nil), ReasonMalformed)
	})
	t.Run("AGH-023 direct_id", func(t *testing.T) {
		for _, s := range []string{"direct_" + strings.Repeat("0A", 16), "direct_" + strings.Repeat("a", 31),
			"direct_" + strings.Repeat("a", 33), strings.Repeat("a", 32), "direct_" + strings.Repeat("g", 32)} {
			refuses(t, s, with(direct, "direct_id", s), ReasonMalformed)
		}
	})
	t.Run("AGH-024 receipt and trace need work", func(t *testing.T) {
		for kind, body := range map[string]js{"receipt": js(`{"for_id":"m","status":"accepted"}`),
			"trace": js(`{"state":"working"}`)} {
			ok := with(workText, "kind", kind, "body", body)
			accepts(t, kind, ok)
			refuses(t, kind, with(ok, "work_id", nil), ReasonMalformed)
		}
	})
	t.Run("AGH-025 sent ids have the narrow grammar", func(t *testing.T) {
		if !ValidThreadID(NewThreadID()) || !validWorkID(NewWorkID()) {
			t.Error("new ids are not valid")
		}
		r := node(t, nil, "bob", "carol")
		for _, e := range []Envelope{{ThreadID: "release-check"}, {ThreadID: "thread_ab"},
			{ThreadID: "thread_abc", WorkID: "job1"}} {
			e.WorkspaceID, e.Channel, e.From, e.To, e.Surface = "ws", "c", "bob", "carol", SurfaceThread
			if err := e.SetContent(&Say{Text: "x"}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Send(context.Background(), &e); !errors.Is(err, ErrMalformed) {
				t.Errorf("%+v: %v", e, err)
			}
		}
		for s, ok := range map[string]bool{"thread_abc": true, "thread_ab": false, "thread_-bc": false, "thread_" +
			strings.Repeat("a", 96): true, "thread_" + strings.Repeat("a", 97): false} {
			if ValidThreadID(s) != ok {
				t.Errorf("ValidThreadID(%q)", s)
			}
		}
		for s, ok := range map[string]bool{"work_A-z_0": true, "work_": false, "work_a.b": false, "work_" +
			strings.Repeat("a", 64): true, "work_" + strings.Repeat("a", 65): false, "job": false, "work_@": false} {
			if validWorkID(s) != ok {
				t.Errorf("validWorkID(%q)", s)
			}
		}
	})
}

func TestFreshnessChecklist(t *testing.T) {
	t.Run("AGH-030 expires_at", func(t *testing.T) {
		for v, ok := range map[int64]bool{clock + 1: true, clock: false, clock - 1: false, 1: false, 0: false} {
			if raw := with(sayText, "expires_at", v); ok {
				accepts(t, fmt.Sprint(v), raw)
			} else {
				refuses(t, fmt.Sprint(v), raw, ReasonExpired)
			}
		}
		refuses(t, "negative", with(sayText, "expires_at", -1), ReasonMalformed)
	})
	t.Run("AGH-031 age", func(t *testing.T) {
		accepts(t, "300", with(sayText, "ts", clock-300))
		refuses(t, "301", with(sayText, "ts", clock-301), ReasonExpired)
	})
	t.Run("AGH-032 future", func(t *testing.T) {
		accepts(t, "300", with(sayText, "ts", clock+300))
		refuses(t, "301", with(sayText, "ts", clock+301), ReasonExpired)
		refuses(t, "301 with expires_at", with(sayText, "ts", clock+301, "expires_at", clock+400), ReasonExpired)
		refuses(t, "far", with(sayText, "ts", int64(1)<<62), ReasonExpired)
	})
	t.Run("AGH-033 expires_at admits any older ts", func(t *testing.T) {
		accepts(t, "ts 1", with(sayText, "ts", 1, "expires_at", clock+1))
	})
	t.Run("AGH-037 TTL is capped", func(t *testing.T) {
		accepts(t, "30 days", with(sayText, "expires_at", clock+30*24*3600))
		refuses(t, "more", with(sayText, "expires_at", clock+30*24*3600+1), ReasonExpired)
		l := Limits{MaxTTL: 10}
		if err := l.Fresh(&Envelope{TS: clock, ExpiresAt: clock + 11}, atClock()); !errors.Is(err, ErrStale) {
			t.Error(err)
		}
	})
	t.Run("the seed's order: stale before malformed surface", func(t *testing.T) {
		refuses(t, "both", with(sayText, "ts", clock-301, "surface", nil), ReasonExpired)
		refuses(t, "both", with(sayText, "ts", clock-301, "from", "A"), ReasonMalformed)
	})
}

func TestReplayChecklist(t *testing.T) {
	ctx := context.Background()
	t.Run("AGH-034 AGH-066 a second delivery is a duplicate", func(t *testing.T) {
		r := node(t, nil, "bob")
		if res := receive(r, sayText); res.Outcome != Accepted || len(res.Deliver) != 1 {
			t.Errorf("%+v", res)
		}
		if res := receive(r, sayText); res.Outcome != Duplicate || len(res.Deliver) != 0 {
			t.Errorf("%+v", res)
		}
		q := with(greetText, "kind", "whois", "id", "q", "body", js(`{"type":"request"}`))
		if res := receive(r, q); len(res.Published) != 1 {
			t.Errorf("%+v", res)
		}
		if res := receive(r, q); res.Outcome != Duplicate || len(res.Published) != 0 {
			t.Errorf("%+v", res)
		}
		if res := receive(r, with(q, "id", "q2", "ts", clock-301)); len(res.Published) != 0 {
			t.Errorf("an expired question is answered: %+v", res)
		}
	})
	t.Run("AGH-035 a sender cannot use up another's id", func(t *testing.T) { // digest §12 (2)
		r := node(t, nil, "bob")
		if _, err := r.Host(&Local{WorkspaceID: "ws2", Channel: "c", Card: &Card{PeerID: "bob"}}); err != nil {
			t.Fatal(err)
		}
		for _, raw := range []string{with(sayText, "from", "mallory"), sayText, with(sayText, "workspace_id", "ws2")} {
			if res := receive(r, raw); res.Outcome != Accepted || len(res.Deliver) != 1 {
				t.Errorf("%+v", res)
			}
		}
	})
	t.Run("AGH-036 refused and misdirected messages use up nothing", func(t *testing.T) {
		r := node(t, nil, "bob")
		for _, raw := range []string{with(sayText, "body", js(`{}`)), with(sayText, "to", "nobody"),
			with(sayText, "ts", 1)} {
			if res := receive(r, raw); res.Outcome != Refused {
				t.Errorf("%+v", res)
			}
		}
		if res := receive(r, sayText); res.Outcome != Accepted {
			t.Errorf("%+v", res)
		}
	})
	t.Run("AGH-037 memory lasts as long as a message is accepted", func(t *testing.T) { // digest §12 (12)
		now := atClock()
		r := node(t, func() time.Time { return now }, "bob")
		raw := with(sayText, "expires_at", clock+86400)
		receive(r, raw)
		for _, d := range []time.Duration{0, 301 * time.Second, 86399 * time.Second} {
			now = atClock().Add(d)
			if res := receive(r, raw); res.Outcome != Duplicate {
				t.Errorf("after %v: %+v", d, res)
			}
		}
		now = atClock().Add(86400 * time.Second)
		if res := receive(r, raw); ReasonOf(res.Err) != ReasonExpired {
			t.Errorf("%+v", res)
		}
	})
	t.Run("the memory is bounded, each sender by itself", func(t *testing.T) { // digest §12 (13)
		now := atClock()
		m := &ReplayMemory{Max: 10, PerSender: 4, Now: func() time.Time { return now }}
		for i := range 6 {
			fresh, err := m.Seen(ctx, fmt.Sprintf("ws\x00mallory\x00%d", i), now.Add(time.Minute))
			if want := i < 4; fresh != want || (err == nil) != want {
				t.Errorf("%d: %v, %v", i, fresh, err)
			}
		}
		if fresh, err := m.Seen(ctx, "ws\x00alice\x001", now.Add(time.Second)); !fresh || err != nil {
			t.Errorf("another sender: %v, %v", fresh, err)
		}
		if fresh, err := m.Seen(ctx, "ws\x00mallory\x000", now); fresh || err != nil {
			t.Errorf("known: %v, %v", fresh, err)
		}
		for i := range 8 {
			m.Seen(ctx, fmt.Sprintf("ws\x00p%d\x00x", i), now.Add(time.Second))
		}
		if m.Len() != 10 {
			t.Errorf("%d keys", m.Len())
		}
		now = now.Add(time.Minute)
		if fresh, err := m.Seen(ctx, "ws\x00mallory\x009", now.Add(time.Minute)); !fresh || err != nil || m.Len() != 1 {
			t.Errorf("after the time: %v, %v, %d", fresh, err, m.Len())
		}
	})
}

func TestBodyChecklist(t *testing.T) {
	t.Run("AGH-040 greet", func(t *testing.T) {
		accepts(t, "card", greetText)
		refuses(t, "no card", with(greetText, "body", js(`{}`)), ReasonMalformed)
		refuses(t, "foreign card", with(greetText, "from", "bob"), ReasonMalformed)
		for _, l := range []string{"profiles_supported", "capabilities", "artifacts_supported",
			"trust_modes_supported"} {
			refuses(t, l, strings.Replace(greetText, `"`+l+`":[]`, `"`+l+`":null`, 1), ReasonMalformed)
			refuses(t, l, strings.Replace(greetText, `"`+l+`":[]`, `"`+l+`":[1]`, 1), ReasonMalformed)
		}
	})
	t.Run("AGH-041 whois", func(t *testing.T) {
		answer := with(greetText, "kind", "whois", "reply_to", "q", "body", js(`{"type":"response",`+cardText[1:]))
		accepts(t, "response", answer)
		refuses(t, "no reply_to", with(answer, "reply_to", nil), ReasonMalformed)
		refuses(t, "no card", with(answer, "body", js(`{"type":"response"}`)), ReasonMalformed)
		refuses(t, "foreign card", with(answer, "from", "bob"), ReasonMalformed)
		refuses(t, "request with card", with(answer, "body", js(`{"type":"request",`+cardText[1:])), ReasonMalformed)
	})
	t.Run("AGH-042 say", func(t *testing.T) {
		for _, s := range []string{"", " \n", "\u00a0", "\u2003\u00a0"} {
			b, _ := json.Marshal(map[string]string{"text": s})
			refuses(t, s, with(sayText, "body", js(b)), ReasonMalformed)
		}
		accepts(t, "artifacts", with(sayText, "body", js(`{"text":"x","artifacts":[1,null,"a",{},[]]}`)))
		refuses(t, "artifacts object", with(sayText, "body", js(`{"text":"x","artifacts":{}}`)), ReasonMalformed)
	})
	good := Capability{ID: "a", Summary: "s", Outcome: "o", Requirements: []string{"y", "x"}}
	doc, err := good.Encode()
	if err != nil {
		t.Fatal(err)
	}
	transfer := with(workText, "kind", "capability", "body", js(`{"capability":`+string(doc)+`}`))
	t.Run("AGH-043 capability", func(t *testing.T) {
		accepts(t, "good", transfer)
		refuses(t, "unwrapped", with(transfer, "body", js(doc)), ReasonMalformed)
		for _, m := range []string{"id", "summary", "outcome", "digest"} {
			refuses(t, m, with(transfer, "body", js(`{"capability":`+with(string(doc), m, nil)+`}`)), ReasonMalformed)
		}
		for _, l := range []string{`["a"," "]`, `["a","a"]`, `["a"," a"]`} {
			refuses(t, l, with(transfer, "body", js(`{"capability":`+with(string(doc), "requirements", js(l))+`}`)),
				ReasonMalformed)
		}
	})
	t.Run("AGH-044 digest", func(t *testing.T) { // and TestVectors/capability-digest.json
		refuses(t, "mismatch", with(transfer, "body", js(`{"capability":`+with(string(doc), "summary", "t")+`}`)),
			ReasonVerificationFailed)
		digest, _ := good.Digest()
		refuses(t, "upper case", with(transfer, "body", js(`{"capability":`+
			with(string(doc), "digest", strings.ToUpper(digest))+`}`)), ReasonVerificationFailed)
	})
	t.Run("AGH-045 receipt", func(t *testing.T) {
		for body, ok := range map[string]bool{
			`{"for_id":"m","status":"accepted"}`:                                       true,
			`{"for_id":"m","status":"accepted","reason_code":null}`:                    true,
			`{"for_id":"m","status":"accepted","reason_code":"busy"}`:                  false,
			`{"for_id":"m","status":"rejected"}`:                                       false,
			`{"for_id":"m","status":"rejected","reason_code":"busy","detail":"x"}`:     true,
			`{"for_id":"m","status":"expired"}`:                                        false,
			`{"for_id":"m","status":"unsupported","reason_code":"unsupported_kind"}`:   true,
			`{"for_id":"m","status":"canceled"}`:                                       true,
			`{"for_id":"m","status":"canceled","reason_code":"busy"}`:                  true,
			`{"for_id":"m","status":"rejected","reason_code":"acme.full"}`:             false,
			`{"for_id":" ","status":"accepted"}`:                                       false,
			`{"status":"accepted"}`:                                                    false,
			`{"for_id":"m","status":"queued"}`:                                         false,
			`{"for_id":"m","status":"rejected","reason_code":"legacy_field_rejected"}`: true,
		} {
			if raw := with(workText, "kind", "receipt", "body", js(body)); ok {
				accepts(t, body, raw)
			} else {
				refuses(t, body, raw, ReasonMalformed)
			}
		}
	})
	t.Run("AGH-046 trace", func(t *testing.T) {
		for _, s := range []WorkState{StateSubmitted, StateWorking, StateNeedsInput, StateCompleted, StateFailed,
			StateCanceled} {
			accepts(t, string(s), with(workText, "kind", "trace", "body", map[string]any{"state": s}))
		}
		for _, s := range []string{"done", "", "Working"} {
			refuses(t, s, with(workText, "kind", "trace", "body", map[string]any{"state": s}), ReasonMalformed)
		}
	})
	t.Run("AGH-047 privileged capability", func(t *testing.T) { // digest §12 (1)
		raw := strings.Replace(greetText, `"capabilities":[]`, `"capabilities":[" task.write "]`, 1)
		refuses(t, "no proof", raw, ReasonVerificationFailed)
		refuses(t, "any proof", with(raw, "proof", js(`{"x":1}`)), ReasonVerificationFailed)
		id := testIdentity(t, 1)
		signed := signedGreet(t, id, privilegedCapability)
		v := Verifier{Trust: true, Now: atClock}
		if got, err := v.Verify(context.Background(), signed); err != nil || !got.Verdict.Verified {
			t.Errorf("verified: %v", err)
		}
		if _, err := v.Verify(context.Background(), []byte(with(raw,
			"proof", js(`{"profile":"acme"}`)))); !errors.Is(err, ErrPrivileged) {
			t.Errorf("plain peer with trust on: %v", err)
		}
	})
	t.Run("the seed example of a failure keeps its step and sentinel", func(t *testing.T) {
		var e *Error
		if err := verifyText(with(sayText, "channel", "A")); !errors.As(err, &e) || e.Step != StepFields ||
			e.Field != "channel" || !errors.Is(err, ErrMalformed) {
			t.Errorf("%+v", e)
		}
	})
}

// node makes a strict router with hosted peers in ws/c.
func node(t testing.TB, now func() time.Time, peers ...string) *Router {
	t.Helper()
	if now == nil {
		now = atClock
	}
	r := &Router{Verifier: Verifier{Now: now}}
	for _, p := range peers {
		card, err := NewCard(p, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Host(&Local{WorkspaceID: "ws", Channel: "c", Card: card}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func receive(r *Router, raw string) Result {
	return r.Receive(context.Background(), Inbound{Raw: []byte(raw)})
}

// guarded is receive from a transport that uses [Router.Guard].
func guarded(r *Router, raw string) Result {
	return r.Receive(context.Background(), Inbound{Raw: []byte(raw), May: r.Guard})
}

func delivered(res Result, peers ...string) bool { return slices.Equal(res.Deliver, peers) }

// AGH-037: an id is remembered until the first moment at which its message is
// stale.
func TestUntil(t *testing.T) {
	for _, l := range []Limits{{}, {MaxReplayAge: 10, MaxTTL: 3600}} {
		for _, e := range []Envelope{{TS: clock}, {TS: clock + 5}, {TS: clock - 7}, {TS: clock, ExpiresAt: clock + 1},
			{TS: 1, ExpiresAt: clock + 3600}} {
			until := l.Until(&e)
			if err := l.Fresh(&e, until.Add(-time.Nanosecond)); err != nil {
				t.Errorf("%+v: stale before its id may be forgotten: %v", e, err)
			}
			if err := l.Fresh(&e, until); !errors.Is(err, ErrStale) {
				t.Errorf("%+v: fresh when its id may be forgotten: %v", e, err)
			}
		}
	}
}
