package a2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var fuzzSeeds = []string{
	`{"type":"ping","id":"p"}`, `{"type":"ping","id":"é😀","x":[{"a":{}},1e-7,"\u0000\ud800"]}`, benchLine,
	`{"type":"handshake/req","id":"h","agent_caps":["tools"],"auth_token":"test-token-a"}`,
	`{"type":"tool/call/resp","req_id":"r","data":{"success":true,"tool_name":"x","duration_ms":0,"events":[{}]}}`,
	`{"type":"learn/feedback/req","feedbacks":[{"rated_turn":null,"polarity":"corrective","correction":"x","correction_span":[1,2]}]}`,
	`{"type":"tool/list/resp","tools":[{"name":"n","description":"d","input_parameters":[{"name":"a","type":"b","description":"c","properties":{"x":{"name":1}}}]}]}`,
	`{"a2e":"1.0","version":"1.1","scp":3,"type":"x"}`, `{"type":"error","id":5}`, `{`, `[]`, "{\"a\":\"\xff\"}",
	`{"t\u0079pe":"ping","id":"a","id":"b"}`,
	`{"type":"shutdown","timeout":1e99}`,
	`{"type":"chain/req","nodes":[{"node_id":"a","kind":"branch","condition":"$.x > 1"}],"entry_node":"a","initial_input":{"x":"y"}}`,
	`{"type":"memory/init/req","id":"m","scope":{"a":"b"}}`, "\ufeff{}", ` {"type" : "ping" } `,
	`{"type":"env/plan/resp","state":{}}`,
}

// FuzzJSON: re-encoding in ASCII keeps the value, and the members and elements are
// those that encoding/json finds.
func FuzzJSON(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if checkJSON(b, 64) != "" {
			return
		}
		ascii := appendASCII(nil, b)
		var x, y any
		if err := json.Unmarshal(b, &x); err != nil {
			return // beyond float64
		}
		if object, ok := x.(map[string]any); ok {
			found := map[string]bool{}
			for _, m := range members(b) {
				name, _ := unquote(m.name.of(b))
				found[name] = true
				if !json.Valid(m.value.of(b)) || !m.is(b, name) {
					t.Fatalf("%q has the member %q: %q", b, name, m.value.of(b))
				}
			}
			if !maps.EqualFunc(object, found, func(any, bool) bool { return true }) {
				t.Fatalf("%q has %v", b, found)
			}
		}
		if array, ok := x.([]any); ok {
			n := 0
			elements(b, func(i int, v []byte) bool {
				n++
				return i == n-1 && json.Valid(v)
			})
			if n != len(array) {
				t.Fatalf("%q has %d elements", b, n)
			}
		}
		if err := json.Unmarshal(ascii, &y); err != nil {
			t.Fatalf("%q became %q: %v", b, ascii, err)
		}
		p, _ := json.Marshal(x)
		q, _ := json.Marshal(y)
		if !bytes.Equal(p, q) {
			t.Fatalf("%q became %q", b, ascii)
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			var e *Error
			if m != nil || !errors.As(err, &e) || e.Code == "" {
				t.Fatalf("%q: %v, %v", b, m, err)
			}
			return
		}
		if !bytes.Equal(m.Raw(), b) || m.Type == "" || m.Class < ClassRequest || m.Class > ClassPush {
			t.Fatalf("%q: %+v", b, m)
		}
		if m.Check() != nil {
			return
		}
		// The output for a valid message is valid, and stable.
		full := m.Complete(time.Unix(1, 0))
		again, err := Decode(full)
		if err != nil || again.Check() != nil {
			t.Fatalf("%q became %q: %v", b, full, err)
		}
		if again.Type != m.Type || again.ID != m.ID || again.ReqID != m.ReqID {
			t.Fatalf("%q became %q", b, full)
		}
		for _, c := range full {
			if c >= 0x80 || c < 0x20 {
				t.Fatalf("%q is not one ASCII line", full)
			}
		}
	})
}

// FuzzReader: lines come out the same however the stream is cut, and the reader
// never holds more than a line.
func FuzzReader(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n\r\n  c  \nlonglonglonglong\nd"), uint8(3))
	f.Add([]byte("\n\n\n"), uint8(1))
	f.Add([]byte("12345678\n123456789\n12345678\r\n123456789\r\nx"), uint8(7))
	f.Fuzz(func(t *testing.T, b []byte, cut uint8) {
		const limit = 8
		read := func(src io.Reader) (out []string) {
			r := NewReader(src)
			r.Limit = limit
			for {
				line, _, err := r.Next()
				switch {
				case err == nil:
					out = append(out, string(line))
				case errors.Is(err, ErrTooLarge):
					out = append(out, "TOO LARGE")
				case err == io.EOF:
					return out
				default:
					t.Fatal(err)
				}
			}
		}
		whole := read(bytes.NewReader(b))
		parts := read(&chunked{b: b, n: int(cut%16) + 1})
		if len(whole) != len(parts) {
			t.Fatalf("%q and %q", whole, parts)
		}
		var want []string
		lines := strings.Split(string(b), "\n")
		for i, line := range lines {
			long := len(strings.TrimSuffix(line, "\r")) > limit
			if i == len(lines)-1 {
				long = len(line) > limit+1
			}
			switch trimmed := string(trimLine([]byte(line))); {
			case long:
				want = append(want, "TOO LARGE")
			case trimmed != "":
				want = append(want, trimmed)
			}
		}
		for i := range whole {
			if whole[i] != parts[i] || i >= len(want) || whole[i] != want[i] {
				t.Fatalf("%q: %q, in parts %q, want %q", b, whole, parts, want)
			}
		}
	})
}

type chunked struct {
	b []byte
	n int
}

func (c *chunked) Read(p []byte) (int, error) {
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.n)], c.b)
	c.b = c.b[n:]
	return n, nil
}

// FuzzHost feeds a host in each state of a connection: before the handshake,
// after it, and while it shuts down. It must answer with proper frames only,
// each request at most once, and end.
func FuzzHost(f *testing.F) {
	for i, s := range fuzzSeeds {
		f.Add([]byte(s+"\n"), uint8(i))
		f.Add([]byte(s+"\n"+`{"type":"ping","id":"z"}`+"\n"+s), uint8(i+1))
	}
	f.Fuzz(func(t *testing.T, b []byte, state uint8) {
		synctest.Test(t, func(t *testing.T) {
			h := testHost()
			h.Limits.Frame, h.Limits.HandshakeFrame = 64<<10, 64<<10
			in := &bytes.Buffer{}
			if state%3 > 0 {
				in.WriteString(`{"type":"handshake/req","id":"hs","agent_caps":["tools"],"auth_token":"test-token-a"}` +
					"\n")
			}
			if state%3 > 1 {
				in.WriteString(toolCall("slow", "slow", `{"secs":1}`) + "\n" +
					`{"type":"shutdown","id":"q","timeout":3}` + "\n")
			}
			in.Write(b)
			var out bytes.Buffer
			if err := h.ServeStdio(context.Background(), in, &out); err != nil {
				t.Fatal(err)
			}
			finals := map[string]string{}
			for line := range bytes.SplitAfterSeq(out.Bytes(), []byte("\n")) {
				if len(line) == 0 {
					continue
				}
				checkOutput(t, line)
				f := parseFrame(t, line)
				if id := f.str("req_id"); id != "" && strings.HasPrefix(f.str("type"), "tool/call/resp") {
					if first := finals[id]; first != "" && first != string(line) {
						t.Fatalf("two answers for %q: %s and %s", id, first, line)
					}
					finals[id] = string(line)
				}
			}
			synctest.Wait()
			if n, _ := h.Health(); n != 0 {
				t.Fatalf("%d sessions left", n)
			}
		})
	})
}

// FuzzClient feeds an agent arbitrary bytes from a host.
func FuzzClient(f *testing.F) {
	for _, s := range fuzzSeeds {
		f.Add([]byte(s + "\n"))
	}
	f.Add([]byte(`{"type":"error","req_id":"the-id","code":"x","detail":null}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		synctest.Test(t, func(t *testing.T) {
			c := scriptedHost(t, func(string) []string { return []string{string(b)} })
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = c.Ask(ctx, Message{Type: "ping", ID: "the-id"})
			_ = c.Close()
		})
	})
}

func FuzzSSE(f *testing.F) {
	f.Add([]byte("data: {\"a\":1}\n\n: c\r\n\r\ndata:x\ndata: y\n\nevent: z\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, contentType := range []string{"text/event-stream", "text/event-stream; charset=iso-8859-1"} {
			err := readEvents(bytes.NewReader(b), contentType, 64, func() {}, func(data []byte) {
				if len(data) > 64 {
					t.Fatalf("%d bytes", len(data))
				}
			}, func([]byte) {})
			if err != io.EOF {
				t.Fatal(err)
			}
		}
	})
}

func FuzzCondition(f *testing.F) {
	for _, s := range []string{"$.n == 5", "$.s != 'x'", "$.b >= true", "$", "", "$.n < 1_0e3", "$.l", "a==b==c",
		"$.n > inf"} {
		f.Add(s)
	}
	values := map[string]json.RawMessage{"n": json.RawMessage("5"), "s": json.RawMessage(`"x"`),
		"b": json.RawMessage("true"), "l": json.RawMessage("[]"), "o": json.RawMessage(`{"a":{"b":1}}`)}
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = evalCondition(s, values)
		_ = resolve(appendString(nil, s), values)
	})
}
