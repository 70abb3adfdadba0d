package a2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs f as a subtest with its own clock.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func toolCall(id, tool, arguments string) string {
	return fmt.Sprintf(`{"type":"tool/call/req","id":%q,"tool_name":%q,"arguments":%s}`, id, tool, arguments)
}

func wantError(t *testing.T, f frame, reqID, code, reason string) {
	t.Helper()
	if f.str("type") != "error" || f.str("code") != code || f.str("req_id") != reqID {
		t.Errorf("got %v, want error %s for %q", f, code, reqID)
		return
	}
	detail, ok := f["detail"].(map[string]any) // A2E-072: always an object, all six members
	if !ok || reason != "" && detail["reason"] != reason {
		t.Errorf("detail %v, want reason %q", f["detail"], reason)
	}
	for _, name := range []string{"req_id", "code", "message", "detail", "retryable", "capability_name"} {
		if _, ok := f[name]; !ok {
			t.Errorf("error frame without %s: %v", name, f)
		}
	}
}

func wantPong(t *testing.T, f frame, id string) {
	t.Helper()
	if f.str("type") != "pong" || f.str("req_id") != id {
		t.Errorf("got %v, want pong for %q", f, id)
	}
}

func TestFraming(t *testing.T) {
	start := func(t *testing.T) *conn {
		co := connect(t, testHost())
		co.handshake("test-token-a")
		return co
	}
	bubble(t, "A2E-001 ping is answered once", func(t *testing.T) {
		co := start(t)
		co.send(`{"type":"ping","id":"p1"}`)
		wantPong(t, co.next(), "p1")
		co.quiet()
	})
	bubble(t, "A2E-002 CRLF", func(t *testing.T) {
		co := start(t)
		co.write("{\"type\":\"ping\",\"id\":\"p\"}\r\n")
		wantPong(t, co.next(), "p")
	})
	bubble(t, "A2E-003 blank lines", func(t *testing.T) {
		co := start(t)
		co.write("\n \t \r\n\r\r\n\n")
		co.quiet()
	})
	bubble(t, "A2E-004 several messages in one read", func(t *testing.T) {
		co := start(t)
		co.write("{\"type\":\"ping\",\"id\":\"p1\"}\n{\"type\":\"ping\",\"id\":\"p2\"}\n")
		wantPong(t, co.next(), "p1")
		wantPong(t, co.next(), "p2")
	})
	bubble(t, "A2E-005 split at every byte", func(t *testing.T) {
		co := start(t)
		line := "{\"type\":\"ping\",\"id\":\"é😀\"}\n"
		for i := 1; i < len(line); i++ {
			co.write(line[:i])
			co.write(line[i:])
			wantPong(t, co.next(), "é😀")
		}
	})
	bubble(t, "A2E-007 a lone brace", func(t *testing.T) {
		co := start(t)
		co.send("{")
		wantError(t, co.next(), "", "parse_error", "syntax")
		co.send(`{"type":"ping","id":"p"}`)
		wantPong(t, co.next(), "p")
	})
	bubble(t, "A2E-008 two objects on a line", func(t *testing.T) {
		co := start(t)
		co.send(`{"type":"ping","id":"a"} {"type":"ping","id":"b"}`)
		wantError(t, co.next(), "", "parse_error", "")
		co.quiet()
	})
	bubble(t, "A2E-009 invalid UTF-8", func(t *testing.T) {
		co := start(t)
		co.send("{\"type\":\"ping\",\"id\":\"\xff\"}")
		wantError(t, co.next(), "", "parse_error", "invalid_utf8")
		co.send(`{"type":"ping","id":"p"}`)
		wantPong(t, co.next(), "p")
	})
	bubble(t, "A2E-010 over-long lines, the connection closed after many", func(t *testing.T) {
		h := testHost()
		h.Limits.Frame = 1000
		co := connect(t, h)
		co.handshake("test-token-a")
		long := `{"type":"ping","id":"` + strings.Repeat("x", 5000) + `"}`
		for range 7 {
			co.send(long)
			wantError(t, co.next(), "", "invalid_message", "frame_too_large")
			co.send(`{"type":"ping","id":"p"}`)
			wantPong(t, co.next(), "p")
		}
		exact := `{"type":"ping","id":"e","x":"` + strings.Repeat("x", 1000-31) + `"}`
		if len(exact) != 1000 {
			t.Fatal(len(exact))
		}
		co.send(exact)
		wantPong(t, co.next(), "e")
		co.send(exact[:len(exact)-2] + `x"}`)
		wantError(t, co.next(), "", "invalid_message", "frame_too_large")
		if f := co.next(); f != nil {
			t.Errorf("still open: %v", f)
		}
	})
	t.Run("A2E-010 a line without end is not held", func(t *testing.T) {
		const limit = 1000
		for name, src := range map[string]io.Reader{
			"one":  io.LimitReader(endless('x'), 8<<20),
			"many": strings.NewReader(strings.Repeat(strings.Repeat("x", 4095)+"\n", 2048)),
		} {
			r := NewReader(src)
			r.Limit = limit
			tooLong := 0
			for {
				_, _, err := r.Next()
				if errors.Is(err, ErrTooLarge) {
					tooLong++
				} else if err != nil {
					break
				}
				if n := cap(r.buf); n > maxBuffer {
					t.Fatalf("%s: %d bytes are held for lines of at most %d", name, n, limit)
				}
			}
			if want := map[string]int{"one": 1, "many": 2048}[name]; tooLong != want {
				t.Errorf("%s: %d lines too long, want %d", name, tooLong, want)
			}
		}
	})
	bubble(t, "A2E-011 nesting", func(t *testing.T) {
		co := start(t)
		deep := func(n int) string {
			return `{"type":"ping","id":"p","x":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`
		}
		co.send(deep(DefaultMaxDepth - 1))
		wantPong(t, co.next(), "p")
		co.send(deep(DefaultMaxDepth))
		wantError(t, co.next(), "", "parse_error", "too_deep")
		co.send(deep(20_000))
		wantError(t, co.next(), "", "parse_error", "too_deep")
	})
	bubble(t, "A2E-012 not an object", func(t *testing.T) {
		co := start(t)
		for _, line := range []string{"[]", "null", "5", `"x"`} {
			co.send(line)
			wantError(t, co.next(), "", "parse_error", "not_an_object")
		}
	})
	bubble(t, "A2E-013 NaN", func(t *testing.T) {
		co := start(t)
		for _, v := range []string{"NaN", "Infinity", "-Infinity", "01", "+1", ".5", "1."} {
			co.send(`{"type":"ping","id":"p","x":` + v + `}`)
			wantError(t, co.next(), "", "parse_error", "")
		}
	})
	// A2E-014, A2E-016, A2E-020 and A2E-126 are checked by conn.next of every
	// test: checkOutput.
	bubble(t, "A2E-014 A2E-016 output is one compact ASCII line", func(t *testing.T) {
		co := start(t)
		co.send(toolCall("u", "echo", `{ "text" : [ "é\u2028\u0085😀" , 1.0 ] }`))
		line := <-co.frames
		checkOutput(t, line)
		if !bytes.Contains(line, []byte(`{"echo":["\u00e9\u2028\u0085\ud83d\ude00",1.0]}`)) {
			t.Errorf("got %s", line)
		}
	})
	bubble(t, "A2E-015 no interleaving under parallel large answers", func(t *testing.T) {
		co := start(t)
		big := strings.Repeat("b", 100<<10)
		for i := range 100 {
			co.send(toolCall(fmt.Sprint("b", i), "echo", `{"text":"`+big+`"}`))
		}
		got := map[string]bool{}
		for range 100 {
			f := co.next()
			if f.str("type") != "tool/call/resp" {
				t.Fatalf("got %.200v", f)
			}
			got[f.str("req_id")] = true
		}
		if len(got) != 100 {
			t.Errorf("%d answers", len(got))
		}
	})
}

// endless reads as one byte for ever.
type endless byte

func (e endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(e)
	}
	return len(p), nil
}

func TestBaseFields(t *testing.T) {
	start := func(t *testing.T) *conn {
		co := connect(t, testHost())
		co.handshake("test-token-a")
		return co
	}
	bubble(t, "A2E-020 base members of what is sent", func(t *testing.T) {
		co := start(t)
		co.send(`{"type":"ping","id":"p"}`)
		f := co.next()
		ts, _ := f["ts"].(json.Number).Float64()
		if d := float64(time.Now().UnixMicro())/1e6 - ts; d < -5 || d > 5 {
			t.Errorf("ts is %v s away", d)
		}
	})
	t.Run("A2E-021 ids are unique", func(t *testing.T) {
		seen := map[string]bool{}
		for range 100_000 {
			id := NewID()
			if !isHex32(id) || seen[id] {
				t.Fatal(id)
			}
			seen[id] = true
		}
	})
	t.Run("A2E-022 A2E-023 A2E-024 A2E-025 versions", func(t *testing.T) {
		for members, want := range map[string]Code{
			``: "", `,"version":"1.0"`: "", `,"a2e":"1.0"`: "", `,"a2e":"1.0","version":"1.0"`: "",
			`,"version":"1"`: "", `,"version":"1.27"`: "",
			`,"scp":"1.0"`: "", `,"scp":7`: "", `,"skills":"9"`: "",
			`,"version":"2.0"`: VersionMismatch, `,"a2e":"2.0"`: VersionMismatch,
			`,"a2e":"1.0","version":"2.0"`: VersionMismatch,
			`,"a2e":"1.0","version":"1.1"`: VersionMismatch, `,"version":""`: VersionMismatch,
			`,"version":"1."`: VersionMismatch,
			`,"version":"10"`: VersionMismatch, `,"version":"1.x"`: VersionMismatch, `,"scp":"2.0"`: VersionMismatch,
			`,"version":1.0`: SchemaViolation, `,"a2e":null`: SchemaViolation,
		} {
			_, err := Decode([]byte(`{"type":"ping","id":"a"` + members + `}`))
			var e *Error
			errors.As(err, &e)
			if want == "" && err != nil || want != "" && (e == nil || e.Code != want || e.ReqID != "a") {
				t.Errorf("%s: %v, want %q", members, err, want)
			}
		}
	})
	t.Run("A2E-026 ts", func(t *testing.T) {
		for ts, ok := range map[string]bool{``: true, `,"ts":5`: true, `,"ts":1e9`: true, `,"ts":-0.5`: true,
			`,"ts":null`: false, `,"ts":"x"`: false, `,"ts":"1"`: false, `,"ts":true`: false} {
			m, err := Decode([]byte(`{"type":"ping","id":"a"` + ts + `}`))
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Check(); (err == nil) != ok || err != nil && !errors.Is(err, ErrSchema) {
				t.Errorf("%s: %v", ts, err)
			}
		}
	})
	bubble(t, "A2E-027 ids that are no usable string", func(t *testing.T) {
		co := start(t)
		for _, id := range []string{`5`, `null`, `{}`, `[1]`, `"\ud800"`, `"` + strings.Repeat("x", 257) + `"`} {
			co.send(`{"type":"ping","id":` + id + `}`)
			f := co.next()
			wantError(t, f, "", "schema_violation", "id")
			if id == "5" && f["detail"].(map[string]any)["id"] != json.Number("5") {
				t.Errorf("detail %v", f["detail"])
			}
		}
	})
	bubble(t, "A2E-028 a missing or empty id", func(t *testing.T) {
		co := start(t)
		for _, line := range []string{`{"type":"ping"}`, `{"type":"ping","id":""}`} {
			co.send(line)
			if f := co.next(); f.str("type") != "pong" || f.str("req_id") == "" {
				t.Errorf("%s: %v", line, f)
			}
		}
	})
	bubble(t, "A2E-029 the last of equal names counts", func(t *testing.T) {
		co := start(t)
		co.send(`{"type":"pong","type":"ping","id":"first","\u0069d":"second"}`)
		wantPong(t, co.next(), "second")
		co.send(`{"type":"tool/call/req","id":"d","tool_name":"nope","tool_name":"echo","arguments":[],"arguments":{"text":1}}`)
		if f := co.next(); f.str("type") != "tool/call/resp" || f["data"].(map[string]any)["tool_name"] != "echo" {
			t.Errorf("got %v", f)
		}
	})
	t.Run("A2E-030 unknown members stay", func(t *testing.T) {
		line := `{"type":"ping","id":"a","x_trace":{"a":[1,2.50]},"y":1e400}`
		m, err := Decode([]byte(line))
		if err != nil || m.Check() != nil {
			t.Fatal(err)
		}
		if string(m.Raw()) != line || string(m.Get("x_trace")) != `{"a":[1,2.50]}` {
			t.Errorf("raw %s", m.Raw())
		}
		if full := string(m.Complete(time.Now())); !strings.Contains(full, `"x_trace":{"a":[1,2.50]}`) ||
			!strings.Contains(full, `"y":1e400`) {
			t.Errorf("complete %s", full)
		}
	})
	bubble(t, "A2E-031 a type that is no name", func(t *testing.T) {
		co := start(t)
		for _, typ := range []string{``, `,"type":null`, `,"type":5`, `,"type":""`, `,"type":{}`, `,"type":["ping"]`} {
			co.send(`{"id":"a"` + typ + `}`)
			wantError(t, co.next(), "a", "invalid_message", "type")
		}
	})
	bubble(t, "A2E-032 types match exactly", func(t *testing.T) {
		co := start(t)
		for _, typ := range []string{"Ping", "ping ", " ping", "PING", "tool/call/REQ", "a\u0000b",
			strings.Repeat("x", 5000)} {
			b, _ := json.Marshal(map[string]string{"type": typ, "id": "a"})
			co.send(string(b))
			wantError(t, co.next(), "a", "invalid_message", "unknown_type")
		}
		co.send(`{"type":"pi\u006eg","id":"same"}`) // an escape is another spelling, not another name
		wantPong(t, co.next(), "same")
	})
}

func TestHandshake(t *testing.T) {
	hello := func(more string) string { return `{"type":"handshake/req","id":"h"` + more + `}` }
	bubble(t, "A2E-040 a valid token", func(t *testing.T) {
		co := connect(t, testHost())
		f := co.handshake("test-token-a")
		if !isHex32(f.str("session_id")) || f["max_parallel"] != json.Number("16") || f.str("reason") != "" {
			t.Errorf("got %v", f)
		}
	})
	bubble(t, "A2E-041 a wrong token, and no service without handshake", func(t *testing.T) {
		for _, token := range []string{"", "wrong", "test-token-", "test-token-aa"} {
			co := connect(t, testHost())
			co.send(hello(`,"auth_token":"` + token + `","agent_caps":["tools"]`))
			f := co.next()
			if f["ok"] != false || f.str("reason") != "auth_failed" || len(f["accepted_caps"].([]any)) != 0 {
				t.Errorf("token %q: %v", token, f)
			}
			co.send(toolCall("t", "echo", `{}`))
			wantError(t, co.next(), "t", "unauthorized", "no_handshake")
		}
	})
	bubble(t, "a host without Auth refuses everybody, and an empty secret matches nothing", func(t *testing.T) {
		for _, h := range []*Host{{}, {Auth: StaticTokens{"a": ""}}, {Auth: StaticTokens{}}} {
			co := connect(t, h)
			co.send(hello(""))
			if f := co.next(); f["ok"] != false {
				t.Errorf("got %v", f)
			}
		}
	})
	bubble(t, "A2E-042 accepted is asked and offered, once, of the enumeration", func(t *testing.T) {
		h := testHost()
		h.Capabilities["private"] = h.Capabilities["tools"]
		co := connect(t, h)
		co.send(hello(`,"auth_token":"test-token-a","agent_caps":["private","memory","tools","memory","bogus","mcp"]`))
		var got []string
		for _, c := range co.next()["accepted_caps"].([]any) {
			got = append(got, c.(map[string]any)["capability"].(string))
		}
		if !slices.Equal(got, []string{"memory", "tools"}) {
			t.Errorf("got %v", got)
		}
	})
	bubble(t, "A2E-043 A2E-045 defaults of SDK agents, and none", func(t *testing.T) {
		for _, caps := range []string{`,"agent_caps":["streaming","artifacts"]`, ``} {
			co := connect(t, testHost())
			co.send(hello(`,"auth_token":"test-token-a"` + caps))
			if f := co.next(); f["ok"] != true || len(f["accepted_caps"].([]any)) != 0 {
				t.Errorf("got %v", f)
			}
			co.send(toolCall("t", "echo", `{"text":1}`)) // not negotiated (A2E §14)
			if f := co.next(); f.str("type") != "tool/call/resp" {
				t.Errorf("got %v", f)
			}
		}
	})
	bubble(t, "Strict enforces negotiation", func(t *testing.T) {
		h := testHost()
		h.Strict = true
		co := connect(t, h)
		co.send(hello(`,"auth_token":"test-token-a","agent_caps":["memory"]`))
		co.next()
		co.send(toolCall("t", "echo", `{}`))
		wantError(t, co.next(), "t", "capability_missing", "")
	})
	bubble(t, "A2E-044 capabilities of a wrong type", func(t *testing.T) {
		for _, caps := range []string{`"tools"`, `[1]`, `null`} {
			co := connect(t, testHost())
			co.send(hello(`,"auth_token":"test-token-a","agent_caps":` + caps))
			wantError(t, co.next(), "h", "schema_violation", "")
		}
	})
	bubble(t, "A2E-046 before the handshake", func(t *testing.T) {
		co := connect(t, testHost())
		for _, typ := range []string{"tool/list/req", "memory/init/req", "foo/bar/req"} {
			co.send(`{"type":"` + typ + `","id":"x"}`)
			wantError(t, co.next(), "x", "unauthorized", "no_handshake")
		}
		co.send(`{"type":"ping","id":"p"}`)
		wantPong(t, co.next(), "p")
	})
	bubble(t, "A2E-047 a second handshake", func(t *testing.T) {
		co := connect(t, testHost())
		first := co.handshake("test-token-a").str("session_id")
		if again := co.handshake("test-token-a").str("session_id"); again != first {
			t.Errorf("session %s became %s", first, again)
		}
		co.send(hello(`,"auth_token":"test-token-b"`))
		if f := co.next(); f["ok"] != false {
			t.Errorf("another identity: %v", f)
		}
		co.send(toolCall("t", "echo", `{"text":1}`)) // the first identity still holds
		if f := co.next(); f.str("type") != "tool/call/resp" {
			t.Errorf("got %v", f)
		}
	})
	bubble(t, "A2E-048 no secret in logs, errors or refusals", func(t *testing.T) {
		var log bytes.Buffer
		var mu sync.Mutex
		h := testHost()
		h.Log = slog.New(slog.NewTextHandler(&lockedWriter{w: &log, mu: &mu},
			&slog.HandlerOptions{Level: slog.LevelDebug}))
		h.Refused = func(r Refusal) {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(&log, "%+v %v\n", r, r.Err)
		}
		co := connect(t, h)
		co.send(hello(`,"auth_token":"SECRET-1"`))
		refused := <-co.frames
		co.send(hello(`,"auth_token":["SECRET-2"]`))
		invalid := <-co.frames
		co.handshake("test-token-a")
		co.send(toolCall("x", "fails", `{"token":"SECRET-3"}`))
		failed := <-co.frames
		mu.Lock()
		defer mu.Unlock()
		for _, text := range [][]byte{refused, invalid, failed, log.Bytes()} {
			if bytes.Contains(text, []byte("SECRET")) || bytes.Contains(text, []byte("test-token")) {
				t.Errorf("leaks: %s", text)
			}
		}
	})
	bubble(t, "three failed handshakes, or thirty seconds, end the session", func(t *testing.T) {
		co := connect(t, testHost())
		for range 3 {
			co.send(hello(`,"auth_token":"no"`))
			if f := co.next(); f["ok"] != false {
				t.Errorf("got %v", f)
			}
		}
		if f := co.next(); f != nil {
			t.Errorf("open: %v", f)
		}
		start := time.Now()
		if f := connect(t, testHost()).next(); f != nil || time.Since(start) != 30*time.Second {
			t.Errorf("open: %v after %v", f, time.Since(start))
		}
	})
	bubble(t, "version 2 in a handshake", func(t *testing.T) {
		co := connect(t, testHost())
		co.send(hello(`,"auth_token":"test-token-a","version":"2.0"`))
		if f := co.next(); f["ok"] != false || f.str("reason") != "version_mismatch" {
			t.Errorf("got %v", f)
		}
	})
	bubble(t, "an identity is held to its capabilities", func(t *testing.T) {
		h := testHost()
		h.Auth = authFunc(func(c Credentials) (Identity, error) {
			return Identity{Name: "limited", Capabilities: []string{"tools"}}, nil
		})
		co := connect(t, h)
		f := co.handshake("")
		if caps := f["accepted_caps"].([]any); len(caps) != 1 {
			t.Errorf("accepted %v", caps)
		}
		co.send(`{"type":"memory/init/req","id":"m"}`)
		wantError(t, co.next(), "m", "unauthorized", "")
	})
}

type authFunc func(Credentials) (Identity, error)

func (f authFunc) Authenticate(_ context.Context, c Credentials) (Identity, error) { return f(c) }

type lockedWriter struct {
	w  io.Writer
	mu *sync.Mutex
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

func TestCorrelation(t *testing.T) {
	bubble(t, "A2E-050 A2E-051 A2E-052 A2E-053 events and one final frame for each of 40 streaming requests",
		func(t *testing.T) {
			h := testHost()
			h.Limits.Parallel = 40
			co := connect(t, h)
			co.handshake("test-token-a")
			for i := range 40 {
				co.send(toolCall(fmt.Sprint("r", i), "stream", `{}`))
			}
			seq, final := map[string]int{}, map[string]bool{}
			for range 40 * 5 {
				f := co.next()
				id := f.str("req_id")
				if final[id] {
					t.Fatalf("after the final frame: %v", f)
				}
				switch f.str("type") {
				case "tool/event":
					if f["seq"] != json.Number(fmt.Sprint(seq[id])) {
						t.Errorf("seq %v, want %d", f["seq"], seq[id])
					}
					seq[id]++
				case "tool/call/resp":
					final[id] = true
					if seq[id] != 4 {
						t.Errorf("%d events", seq[id])
					}
				default:
					t.Fatalf("got %v", f)
				}
			}
			co.quiet()
			if len(final) != 40 {
				t.Errorf("%d final frames", len(final))
			}
		})
	bubble(t, "A2E-054 a slow request delays no other", func(t *testing.T) {
		co := connect(t, testHost())
		co.handshake("test-token-a")
		co.send(toolCall("slow", "slow", `{"secs":5}`))
		co.send(toolCall("fast", "echo", `{"text":1}`))
		for _, want := range []string{"fast", "slow"} {
			if f := co.next(); f.str("req_id") != want {
				t.Errorf("got %v, want %s", f, want)
			}
		}
	})
	bubble(t, "A2E-055 an id is served once", func(t *testing.T) {
		h := testHost()
		dropped := 0
		h.Refused = func(r Refusal) {
			if errors.Is(r.Err, ErrReplay) && r.Dropped {
				dropped++
			}
		}
		co := connect(t, h)
		co.handshake("test-token-a")
		co.send(toolCall("d", "slow_counter", `{"secs":1}`))
		co.send(toolCall("d", "slow_counter", `{"secs":1}`)) // in flight
		f := co.next()
		for _, pause := range []float64{0, 10} {
			_ = sleep(t.Context(), pause)
			co.send(toolCall("d", "slow_counter", `{"secs":1}`)) // answered
			if again := co.next(); !reflect.DeepEqual(again, f) {
				t.Errorf("got %v, want the recorded answer %v", again, f)
			}
		}
		if n := f["data"].(map[string]any)["data"].(map[string]any)["count"]; n != json.Number("1") || dropped != 1 {
			t.Errorf("count %v, dropped %d", n, dropped)
		}
		_ = sleep(t.Context(), 301) // beyond the window
		co.send(toolCall("d", "counter", `{}`))
		if f := co.next(); f["data"].(map[string]any)["data"].(map[string]any)["count"] != json.Number("2") {
			t.Errorf("got %v", f)
		}
	})
	bubble(t, "A2E-055 over HTTP and stdio too", func(t *testing.T) {
		call := toolCall("d", "counter", `{}`)
		h := testHost()
		id := newHTTPSession(t, h, "test-token-a")
		post(h, id, call)
		first := sseFrames(t, readStream(t, h, id))
		_ = sleep(t.Context(), 70) // beyond the replay time of a broken stream
		post(h, id, call)
		if again := sseFrames(t, readStream(t, h, id)); !reflect.DeepEqual(again[len(again)-1], first[len(first)-1]) {
			t.Errorf("HTTP: %v, want %v", again, first)
		}

		in, agent := io.Pipe()
		host, out := io.Pipe()
		served := make(chan error, 1)
		go func() { served <- testHost().ServeStdio(t.Context(), in, out); out.Close() }()
		lines := NewReader(host)
		ask := func(line string) frame {
			if _, err := io.WriteString(agent, line+"\n"); err != nil {
				t.Fatal(err)
			}
			b, _, err := lines.Next()
			if err != nil {
				t.Fatal(err)
			}
			return parseFrame(t, b)
		}
		ask(`{"type":"handshake/req","id":"hs","auth_token":"test-token-a"}`)
		want := ask(call)
		if again := ask(call); want.str("type") != "tool/call/resp" || !reflect.DeepEqual(again, want) {
			t.Errorf("stdio: %v, want %v", again, want)
		}
		_ = agent.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	bubble(t, "answers are kept within bounds", func(t *testing.T) {
		h := testHost()
		h.Limits.Answers, h.Limits.AllAnswers = 2000, 3000
		a, b := connect(t, h), connect(t, h)
		a.handshake("test-token-a")
		b.handshake("test-token-b")
		calls := func(co *conn) {
			for i := range 10 {
				co.send(toolCall(fmt.Sprint("d", i), "counter", `{}`))
				co.next()
				if n := h.answers.used.Load(); n > 3000 {
					t.Fatalf("%d bytes of answers", n)
				}
			}
		}
		calls(a)
		calls(b)
		_ = sleep(t.Context(), 1)
		a.send(toolCall("d0", "counter", `{}`))
		wantError(t, a.next(), "d0", "invalid_message", "duplicate_id") // not executed
		a.send(toolCall("d9", "counter", `{}`))
		if f := a.next(); f.str("type") != "tool/call/resp" || f.str("req_id") != "d9" {
			t.Errorf("the newest answer: %v", f)
		}
		for _, co := range []*conn{a, b} {
			co.send(`{"type":"shutdown","id":"s","timeout":0}`)
			if f := co.next(); f != nil {
				t.Errorf("after shutdown: %v", f)
			}
		}
		synctest.Wait()
		if n := h.answers.used.Load(); n != 0 {
			t.Errorf("%d bytes of answers of sessions that ended", n)
		}
	})
	bubble(t, "a Memory of the embedder decides about ids", func(t *testing.T) {
		h := testHost()
		seen := map[string]time.Time{}
		h.Memory = memoryFunc(func(key string, until time.Time) (bool, error) {
			_, dup := seen[key]
			seen[key] = until
			return !dup, nil
		})
		co := connect(t, h)
		id := co.handshake("test-token-a").str("session_id")
		co.send(toolCall("d", "counter", `{}`))
		first := co.next()
		co.send(toolCall("d", "counter", `{}`))
		if again := co.next(); !reflect.DeepEqual(again, first) {
			t.Errorf("got %v, want the recorded answer %v", again, first)
		}
		for key := range seen { // another process served it
			seen[strings.TrimSuffix(key, "d")+"e"] = time.Now()
		}
		co.send(toolCall("e", "counter", `{}`))
		wantError(t, co.next(), "e", "invalid_message", "duplicate_id")
		for key := range seen {
			if strings.Contains(key, id) {
				t.Errorf("the key %q holds the secret session id", key)
			}
		}
	})
	bubble(t, "A2E-056 equal ids in two sessions", func(t *testing.T) {
		h := testHost()
		a, b := connect(t, h), connect(t, h)
		a.handshake("test-token-a")
		b.handshake("test-token-b")
		a.send(toolCall("same", "echo", `{"text":"a"}`))
		b.send(toolCall("same", "echo", `{"text":"b"}`))
		for want, co := range map[string]*conn{"a": a, "b": b} {
			if got := co.next()["data"].(map[string]any)["data"].(map[string]any)["echo"]; got != want {
				t.Errorf("got %v, want %v", got, want)
			}
		}
	})
	bubble(t, "A2E-057 A2E-058 answers and events to nobody are never answered", func(t *testing.T) {
		co := connect(t, testHost())
		co.handshake("test-token-a")
		for _, line := range []string{
			`{"type":"tool/call/resp","id":"a","req_id":"z","data":{"success":true,"tool_name":"x","duration_ms":0}}`,
			`{"type":"tool/call/resp","id":5,"req_id":"z"}`, `{"type":"tool/call/resp"}`,
			`{"type":"error","id":"a"}`, `{"type":"error","id":7,"code":[]}`, `{"type":"error","version":"9"}`,
			`{"type":"error","detail":null,"code":"x","req_id":{}}`,
			`{"type":"invoke/event","id":"a","kind":5}`, `{"type":"x/y/event","id":{}}`, `{"type":"x/y/push","id":"a"}`,
			`{"type":"unheard","id":"a","req_id":"z"}`, `{"type":"pong"}`, `{"type":"handshake/resp","ok":false}`,
			`{"type":"mcp/sample/req","id":"s","req_id":"z","content":{},"role":"assistant"}`,
		} {
			co.send(line)
			synctest.Wait()
			select {
			case f := <-co.frames:
				t.Errorf("%s answered: %s", line, f)
			default:
			}
		}
	})
}

type memoryFunc func(key string, until time.Time) (bool, error)

func (f memoryFunc) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	return f(key, until)
}

func TestErrors(t *testing.T) {
	start := func(t *testing.T, h *Host) *conn {
		co := connect(t, h)
		co.handshake("test-token-a")
		return co
	}
	bubble(t, "A2E-070 an unknown request type", func(t *testing.T) {
		co := start(t, testHost())
		for _, typ := range []string{"foo/bar/req", "memory/recall/req", "SUBAGENT_LIST_REQ", "planning/plan/list"} {
			co.send(`{"type":"` + typ + `","id":"u"}`)
			f := co.next()
			if typ == "SUBAGENT_LIST_REQ" {
				if f.str("code") != "invalid_message" {
					t.Errorf("got %v", f)
				}
				continue
			}
			wantError(t, f, "u", "invalid_message", "unknown_type")
			if f["retryable"] != false || f["detail"].(map[string]any)["type"] != typ {
				t.Errorf("got %v", f)
			}
		}
	})
	bubble(t, "unknown types reach the catch-all whole", func(t *testing.T) {
		h := testHost()
		h.Handler = func(_ context.Context, r *Request) (Response, error) {
			return Response{Body: map[string]any{"raw": json.RawMessage(r.Raw()), "known": r.Known()}}, nil
		}
		co := start(t, h)
		co.send(`{"type":"foo/bar/req","id":"u","n":1.50,"deep":{"x":[1e5]}}`)
		line := <-co.frames
		if !bytes.Contains(line, []byte(`"type":"foo/bar/resp"`)) ||
			!bytes.Contains(line, []byte(`"n":1.50,"deep":{"x":[1e5]}`)) {
			t.Errorf("got %s", line)
		}
	})
	bubble(t, "A2E-071 A2E-072 a missing member", func(t *testing.T) {
		co := start(t, testHost())
		co.send(`{"type":"tool/call/req","id":"t","tool_name":"echo"}`)
		f := co.next()
		wantError(t, f, "t", "schema_violation", "")
		faults := f["detail"].(map[string]any)["errors"].([]any)
		if err := subMatch("", faults, []any{map[string]any{"path": "arguments", "reason": "missing"}},
			nil); err != nil {
			t.Error(err)
		}
		co.send(`{"type":"ping","id":"p"}`)
		wantPong(t, co.next(), "p")
	})
	bubble(t, "A2E-073 tools that are unknown, denied, failing", func(t *testing.T) {
		co := start(t, testHost())
		for tool, code := range map[string]string{"nope": "unknown_tool", "denied": "tool_denied",
			"fails": "tool_error"} {
			co.send(toolCall(tool, tool, `{}`))
			f := co.next()
			wantError(t, f, tool, code, "")
			if f["retryable"] != false || f.str("capability_name") != "tools" {
				t.Errorf("got %v", f)
			}
		}
		co.send(`{"type":"skill/call/req","id":"s","name":"nope"}`)
		wantError(t, co.next(), "s", "unknown_skill", "")
		co.send(`{"type":"skill/call/req","id":"f","name":"fails"}`)
		wantError(t, co.next(), "f", "skill_error", "")
	})
	bubble(t, "A2E-074 a panic is a runtime_error", func(t *testing.T) {
		co := start(t, testHost())
		co.send(toolCall("p", "panic", `{}`))
		f := co.next()
		wantError(t, f, "p", "runtime_error", "")
		if strings.Contains(fmt.Sprint(f), "boom") {
			t.Errorf("leaks: %v", f)
		}
		co.send(toolCall("e", "echo", `{"text":1}`))
		if f := co.next(); f.str("type") != "tool/call/resp" {
			t.Errorf("got %v", f)
		}
	})
	bubble(t, "A2E-075 the deadline, even of a handler that ignores it", func(t *testing.T) {
		h := testHost()
		stuck := make(chan struct{})
		box := &Toolbox{}
		box.Add(ToolDefinition{Name: "stuck"}, func(context.Context, *ToolCall) (any, error) { <-stuck; return 1, nil })
		box.Add(ToolDefinition{Name: "polite"}, func(ctx context.Context, _ *ToolCall) (any,
			error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		h.Capabilities["tools"] = ServeTools(box)
		co := start(t, h)
		for _, tool := range []string{"stuck", "polite"} {
			begin := time.Now()
			co.send(`{"type":"tool/call/req","id":"` + tool + `","tool_name":"` + tool +
				`","arguments":{},"timeout":2}`)
			f := co.next()
			wantError(t, f, tool, "timeout", "")
			if f["retryable"] != true || time.Since(begin) != 2*time.Second {
				t.Errorf("%v after %v", f, time.Since(begin))
			}
		}
		close(stuck) // too late: no frame follows
		co.quiet()
	})
	bubble(t, "A2E-076 errors echo little", func(t *testing.T) {
		co := start(t, testHost())
		long := strings.Repeat("L", 4000)
		for _, line := range []string{`{"type":"` + long + `","id":"a"}`, `{"` + long,
			`{"type":"ping","id":"a","ts":"` + long + `"}`, toolCall("c", long, `{}`),
			`{"type":"proc/spawn/req","id":"x","env":{"` + long +
				`":1},"cmd":[1]}`, `{"type":"memory/init/req","id":"q","scope":{"` + long + `":1}}`} {
			co.send(line)
			if got := <-co.frames; bytes.Count(got, []byte("L")) > 200 {
				t.Errorf("%s", got)
			}
		}
	})
	bubble(t, "A2E-076 of a text that repeats its input 200 characters are sent", func(t *testing.T) {
		long := strings.Repeat("Lé", 2000)
		h := testHost()
		h.Capabilities["proc"] = Handler(func(_ context.Context, r *Request) (Response, error) {
			return Response{}, &Error{Code: RuntimeError, Text: r.Str("cwd")}
		})
		co := start(t, h)
		send := func(cwd string) string {
			id := NewID()
			co.send(`{"type":"proc/spawn/req","id":"` + id + `","cwd":"` + cwd + `"}`)
			f := co.next()
			wantError(t, f, id, "runtime_error", "")
			return f.str("message")
		}
		for _, n := range []int{199, 200, 201, 4000} {
			input := []rune(long)[:n]
			if got := send(string(input)); got != string(input[:min(n, 200)]) {
				t.Errorf("of %d characters %d are sent", n, len([]rune(got)))
			}
		}
		w := httptest.NewRecorder()
		WriteError(w, &Error{Code: InvalidMessage, Text: long})
		var answer struct{ Detail string }
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Detail != long[:300] {
			t.Errorf("over HTTP: %d characters, %v", len([]rune(answer.Detail)), err)
		}
	})
	bubble(t, "A2E-076 no secret is sent", func(t *testing.T) {
		h := testHost()
		h.Capabilities["proc"] = Handler(func(context.Context, *Request) (Response, error) {
			return Response{}, errors.New("cannot read /etc/passwd")
		})
		co := start(t, h)
		co.send(`{"type":"proc/spawn/req","id":"p"}`)
		co.send(`{"type":"handshake/req","id":"again","auth_token":"wrong-token-0123"}`)
		co.send(`{"type":"handshake/req","id":"shape","auth_token":["wrong-token-0123"]}`)
		co.send(toolCall("c", "fails", `{}`)) // its error names a file
		for range 4 {
			if line := co.line(); bytes.Contains(line, []byte("wrong-token")) ||
				bytes.Contains(line, []byte("passwd")) {
				t.Errorf("%s", line)
			}
		}
	})
	bubble(t, "handlers that answer nonsense", func(t *testing.T) {
		h := testHost()
		bodies := []any{func() {}, "text", []int{1}, json.RawMessage(`{"tools":5}`), json.RawMessage(`{`),
			json.RawMessage("{\"tools\":\"\xff\"}"), map[string]any{"tools": "x"}}
		n := 0
		h.Capabilities["tools"] = Handler(func(context.Context, *Request) (Response, error) {
			n++
			return Response{Body: bodies[n-1]}, nil
		})
		co := start(t, h)
		for i := range bodies {
			id := fmt.Sprint("n", i)
			co.send(`{"type":"tool/list/req","id":"` + id + `"}`)
			wantError(t, co.next(), id, "runtime_error", "")
		}
	})
}

func post(h *Host, session, body string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "/send", strings.NewReader(body))
	r.Header.Set(sessionHeader, session)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func newHTTPSession(t *testing.T, h *Host, token string) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/session", nil))
	var answer struct {
		SessionID string `json:"session_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); w.Code != 200 || err != nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if token != "" {
		post(h, answer.SessionID, `{"type":"handshake/req","id":"hs","agent_caps":["tools"],"auth_token":"`+token+`"}`)
	}
	return answer.SessionID
}

// sseFrames gives the frames of a streamed answer.
func sseFrames(t *testing.T, s streamed) []frame {
	t.Helper()
	var out []frame
	lines, _ := events(s.contentType, string(s.body))
	for _, raw := range lines {
		checkOutput(t, []byte(raw+"\n"))
		out = append(out, parseFrame(t, []byte(raw)))
	}
	return out
}

func TestHTTP(t *testing.T) {
	bubble(t, "A2E-080 A2E-082 A2E-083 a session, frames before the stream, their form", func(t *testing.T) {
		h := testHost()
		id := newHTTPSession(t, h, "test-token-a")
		if !isHex32(id) {
			t.Errorf("session %q", id)
		}
		post(h, id, toolCall("c", "echo", `{"text":"é"}`))
		synctest.Wait()
		s := readStream(t, h, id)
		if s.contentType != "text/event-stream; charset=utf-8" || !bytes.HasPrefix(s.body, []byte(`data: {"a2e"`)) ||
			!bytes.HasSuffix(s.body, []byte("}\n\n")) {
			t.Errorf("%s: %q", s.contentType, s.body)
		}
		fs := sseFrames(t, s)
		if len(fs) != 2 || fs[0].str("session_id") != id || fs[1].str("req_id") != "c" {
			t.Errorf("got %v", fs)
		}
	})
	bubble(t, "A2E-081 no session, an unknown one, one of another transport", func(t *testing.T) {
		h := testHost()
		tcp := connect(t, h).handshake("test-token-a").str("session_id")
		for _, path := range []string{"/send", "/stream"} {
			for id, want := range map[string]int{"": 400, "deadbeef": 404, tcp: 404} {
				method := "POST"
				if path == "/stream" {
					method = "GET"
				}
				r := httptest.NewRequest(method, path, strings.NewReader("{}"))
				if id != "" {
					r.Header.Set(sessionHeader, id)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != want {
					t.Errorf("%s %q: %d, want %d", path, id, w.Code, want)
				}
			}
		}
	})
	bubble(t, "A2E-084 A2E-085 send answers before the work, and twice is once", func(t *testing.T) {
		h := testHost()
		id := newHTTPSession(t, h, "test-token-a")
		begin := time.Now()
		for range 3 {
			if w := post(h, id, toolCall("d", "slow_counter", `{"secs":10}`)); w.Code != 200 ||
				w.Body.String() != `{"ok":true}` {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		if time.Since(begin) != 0 {
			t.Errorf("took %v", time.Since(begin))
		}
		_ = sleep(t.Context(), 11)
		fs := sseFrames(t, readStream(t, h, id))
		if len(fs) != 2 || fs[1]["data"].(map[string]any)["data"].(map[string]any)["count"] != json.Number("1") {
			t.Errorf("got %v", fs)
		}
	})
	bubble(t, "A2E-086 a stream that breaks loses nothing and keeps the order", func(t *testing.T) {
		h := testHost()
		id := newHTTPSession(t, h, "test-token-a")
		var got []string
		seen := map[string]bool{}
		for i := range 50 {
			post(h, id, fmt.Sprintf(`{"type":"ping","id":"p%d"}`, i))
			if i%7 == 3 { // attach, read the available frames, break
				for _, f := range sseFrames(t, readStream(t, h, id)) {
					if !seen[f.str("id")] { // the last written frames come again, unchanged
						seen[f.str("id")] = true
						got = append(got, f.str("req_id"))
					}
				}
			}
		}
		for _, f := range sseFrames(t, readStream(t, h, id)) {
			if !seen[f.str("id")] {
				got = append(got, f.str("req_id"))
			}
		}
		want := []string{"hs"}
		for i := range 50 {
			want = append(want, fmt.Sprint("p", i))
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v", got)
		}
	})
	bubble(t, "A2E-087 a newer stream replaces the older", func(t *testing.T) {
		h := testHost()
		id := newHTTPSession(t, h, "test-token-a")
		ended := make(chan string, 1)
		go func() {
			r := httptest.NewRequest("GET", "/stream", nil)
			r.Header.Set(sessionHeader, id)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			ended <- w.Body.String()
		}()
		synctest.Wait()
		second := make(chan []frame, 1)
		go func() { second <- sseFrames(t, readStream(t, h, id)) }()
		<-ended
		<-second
		post(h, id, `{"type":"ping","id":"late"}`)
		fs := sseFrames(t, readStream(t, h, id))
		wantPong(t, fs[len(fs)-1], "late")
	})
	bubble(t, "A2E-088 keep-alive comments", func(t *testing.T) {
		h := testHost()
		id := newHTTPSession(t, h, "test-token-a")
		ctx, cancel := context.WithTimeout(t.Context(), 61*time.Second)
		defer cancel()
		r := httptest.NewRequest("GET", "/stream", nil).WithContext(ctx)
		r.Header.Set(sessionHeader, id)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if n := strings.Count(w.Body.String(), ":\n\n"); n < 2 {
			t.Errorf("%d comments in a minute", n)
		}
	})
	bubble(t, "A2E-089 bodies that are too large or no UTF-8", func(t *testing.T) {
		h := testHost()
		h.Limits.Frame, h.Limits.HandshakeFrame = 1000, 500
		stranger := newHTTPSession(t, h, "")
		if w := post(h, stranger, strings.Repeat(" ", 501)); w.Code != 413 {
			t.Errorf("before the handshake: %d", w.Code)
		}
		id := newHTTPSession(t, h, "test-token-a")
		if w := post(h, id, strings.Repeat(" ", 1001)); w.Code != 413 {
			t.Errorf("too large: %d", w.Code)
		}
		// length unknown
		r := httptest.NewRequest("POST", "/send", io.MultiReader(strings.NewReader(strings.Repeat(" ", 1001))))
		r.ContentLength = -1
		r.Header.Set(sessionHeader, id)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 413 {
			t.Errorf("too large, chunked: %d", w.Code)
		}
		if w := post(h, id, "\xff\xfe"); w.Code != 400 {
			t.Errorf("no UTF-8: %d", w.Code)
		}
	})
	bubble(t, "A2E-090 sessions expire", func(t *testing.T) {
		h := testHost()
		stranger, id := newHTTPSession(t, h, ""), newHTTPSession(t, h, "test-token-a")
		_ = sleep(t.Context(), 31)
		if w := post(h, stranger, "{}"); w.Code != 404 {
			t.Errorf("without handshake: %d", w.Code)
		}
		if w := post(h, id, ""); w.Code != 200 {
			t.Errorf("active: %d", w.Code)
		}
		_ = sleep(t.Context(), 400)
		stream := httptest.NewRequest("GET", "/stream", nil)
		stream.Header.Set(sessionHeader, id)
		again := httptest.NewRecorder()
		h.ServeHTTP(again, stream)
		for path, w := range map[string]*httptest.ResponseRecorder{"/send": post(h, id, "{}"), "/stream": again} {
			if w.Code != 404 {
				t.Errorf("idle: %s gives %d", path, w.Code)
			}
		}
		if n, p := h.Health(); n != 0 || p != 0 {
			t.Errorf("%d sessions, %d pending left", n, p)
		}
	})
	bubble(t, "A2E-091 making sessions is limited", func(t *testing.T) {
		h := testHost()
		h.Limits.PendingPerRemote, h.Limits.SessionsPerMinute, h.Limits.Pending, h.Limits.Sessions = 5, 8, 7, 20
		create := func(remote string) int {
			r := httptest.NewRequest("POST", "/session", nil)
			r.RemoteAddr = remote
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		count := func(remote string, n int) (ok int) {
			for range n {
				if create(remote) == 200 {
					ok++
				}
			}
			return ok
		}
		if n := count("192.0.2.1:1", 20); n != 5 {
			t.Errorf("%d pending of one address", n)
		}
		if create("192.0.2.1:9") != 429 {
			t.Error("another port is another address")
		}
		if n := count("[2001:db8::1]:1", 1) + count("[2001:db8::ffff]:1", 20); n != 5 {
			t.Errorf("%d pending of one /64", n)
		}
		if create("192.0.2.7:1") != 200 {
			t.Error("those of other addresses keep this one out")
		}
		if _, n := h.Health(); n != 7 {
			t.Errorf("%d pending in all", n)
		}
		_ = sleep(t.Context(), 31) // the pending ones are gone
		if n := count("192.0.2.1:1", 20); n != 3 {
			t.Errorf("%d more within the minute", n)
		}
		_ = sleep(t.Context(), 61)
		if create("192.0.2.1:1") != 200 {
			t.Error("never again")
		}
		if err := h.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	bubble(t, "an agent that does not read is told to, and costs nobody else", func(t *testing.T) {
		h := testHost()
		h.Limits.OutFrames = 10
		id, other := newHTTPSession(t, h, "test-token-a"), newHTTPSession(t, h, "test-token-b")
		refused := 0
		for i := range 50 {
			if w := post(h, id, fmt.Sprintf(`{"type":"ping","id":"p%d"}`, i)); w.Code == 503 &&
				w.Header().Get("Retry-After") != "" {
				refused++
			}
		}
		if refused != 41 { // ten frames wait, the answer to the handshake among them
			t.Errorf("%d refused", refused)
		}
		if w := post(h, other, `{"type":"ping","id":"x"}`); w.Code != 200 {
			t.Errorf("another session: %d", w.Code)
		}
		if fs := sseFrames(t, readStream(t, h, id)); len(fs) != 10 {
			t.Errorf("%d frames", len(fs))
		}
	})
}

func TestStalledReader(t *testing.T) {
	bubble(t, "a connection that reads nothing stalls only itself, and is cut off", func(t *testing.T) {
		h := testHost()
		h.Limits.OutFrames = 8
		stalled, theirs := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- h.ServeConn(t.Context(), theirs) }()
		go func() { // never reads
			_, _ = io.WriteString(stalled, `{"type":"handshake/req","id":"h","auth_token":"test-token-a"}`+"\n"+
				toolCall("s", "echo", `{}`)+"\n")
			for i := range 1000 {
				if _, err := fmt.Fprintf(stalled, `{"type":"ping","id":"p%d"}`+"\n", i); err != nil {
					return
				}
			}
		}()
		co := connect(t, h)
		co.handshake("test-token-b")
		begin := time.Now()
		co.send(toolCall("e", "echo", `{"text":1}`))
		if f := co.next(); f.str("type") != "tool/call/resp" || time.Since(begin) != 0 {
			t.Errorf("%v after %v", f, time.Since(begin))
		}
		<-served
		if d := time.Since(begin); d < h.limits.Write || d > h.limits.Write+h.limits.Write/8 {
			t.Errorf("cut off after %v", d)
		}
		_ = stalled.Close()
	})
	bubble(t, "events wait for the reader, the final frame does not fail", func(t *testing.T) {
		h := testHost()
		h.Limits.OutFrames = 5
		box := &Toolbox{}
		box.Add(ToolDefinition{Name: "chatty"}, func(ctx context.Context, c *ToolCall) (any, error) {
			sent := 0
			for c.Status(ctx, "x") == nil {
				sent++
			}
			return map[string]any{"sent": sent}, nil
		})
		h.Capabilities["tools"] = ServeTools(box)
		id := newHTTPSession(t, h, "test-token-a")
		post(h, id, `{"type":"tool/call/req","id":"c","tool_name":"chatty","arguments":{},"timeout":5}`)
		_ = sleep(t.Context(), 6)
		fs := sseFrames(t, readStream(t, h, id))
		if len(fs) != 6 { // the handshake, four events, and the time-out
			t.Errorf("%d frames: %v", len(fs), fs)
		}
		wantError(t, fs[len(fs)-1], "c", "timeout", "")
	})
}

func TestLifecycle(t *testing.T) {
	bubble(t, "A2E-100 stdio ends with its input", func(t *testing.T) {
		h := testHost()
		in, out := io.Pipe()
		go func() {
			fmt.Fprintln(out, `{"type":"handshake/req","id":"h","auth_token":"test-token-a"}`)
			fmt.Fprintln(out, toolCall("s", "slow", `{"secs":100}`))
			_ = out.Close()
		}()
		begin := time.Now()
		var stdout bytes.Buffer
		if err := h.ServeStdio(t.Context(), in, &stdout); err != nil {
			t.Errorf("ended with %v", err)
		}
		if d := time.Since(begin); d >= 3*time.Second {
			t.Errorf("after %v", d)
		}
		for _, line := range bytes.SplitAfter(bytes.TrimSuffix(stdout.Bytes(), []byte("\n")), []byte("\n")) { // A2E-101
			checkOutput(t, append(bytes.TrimSuffix(line, []byte("\n")), '\n'))
		}
		if n, _ := h.Health(); n != 0 {
			t.Errorf("%d sessions left", n)
		}
	})
	bubble(t, "A2E-006 the last line needs no end", func(t *testing.T) {
		var out bytes.Buffer
		if err := testHost().ServeStdio(t.Context(), strings.NewReader(`{"type":"ping","id":"last"}`),
			&out); err != nil {
			t.Fatal(err)
		}
		wantPong(t, parseFrame(t, out.Bytes()), "last")
	})
	bubble(t, "A2E-110 ping is answered while all places are taken", func(t *testing.T) {
		co := connect(t, testHost())
		co.handshake("test-token-a")
		for i := range 30 {
			co.send(toolCall(fmt.Sprint("s", i), "slow", `{"secs":3}`))
		}
		begin := time.Now()
		co.send(`{"type":"ping","id":"p"}`)
		wantPong(t, co.next(), "p")
		if time.Since(begin) != 0 {
			t.Errorf("after %v", time.Since(begin))
		}
		for range 30 { // 16 at once, then 14
			co.next()
		}
		if d := time.Since(begin); d != 6*time.Second {
			t.Errorf("30 of 3 s took %v", d)
		}
	})
	bubble(t, "the queue is bounded, and a request that was refused may come again", func(t *testing.T) {
		h := testHost()
		h.Limits.Parallel, h.Limits.Queued = 1, 2
		co := connect(t, h)
		co.handshake("test-token-a")
		for i := range 4 {
			co.send(toolCall(fmt.Sprint("s", i), "slow", `{"secs":1}`))
		}
		f := co.next()
		wantError(t, f, "s3", "runtime_error", "too_many_requests")
		if f["retryable"] != true {
			t.Errorf("got %v", f)
		}
		for i := range 3 {
			if f := co.next(); f.str("req_id") != fmt.Sprint("s", i) {
				t.Errorf("got %v", f)
			}
		}
		co.send(toolCall("s3", "slow", `{"secs":1}`))
		if f := co.next(); f.str("type") != "tool/call/resp" {
			t.Errorf("got %v", f)
		}
	})
	bubble(t, "A2E-111 shutdown drains", func(t *testing.T) {
		co := connect(t, testHost())
		co.handshake("test-token-a")
		co.send(toolCall("s", "slow", `{"secs":1}`))
		co.send(`{"type":"shutdown","id":"q","timeout":2}`)
		co.send(toolCall("late", "echo", `{}`))
		wantError(t, co.next(), "late", "invalid_message", "shutting_down")
		co.send(`{"type":"ping","id":"p"}`)
		wantPong(t, co.next(), "p")
		if f := co.next(); f.str("type") != "tool/call/resp" || f.str("req_id") != "s" {
			t.Errorf("got %v", f)
		}
		if f := co.next(); f != nil {
			t.Errorf("still open: %v", f)
		}
	})
	bubble(t, "A2E-112 shutdown.timeout is clamped", func(t *testing.T) {
		for timeout, want := range map[string]time.Duration{"-5": 0, "0": 0, "2": 2 * time.Second,
			"99999999999999999999": 30 * time.Second, "3.0": 3 * time.Second} {
			co := connect(t, testHost())
			co.handshake("test-token-a")
			co.send(`{"type":"tool/call/req","id":"s","tool_name":"slow","arguments":{"secs":1000},"timeout":2000}`)
			begin := time.Now()
			co.send(`{"type":"shutdown","id":"q","timeout":` + timeout + `}`)
			wantError(t, co.next(), "s", "timeout", "")
			if d := time.Since(begin); d != want {
				t.Errorf("timeout %s: ended after %v, want %v", timeout, d, want)
			}
			if f := co.next(); f != nil {
				t.Errorf("still open: %v", f)
			}
		}
	})
	bubble(t, "shutdown ends the HTTP stream, after which there is no session", func(t *testing.T) {
		h := testHost()
		id := newHTTPSession(t, h, "test-token-a")
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r := httptest.NewRequest("GET", "/stream", nil)
			r.Header.Set(sessionHeader, id)
			h.ServeHTTP(httptest.NewRecorder(), r)
		}()
		synctest.Wait()
		post(h, id, `{"type":"shutdown","id":"q"}`)
		<-ended
		if w := post(h, id, "{}"); w.Code != http.StatusNotFound {
			t.Errorf("got %d", w.Code)
		}
	})
	bubble(t, "Host.Shutdown lets requests finish", func(t *testing.T) {
		h := testHost()
		co := connect(t, h)
		co.handshake("test-token-a")
		co.send(toolCall("s", "slow", `{"secs":1}`))
		synctest.Wait()
		if err := h.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if f := co.next(); f.str("req_id") != "s" {
			t.Errorf("got %v", f)
		}
		if _, err := h.open("x", transportConn); !errors.Is(err, ErrShuttingDown) {
			t.Errorf("open: %v", err)
		}
	})
	bubble(t, "the end of Serve's context lets requests finish, within Drain", func(t *testing.T) {
		co := connect(t, testHost())
		co.handshake("test-token-a")
		co.send(toolCall("s", "slow", `{"secs":5}`))
		co.send(`{"type":"tool/call/req","id":"l","tool_name":"slow","arguments":{"secs":100},"timeout":100}`)
		synctest.Wait()
		begin := time.Now()
		co.cancel()
		if f := co.next(); f.str("type") != "tool/call/resp" {
			t.Errorf("got %v", f)
		}
		wantError(t, co.next(), "l", "timeout", "")
		if err := <-co.served; err != nil || time.Since(begin) != 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
	bubble(t, "resumption on a new connection: requests go on, answers arrive, in order, once", func(t *testing.T) {
		h := testHost()
		a := connect(t, h)
		session := a.handshake("test-token-a").str("session_id")
		a.send(toolCall("s", "slow_counter", `{"secs":10}`))
		synctest.Wait()
		_ = a.c.Close()
		<-a.served
		b := connect(t, h)
		b.send(`{"type":"ping","id":"first"}`)
		b.send(`{"type":"handshake/req","id":"h2","auth_token":"test-token-a","agent_caps":["tools"],"session_id":"` +
			session + `"}`)
		wantPong(t, b.next(), "first")
		if f := b.next(); f.str("req_id") != "h2" || f.str("session_id") != session {
			t.Fatalf("got %v", f)
		}
		b.send(toolCall("s", "slow_counter", `{"secs":10}`)) // again, as a client does
		for {
			f := b.next()
			if f == nil {
				t.Fatal("closed")
			}
			if f.str("req_id") == "s" {
				if f["data"].(map[string]any)["data"].(map[string]any)["count"] != json.Number("1") {
					t.Errorf("got %v", f)
				}
				break
			}
		}
		b.quiet()
		// No other agent can take the session over.
		other := connect(t, h)
		other.send(`{"type":"handshake/req","id":"h3","auth_token":"test-token-b","session_id":"` + session + `"}`)
		if f := other.next(); f["ok"] != true || f.str("session_id") == session {
			t.Errorf("got %v", f)
		}
	})
}

func TestCapabilities(t *testing.T) {
	start := func(t *testing.T) *conn {
		co := connect(t, testHost())
		co.handshake("test-token-a")
		return co
	}
	t.Run("A2E-120 deferred tools", func(t *testing.T) {
		all := []ToolDefinition{{Name: "a", Tags: []string{"X"}},
			{Name: "b", DeferLoading: true, Description: "Hidden one"}}
		names := func(q ToolQuery) (out string) {
			for _, d := range q.Select(all) {
				out += d.Name
			}
			return out
		}
		for q, want := range map[*ToolQuery]string{
			{}: "a", {IncludeDeferred: true}: "ab", {Query: "HIDDEN"}: "b", {Query: "x"}: "a",
			{Query: "i", Tags: []string{"none"}}: "",
		} {
			if got := names(*q); got != want {
				t.Errorf("%+v: %q, want %q", q, got, want)
			}
		}
	})
	bubble(t, "A2E-121 numbers survive", func(t *testing.T) {
		co := start(t)
		co.send(toolCall("n", "echo", `{"text":[123456789012345678901234567890,1.0,1e-7,-0,1E400]}`))
		line := <-co.frames
		if !bytes.Contains(line, []byte(`[123456789012345678901234567890,1.0,1e-7,-0,1E400]`)) {
			t.Errorf("got %s", line)
		}
		data := parseFrame(t, line)["data"].(map[string]any)
		for _, name := range []string{"success", "tool_name", "duration_ms"} {
			if data[name] == nil {
				t.Errorf("no %s in %v", name, data)
			}
		}
	})
	bubble(t, "results that are no object, with an exit code, that fail softly", func(t *testing.T) {
		co := start(t)
		for tool, want := range map[string]string{
			"raw": `{"data":{"value":"just a string"},"success":true}`, "exit": `{"exit_code":3}`,
			"softfail": `{"success":false,"error":"nope","error_code":"tool_execution_error","data":null}`,
		} {
			co.send(toolCall(tool, tool, `{}`))
			var w any
			into(t, json.RawMessage(want), &w)
			if err := subMatch("", co.next()["data"], w, nil); err != nil {
				t.Errorf("%s: %v", tool, err)
			}
		}
	})
	bubble(t, "A2E-122 A2E-123 memories belong to their identity, semantic ones to all", func(t *testing.T) {
		h := testHost()
		agents := map[string]*conn{"a": connect(t, h), "b": connect(t, h)}
		ids := map[string]string{}
		ask := func(who, line string) frame {
			co := agents[who]
			co.send(strings.ReplaceAll(line, "$M", ids[who]))
			return co.next()
		}
		for who, co := range agents {
			co.handshake("test-token-" + who)
			ids[who] = ask(who, `{"type":"memory/init/req","id":"i","namespace":"n"}`).str("memory_id")
		}
		for _, tier := range []string{TierWorking, TierEpisodic, TierSemantic} {
			if f := ask("a", `{"type":"memory/store/req","id":"s`+tier+`","memory_id":"$M","entries":[{"key":{"k":"`+
				tier+`"},"content":1.50,"tier":"`+tier+`"}]}`); len(f["stored"].([]any)) != 1 {
				t.Errorf("got %v", f)
			}
		}
		f := ask("b", `{"type":"memory/retrieve/req","id":"r1","memory_id":"$M"}`)
		if es := f["entries"].([]any); len(es) != 1 || es[0].(map[string]any)["tier"] != "semantic" {
			t.Errorf("b reads %v", es)
		}
		f = ask("a", `{"type":"memory/retrieve/req","id":"r1","memory_id":"$M"}`)
		if es := f["entries"].([]any); len(es) != 3 || es[0].(map[string]any)["content"] != json.Number("1.50") {
			t.Errorf("a reads %v", es)
		}
		wantError(t, ask("b", `{"type":"memory/retrieve/req","id":"r2","memory_id":"`+ids["a"]+`"}`),
			"r2", "memory_not_found", "")
		wantError(t, ask("a", `{"type":"memory/forget/req","id":"r2","memory_id":"nope"}`),
			"r2", "memory_not_found", "")
		if f := ask("a",
			`{"type":"memory/forget/req","id":"f","memory_id":"$M","keys":[{"k":"episodic"}]}`); f["deleted"] != json.Number("1") {
			t.Errorf("forget by key: %v", f)
		}
		f = ask("a",
			`{"type":"memory/store/req","id":"bad","memory_id":"$M","entries":[{"key":"x","content":1,"tier":"working"},{"content":1},{"key":{},"content":1,"tier":""},{"key":{"t":1},"content":1,"tier":"working","ttl":5}]}`)
		if len(f["stored"].([]any)) != 1 || len(f["errors"].([]any)) != 3 {
			t.Errorf("got %v", f)
		}
		_ = sleep(t.Context(), 6)
		f = ask("a", `{"type":"memory/retrieve/req","id":"ttl","memory_id":"$M","keys":[{"t":1.0}]}`)
		if f["total"] != json.Number("0") {
			t.Errorf("expired, and still there: %v", f)
		}
	})
	bubble(t, "A2E 6.14 an entry of another tier is the agent's own, and found by that tier", func(t *testing.T) {
		h := testHost()
		a, b := connect(t, h), connect(t, h)
		n := 0
		ask := func(co *conn, line, path string) any {
			n++
			co.send(strings.Replace(line, "{", fmt.Sprintf(`{"id":"q%d",`, n), 1))
			return co.next()[path]
		}
		ids := map[*conn]string{}
		for token, co := range map[string]*conn{"test-token-a": a, "test-token-b": b} {
			co.handshake(token)
			ids[co], _ = ask(co, `{"type":"memory/init/req"}`, "memory_id").(string)
		}
		stored := ask(a, `{"type":"memory/store/req","memory_id":"`+ids[a]+
			`","entries":[{"key":{"k":1},"content":1,"tier":"notes","tags":["x"]},{"key":{"k":2},"content":2,"tier":"episodic","tags":["y"]}]}`, "stored")
		if l := asArray(t, stored); len(l) != 2 || asObject(t, l[0])["tier"] != "notes" {
			t.Errorf("stored %v", stored)
		}
		total := func(co *conn, query string) string {
			return fmt.Sprint(ask(co, `{"type":"memory/retrieve/req","memory_id":"`+ids[co]+`"`+query+`}`, "total"))
		}
		for query, want := range map[string]string{"": "2", `,"tier":"notes"`: "1", `,"tier":"episodic"`: "1",
			`,"tier":"other"`: "0", `,"tier":"working"`: "0"} {
			if got := total(a, query); got != want {
				t.Errorf("%s: %s, want %s", query, got, want)
			}
		}
		if got := total(b, ""); got != "0" {
			t.Errorf("another agent reads %s", got)
		}
		forget := `{"type":"memory/forget/req","memory_id":"` + ids[a] + `","tags":["x","y"],"tier":`
		for _, c := range [][2]string{{`"other"}`, "0"}, {`"semantic"}`, "0"}, {`"notes"}`, "1"},
			{`"episodic"}`, "1"}} {
			if got := fmt.Sprint(ask(a, forget+c[0], "deleted")); got != c[1] {
				t.Errorf("forget %s: %s, want %s", c[0], got, c[1])
			}
		}
		ask(a, `{"type":"memory/store/req","memory_id":"`+ids[a]+
			`","entries":[{"key":{"k":1},"content":1,"tier":"notes","tags":["x"]}]}`, "stored")
		if got := fmt.Sprint(ask(a, `{"type":"memory/forget/req","memory_id":"`+ids[a]+
			`","tags":["x"]}`, "deleted")); got != "1" {
			t.Errorf("forget without a tier: %s", got)
		}
	})
	bubble(t, "memories are bounded", func(t *testing.T) {
		h := testHost()
		store := &MemoryStore{PerTier: 3, Entry: 100, PerSelf: 4000}
		h.Capabilities["memory"] = ServeMemories(store)
		co := connect(t, h)
		co.handshake("test-token-a")
		co.send(`{"type":"memory/init/req","id":"i"}`)
		id := co.next().str("memory_id")
		put := func(n int, content string) frame {
			co.send(fmt.Sprintf(`{"type":"memory/store/req","id":"%s%d","memory_id":%q,"entries":[{"key":{"n":%d},"content":%q,"tier":"episodic"}]}`, NewID(), n, id, n, content))
			return co.next()
		}
		for n := range 5 {
			put(n, "")
		}
		co.send(fmt.Sprintf(`{"type":"memory/retrieve/req","id":"r","memory_id":%q}`, id))
		if f := co.next(); f["total"] != json.Number("3") ||
			f["entries"].([]any)[0].(map[string]any)["key"].(map[string]any)["n"] != json.Number("2") {
			t.Errorf("got %v", f)
		}
		if f := put(9, strings.Repeat("x", 100)); len(f["errors"].([]any)) != 1 {
			t.Errorf("too large: %v", f)
		}
		store.PerSelf = 1000
		if f := put(10, ""); f.str("code") != "memory_full" {
			t.Errorf("got %v", f)
		}
		co.close()
		synctest.Wait()
	})
	t.Run("memory keys are exact", func(t *testing.T) {
		same := [][2]string{{`{"a":1,"b":[2]}`, `{"b":[2.0],"a":10e-1}`}, {`{"a":0}`, `{"a":-0.00}`},
			{`{"a":"\u00e9"}`, `{"a":"é"}`}}
		for _, p := range same {
			if a, b := mustKey(t, p[0]), mustKey(t, p[1]); a != b {
				t.Errorf("%s and %s differ: %s, %s", p[0], p[1], a, b)
			}
		}
		other := [][2]string{{`{"a":9007199254740993}`, `{"a":9007199254740992}`}, {`{"a":1}`, `{"a":"1"}`},
			{`{"a":1}`, `{"a":10}`}, {`{"a":-1}`, `{"a":1}`}, {`{"a":[1,2]}`, `{"a":[2,1]}`}, {`{"a":null}`, `{}`}}
		for _, p := range other {
			if mustKey(t, p[0]) == mustKey(t, p[1]) {
				t.Errorf("%s and %s are one key", p[0], p[1])
			}
		}
	})
	bubble(t, "A2E-124 delegate and await", func(t *testing.T) {
		co := start(t)
		co.send(`{"type":"multi_agent/spawn","id":"1","name":"helper"}`)
		f := co.next()
		sub := f.str("subagent_id")
		if f.str("status") != StatusReady || sub == "" {
			t.Fatalf("got %v", f)
		}
		co.send(`{"type":"multi_agent/await","id":"2","subagent_id":"` + sub + `"}`)
		if f := co.next(); f.str("status") != StatusRunning || f["result"] != nil {
			t.Errorf("got %v", f)
		}
		co.send(`{"type":"multi_agent/delegate","id":"3","subagent_id":"` + sub +
			`","task_name":"t","instruction":"dig"}`)
		if f := co.next(); f["accepted"] != true {
			t.Errorf("got %v", f)
		}
		co.send(`{"type":"multi_agent/await","id":"4","subagent_id":"` + sub + `"}`)
		if f := co.next(); f.str("status") != StatusCompleted || f["result"].(map[string]any)["did"] != "dig" {
			t.Errorf("got %v", f)
		}
		co.send(`{"type":"multi_agent/list","id":"5"}`)
		if f := co.next(); len(f["subagents"].([]any)) != 1 {
			t.Errorf("got %v", f)
		}
		co.send(`{"type":"multi_agent/terminate","id":"6","subagent_id":"` + sub + `"}`)
		if f := co.next(); f["success"] != true {
			t.Errorf("got %v", f)
		}
	})
	bubble(t, "A2E-125 skills as agents can read them", func(t *testing.T) {
		co := start(t)
		co.send(`{"type":"skill/discover/req","id":"d"}`)
		f := co.next() // checked against its model by next
		skills := f["skills"].([]any)
		if len(skills) != 2 {
			t.Fatalf("got %v", f)
		}
		for _, s := range skills {
			if _, bad := s.(map[string]any)["arguments"].(map[string]any); bad {
				t.Errorf("arguments of %v", s)
			}
		}
		co.send(`{"type":"skill/discover/req","id":"d2","filter_tags":["math","x"],"filter_categories":["data"]}`)
		if f := co.next(); len(f["skills"].([]any)) != 1 {
			t.Errorf("got %v", f)
		}
		co.send(`{"type":"skill/call/req","id":"c","name":"sum","arguments":{"a":1.0}}`)
		if f := co.next(); f.str("type") != "skill/event" || f["seq"] != json.Number("0") {
			t.Errorf("got %v", f)
		}
		if f := co.next(); f["data"].(map[string]any)["data"].(map[string]any)["a"] != json.Number("1.0") {
			t.Errorf("got %v", f)
		}
	})
	bubble(t, "chains", func(t *testing.T) {
		co := start(t)
		run := func(id, nodes, entry, input string) (events []string, final frame) {
			co.send(fmt.Sprintf(`{"type":"chain/req","id":%q,"chain_id":"c","nodes":%s,"entry_node":%q,"initial_input":%s}`, id, nodes, entry, input))
			for {
				f := co.next()
				if f.str("type") != "chain/event" {
					return events, f
				}
				events = append(events, f.str("node_id")+" "+f.str("phase"))
			}
		}
		echo := func(id, more string) string {
			return `{"node_id":"` + id + `","kind":"tool","name":"echo"` + more + `}`
		}
		events, f := run("1", `[`+echo("a", `,"input_map":{"text":"$.n"},"next_node":"b"`)+
			`,{"node_id":"b","kind":"branch","condition":"$.a.echo >= 5","true_node":"m","false_node":"x"},{"node_id":"m","kind":"map","items_path":"$.list","map_node":"e"},`+echo("e", "")+`]`, "a", `{"n":5,"list":[1,2]}`)
		if f["success"] != true || !slices.Equal(events, []string{"a start", "a done", "e start", "e done", "e start",
			"e done"}) {
			t.Errorf("%v %v", events, f)
		}
		for want, in := range map[string][3]string{
			"chain_cycle":      {`[` + echo("a", `,"next_node":"a"`) + `]`, "a", `{}`},
			"bad_entry":        {`[]`, "a", `{}`},
			"chain_node_error": {`[{"node_id":"a","kind":"tool","name":"denied"}]`, "a", `{}`},
			"chain_error":      {`[{"node_id":"a","kind":"branch","condition":"$.s > 1"}]`, "a", `{"s":"x"}`},
		} {
			_, f := run(want, in[0], in[1], in[2])
			if e, _ := f["error"].(map[string]any); f["success"] != false || e["code"] != want {
				t.Errorf("%s: %v", want, f)
			}
		}
		_, f = run("skip", `[{"node_id":"a","kind":"proc","name":"rm","on_error":"skip","next_node":"b"},`+
			echo("b", "")+`]`, "a", `{}`)
		if f["error"] != nil || f["success"] != false || f["nodes_run"] != json.Number("2") {
			t.Errorf("skip: %v", f)
		}
	})
}

func mustKey(t *testing.T, s string) string {
	t.Helper()
	k, err := canonicalKey(json.RawMessage(s))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestRegistry(t *testing.T) {
	r := NewRegistry()
	if n := len(r.Names()); n < 119 {
		t.Errorf("%d types", n)
	}
	if err := r.Define("weather/get/req", "weather",
		`city: string!; days: integer = 3; tags: array<string> = []; at: number or null = null`); err != nil {
		t.Fatal(err)
	}
	m, err := r.Decode([]byte(`{"type":"weather/get/req","id":"a","city":"Bern"}`))
	if err != nil || m.Check() != nil || m.Int("days") != 3 || m.Capability() != "weather" {
		t.Errorf("%v, days %d", err, m.Int("days"))
	}
	bad, err := r.Decode([]byte(`{"type":"weather/get/req","id":"a","days":1.5}`))
	if err != nil || !errors.Is(bad.Check(), ErrSchema) {
		t.Errorf("%v, %v", err, bad.Check())
	}
	if _, known := builtin().Lookup("weather/get/req"); known {
		t.Error("registered for everybody")
	}
	for _, name := range []string{"ping", "tool/call/req", "weather/get/req", "", "/x", "x/", "a b", "ä/x"} {
		if err := r.Register(Type{Name: name}); err == nil {
			t.Errorf("%q was registered", name)
		}
	}
	for _, table := range []string{"x", "x: string", "x: nothing = 1", "x: string = {"} {
		if err := r.Define("y/z/req", "y", table); err == nil {
			t.Errorf("%q was accepted", table)
		}
	}
	// Numbers that every member of type integer accepts.
	for v, ok := range map[string]bool{"30": true, "30.0": true, "3e1": true, "1.5": false, `"30"`: false,
		"true": false, "null": false, "123456789012345678901234567890": true} {
		m, err := Decode([]byte(`{"type":"shutdown","id":"a","timeout":` + v + `}`))
		if err != nil || (m.Check() == nil) != ok {
			t.Errorf("timeout %s: %v, %v", v, err, m.Check())
		}
	}
}

// A2E-048 again: hashes of fixed length are compared.
func TestStaticTokens(t *testing.T) {
	tokens := StaticTokens{"a": "1", "b": "2", "c": "2"}
	for c, want := range map[Credentials]string{{Token: "1"}: "a", {Token: "1", AgentID: "a"}: "a",
		{Token: "1", AgentID: "zufall"}: "a", {Token: "1", AgentID: "b"}: "", {Token: "2"}: "", {}: ""} {
		id, err := tokens.Authenticate(t.Context(), c)
		if id.Name != want || (err == nil) != (want != "") {
			t.Errorf("%+v: %+v, %v", c, id, err)
		}
	}
}

// An idle session costs at most 40 KiB with its connection.
func TestIdleSessionSize(t *testing.T) {
	const sessions = 1000
	h := testHost()
	h.Limits.SessionsPerMinute, h.Limits.PendingPerRemote = 2*sessions, 2*sessions
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var served sync.WaitGroup
	agents := make([]net.Conn, sessions)
	line := make([]byte, 2048)
	for i := range agents {
		ours, theirs := net.Pipe()
		agents[i] = ours
		served.Go(func() { _ = h.ServeConn(ctx, theirs) })
		for _, send := range []string{`{"type":"handshake/req","id":"h","agent_caps":["tools"],"auth_token":"test-token-a"}`, toolCall("c", "echo", `{"text":"x"}`)} {
			if _, err := io.WriteString(ours, send+"\n"); err != nil {
				t.Fatal(err)
			}
			for n := 0; n == 0 || line[n-1] != '\n'; {
				k, err := ours.Read(line[n:])
				if err != nil {
					t.Fatal(err)
				}
				n += k
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	used := int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)
	t.Logf("%d bytes per idle session", used/sessions)
	if used/sessions > 40<<10 {
		t.Errorf("%d bytes per idle session", used/sessions)
	}
	cancel()
	for _, c := range agents {
		_ = c.Close()
	}
	served.Wait()
}
