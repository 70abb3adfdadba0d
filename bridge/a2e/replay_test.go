package a2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/node"
)

// The recorded traffic of the reference implementation (sessions.json,
// http.json) is replayed against a whole hub in both directions: its agent's
// frames go to the hub over HTTP and TCP, and its host's frames answer the Go
// client and the hub.

// exchange is one recorded request with the reference host's answer.
type exchange struct {
	request map[string]any
	frames  []map[string]any // events, then the final frame; may be none
}

// answered reports whether an agent can tell that a recorded frame answers its
// request: the reference host answers some without req_id, and some not at all.
func (e exchange) answered() bool {
	return len(e.frames) > 0 && e.frames[len(e.frames)-1]["req_id"] != nil
}

func vectorCases(t *testing.T, name string) []struct {
	Name          string
	Input, Expect json.RawMessage
} {
	t.Helper()
	root := os.Getenv("PARLEY_VECTORS")
	if root == "" {
		root = filepath.Join("..", "..", "testdata", "vectors")
	}
	b, err := os.ReadFile(filepath.Join(root, "a2e", name))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Name          string
			Input, Expect json.RawMessage
		}
	}
	if err := json.Unmarshal(b, &file); err != nil || len(file.Cases) == 0 {
		t.Fatal(len(file.Cases), err)
	}
	return file.Cases
}

// recordings gives the exchanges of each case of sessions.json, by name.
func recordings(t *testing.T) map[string][]exchange {
	t.Helper()
	out := map[string][]exchange{}
	for _, c := range vectorCases(t, "sessions.json") {
		d := json.NewDecoder(bytes.NewReader(c.Expect))
		d.UseNumber()
		var expect struct {
			Frames []struct {
				Dir   string
				Frame map[string]any
			}
		}
		if err := d.Decode(&expect); err != nil {
			t.Fatal(err)
		}
		var all []exchange
		for _, f := range expect.Frames {
			frame := numbers(f.Frame).(map[string]any)
			switch {
			case f.Dir == "agent->host":
				all = append(all, exchange{request: frame})
			case f.Dir == "host->agent" && len(all) > 0:
				last := &all[len(all)-1]
				last.frames = append(last.frames, frame)
			default:
				t.Fatalf("%s: a frame from %q", c.Name, f.Dir)
			}
		}
		out[c.Name] = all
	}
	return out
}

// numbers puts numbers where the vectors have <ts> and the like.
func numbers(v any) any {
	switch x := v.(type) {
	case map[string]any:
		for k := range x {
			x[k] = numbers(x[k])
		}
	case []any:
		for i := range x {
			x[i] = numbers(x[i])
		}
	case string:
		if x == "<ts>" || x == "<number>" || x == "<int>" {
			return json.Number("1716123456")
		}
	}
	return v
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// without gives the members that a recording fixes.
func without(frame map[string]any, more ...string) map[string]any {
	out := maps.Clone(frame)
	for _, name := range append(more, "a2e", "id", "version", "ts", "req_id", "session_id", "created_at",
		"uptime_seconds") {
		delete(out, name)
	}
	return out
}

// referenceHost answers as the recorded host did, each recorded exchange once
// and in order, over HTTP with SSE and over TCP.
type referenceHost struct {
	t    *testing.T
	http *httptest.Server
	tcp  net.Listener
	work sync.WaitGroup

	mu      sync.Mutex
	left    []exchange
	hello   map[string]any
	strange []string // requests that differ from the recording
	lines   map[string]chan string
	conns   []net.Conn
	ended   chan struct{}
	once    sync.Once
}

func newReferenceHost(t *testing.T, all map[string][]exchange, script []exchange) *referenceHost {
	t.Helper()
	h := &referenceHost{t: t, left: slices.Clone(script), hello: all["connect"][0].frames[0],
		lines: map[string]chan string{}, ended: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /session", func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		id := fmt.Sprintf("%032x", len(h.lines)+1)
		h.lines[id] = make(chan string, 256)
		fmt.Fprintf(w, `{"session_id":%q}`, id)
	})
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-h.ended:
			http.Error(w, `{"detail":"Session not found"}`, http.StatusNotFound)
			return
		default:
		}
		if h.stream(r) == nil { // of another host, which had this port before
			http.Error(w, `{"detail":"Session not found"}`, http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		out := http.NewResponseController(w)
		_ = out.Flush()
		for {
			select {
			case line := <-h.stream(r):
				fmt.Fprintf(w, "data: %s\n\n", line)
				_ = out.Flush()
			case <-h.ended:
				return
			case <-r.Context().Done():
				return
			}
		}
	})
	mux.HandleFunc("POST /send", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if h.stream(r) == nil {
			http.Error(w, `{"detail":"Session not found"}`, http.StatusNotFound)
			return
		}
		for _, line := range h.answer(b) {
			h.stream(r) <- line
		}
		_, _ = io.WriteString(w, `{"ok":true}`)
	})
	h.http = httptest.NewServer(mux)
	var err error
	if h.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	h.work.Go(h.accept)
	t.Cleanup(func() {
		h.end()
		h.http.CloseClientConnections()
		h.http.Close()
		h.work.Wait()
	})
	return h
}

// end drops all sessions.
func (h *referenceHost) end() {
	h.once.Do(func() { close(h.ended) })
	_ = h.tcp.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		_ = c.Close()
	}
}

func (h *referenceHost) stream(r *http.Request) chan string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lines[r.Header.Get("X-Session-Id")]
}

func (h *referenceHost) accept() {
	for {
		conn, err := h.tcp.Accept()
		if err != nil {
			return
		}
		h.mu.Lock()
		h.conns = append(h.conns, conn)
		h.mu.Unlock()
		h.work.Go(func() {
			in := bufio.NewScanner(conn)
			for in.Scan() {
				for _, line := range h.answer(in.Bytes()) {
					if _, err := io.WriteString(conn, line+"\n"); err != nil {
						return
					}
				}
			}
		})
	}
}

// answer gives the recorded answers to a request.
func (h *referenceHost) answer(line []byte) []string {
	d := json.NewDecoder(bytes.NewReader(line))
	d.UseNumber()
	var got map[string]any
	if err := d.Decode(&got); err != nil {
		return nil // a probe, as an empty body is
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	frames := []map[string]any{h.hello}
	switch got["type"] {
	case "shutdown":
		return nil
	case "handshake/req":
	default:
		same := func(e exchange) bool { return e.request["type"] == got["type"] && h.fits(e.request, got) }
		i := slices.IndexFunc(h.left, same)
		if i < 0 {
			h.strange = append(h.strange, string(line))
			return []string{fmt.Sprintf(`{"type":"error","id":"e","req_id":%s,"code":"runtime_error","message":"not recorded","detail":{}}`, encode(h.t, got["id"]))}
		}
		frames = h.left[i].frames
		h.left = slices.Delete(h.left, i, i+1)
	}
	var out []string
	for _, f := range frames {
		f = maps.Clone(f)
		if f["req_id"] != nil {
			f["req_id"] = got["id"]
		}
		out = append(out, encode(h.t, f))
	}
	return out
}

// fits reports whether a request is the recorded one. The hub's calls of a tool differ
// in form; tool and arguments are the caller's.
func (h *referenceHost) fits(recorded, got map[string]any) bool {
	if recorded["type"] == "tool/call/req" {
		return recorded["tool_name"] == got["tool_name"] && encode(h.t, recorded["arguments"]) == encode(h.t,
			got["arguments"])
	}
	return encode(h.t, without(recorded)) == encode(h.t, without(got))
}

func (h *referenceHost) finished(t *testing.T) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.left {
		t.Errorf("never asked: %s", encode(t, e.request))
	}
	for _, s := range h.strange {
		t.Errorf("not recorded: %s", s)
	}
}

// TestReplayToClient: the recorded host answers the Go client.
func TestReplayToClient(t *testing.T) {
	all := recordings(t)
	for name, script := range all {
		if name == "connect" {
			script = script[1:] // the handshake is every client's first
		}
		for _, transport := range []string{"http", "tcp"} {
			t.Run(name+" over "+transport, func(t *testing.T) {
				h := newReferenceHost(t, all, append(slices.Clone(script),
					exchange{map[string]any{"type": "ping"},
						[]map[string]any{{"type": "pong", "req_id": "x", "uptime_seconds": 1.5}}}))
				web := &http.Client{Transport: &http.Transport{}}
				c := &protocol.Client{URL: h.http.URL, HTTP: web, Token: "x"}
				if transport == "tcp" {
					c = &protocol.Client{URL: "tcp://" + h.tcp.Addr().String(), Token: "x"}
				}
				defer web.CloseIdleConnections()
				defer c.Close()
				defer h.end()
				if err := c.Connect(t.Context()); err != nil {
					t.Fatal(err)
				}
				var want []string
				for _, v := range h.hello["accepted_caps"].([]any) {
					want = append(want, v.(map[string]any)["capability"].(string))
				}
				if got := c.Accepted(); !slices.Equal(got, want) {
					t.Errorf("accepted %v, want %v", got, want)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var unanswered sync.WaitGroup
				for _, e := range script {
					m := protocol.Message{Type: e.request["type"].(string),
						Body: json.RawMessage(encode(t, without(e.request)))}
					if e.answered() {
						replayed(t, c, m, e)
						continue
					}
					unanswered.Go(func() {
						if _, err := c.Ask(ctx, m); !errors.Is(err, context.Canceled) {
							t.Errorf("%s: %v", m.Type, err)
						}
					})
					eventually(t, func() bool { return !h.waiting(e) })
				}
				// All earlier frames have been read when the pong arrives.
				if _, err := c.Ping(t.Context()); err != nil {
					t.Error(err)
				}
				cancel()
				unanswered.Wait()
				h.finished(t)
			})
		}
	}
}

// waiting reports whether the host has not been asked e yet.
func (h *referenceHost) waiting(e exchange) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.ContainsFunc(h.left, func(l exchange) bool { return l.request["id"] == e.request["id"] })
}

func replayed(t *testing.T, c *protocol.Client, m protocol.Message, e exchange) {
	t.Helper()
	events := 0
	for got, err := range c.Stream(t.Context(), m) {
		want := e.frames[min(events, len(e.frames)-1)]
		var failure *protocol.Error
		switch {
		case errors.As(err, &failure):
			if want["type"] != "error" || string(failure.Code) != want["code"] || failure.Text != want["message"] ||
				failure.Retryable != want["retryable"] {
				t.Errorf("%s: %v, want %s", m.Type, failure, encode(t, want))
			}
		case err != nil:
			t.Errorf("%s: %v", m.Type, err)
		default:
			var members map[string]any
			d := json.NewDecoder(bytes.NewReader(got.Raw()))
			d.UseNumber()
			if err := d.Decode(&members); err != nil {
				t.Fatal(err)
			}
			if encode(t, without(members)) != encode(t, without(want)) {
				t.Errorf("%s: got %s, want %s", m.Type, got.Raw(), encode(t, want))
			}
		}
		events++
	}
	if events != len(e.frames) {
		t.Errorf("%s: %d frames, want %d", m.Type, events, len(e.frames))
	}
}

// TestReplayToHub: the recorded agent's frames go to the hub, which has the
// recorded host behind it for the capabilities that it does not serve itself,
// and whose tools are the recorded tools.
func TestReplayToHub(t *testing.T) {
	all := recordings(t)
	passed := []string{"env", "planning", "learning"}
	for _, transport := range []string{"http", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			var script []exchange
			for _, name := range slices.Sorted(maps.Keys(all)) {
				for _, e := range all[name] {
					capability := strings.Split(e.request["type"].(string), "/")[0]
					if slices.Contains(append(passed, "learn", "tool"), capability) {
						script = append(script, e)
					}
				}
			}
			// The hub itself asks which tools there are. The recording calls some that
			// its list lacks.
			list := maps.Clone(all["tools"][1].frames[0])
			tools := slices.Clone(list["tools"].([]any))
			for _, e := range all["tools"] {
				listed := func(v any) bool { return v.(map[string]any)["name"] == e.request["tool_name"] }
				if name := e.request["tool_name"]; name != nil && name != "nosuch" &&
					!slices.ContainsFunc(tools, listed) {
					tools = append(tools, map[string]any{"name": name, "description": "", "input_parameters": []any{}})
				}
			}
			list["tools"] = tools
			script = slices.Insert(script, 0, exchange{map[string]any{"type": "tool/list/req", "filter_kind": "",
				"filter_tags": []any{}, "query": "", "include_deferred": true}, []map[string]any{list}})
			h := newReferenceHost(t, all, script)
			defer h.end() // before the hub, which waits for answers
			url := h.http.URL
			if transport == "tcp" {
				url = "tcp://" + h.tcp.Addr().String()
			}
			var providers []string
			for _, c := range passed {
				providers = append(providers, c+"=lab")
			}
			w := newWorld(t, node.Config{A2E: node.A2E{Providers: providers, Tools: 100}, Agents: map[string]node.Agent{
				"lab": {A2E: &node.A2EAgent{URL: url}, Expose: parley.Everywhere},
			}})
			learnt := make(chan struct{})
			var once sync.Once
			look := func() {
				if e, ok := w.Hub().Directory().Agent("lab"); ok && len(e.Skills) > 1 {
					once.Do(func() { close(learnt) })
				}
			}
			stop := w.Hub().Directory().Watch(func(directory.Change) { look() })
			defer stop()
			look()
			select {
			case <-learnt:
			case <-t.Context().Done():
				t.Fatal("the host's tools were not learnt")
			}
			for name, exchanges := range all {
				t.Run(name, func(t *testing.T) {
					a := newReplayAgent(t, w, transport)
					// Some requests stay unanswered, and the hub would wait for their
					// answers.
					defer a.send(`{"type":"shutdown","id":"bye","timeout":0}`)
					memory := ""
					for i, e := range exchanges {
						request := maps.Clone(e.request)
						request["id"] = fmt.Sprint(name, "-", i) // one session for several recordings
						switch request["type"] {
						case "handshake/req":
							request["auth_token"] = tokenAlice // the recorded host checks no token
						case "tool/call/req":
							request["tool_name"] = "lab__" + request["tool_name"].(string)
						}
						if id := request["memory_id"]; id == "memory_id84" {
							request["memory_id"] = memory
						}
						got := a.ask(encode(t, request), request["id"].(string), e.answered())
						if len(got) == 0 {
							continue
						}
						final := got[len(got)-1]
						if final["memory_id"] != nil {
							memory = final["memory_id"].(string)
						}
						a.compare(e, got)
					}
				})
			}
		})
	}
}

// replayAgent writes recorded lines and reads the answers.
type replayAgent struct {
	t    *testing.T
	send func(line string)
	next func() string
}

func newReplayAgent(t *testing.T, w *world, transport string) *replayAgent {
	a := &replayAgent{t: t}
	if transport == "http" {
		r := newRaw(t, w.Addresses().Local+"/a2e")
		s := r.stream(t)
		t.Cleanup(s.close)
		a.send = func(line string) { r.send(t, line) }
		a.next = func() string { return s.next(t, "").line }
	} else {
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.Addresses().A2E, "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		in := bufio.NewReader(conn)
		a.send = func(line string) {
			if _, err := io.WriteString(conn, line+"\n"); err != nil {
				t.Fatal(err)
			}
		}
		a.next = func() string {
			line, err := in.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			return line
		}
	}
	a.ask(`{"type":"handshake/req","id":"hs","agent_caps":["tools"],"auth_token":"`+tokenAlice+`"}`, "hs", true)
	return a
}

// ask sends a line and gives the frames about it, the final one last. Without
// wait it only sends.
func (a *replayAgent) ask(line, id string, wait bool) (out []map[string]any) {
	a.t.Helper()
	a.send(line)
	for wait {
		d := json.NewDecoder(strings.NewReader(a.next()))
		d.UseNumber()
		var f map[string]any
		if err := d.Decode(&f); err != nil {
			a.t.Fatal(err)
		}
		if f["req_id"] != id {
			a.t.Errorf("%v answers %v, want %s", f, f["req_id"], id)
		}
		out = append(out, f)
		wait = strings.HasSuffix(f["type"].(string), "/event")
	}
	return out
}

// compare compares the hub's answers with the reference host's.
func (a *replayAgent) compare(e exchange, got []map[string]any) {
	t := a.t
	t.Helper()
	final := got[len(got)-1]
	recorded := e.frames[len(e.frames)-1]
	kind, _, _ := strings.Cut(e.request["type"].(string), "/")
	switch {
	case e.request["type"] == "handshake/req":
		if final["type"] != "handshake/resp" || final["ok"] != true || final["session_id"] == "" {
			t.Errorf("%v", final)
		}
		for _, c := range final["accepted_caps"].([]any) {
			if name := c.(map[string]any)["capability"]; !slices.Contains(e.request["agent_caps"].([]any), name) {
				t.Errorf("%v was not asked for", name)
			}
		}
	case e.request["type"] == "foo/bar/req": // the digest's code instead of the reference's
		if final["type"] != "error" || final["code"] != "invalid_message" {
			t.Errorf("%v", final)
		}
	case kind == "multi_agent": // served by the hub
		if final["type"] != "multi_agent/spawn/resp" && final["type"] != "error" {
			t.Errorf("%v", final)
		}
	case e.request["type"] == "tool/list/req": // the hub's own tools, including the host's
		if final["type"] != "tool/list/resp" {
			t.Errorf("%v", final)
		}
	case recorded["type"] == "error":
		if final["type"] != "error" || final["code"] == "" || encode(t, final["detail"])[0] != '{' {
			t.Errorf("%s: %v, want an error", e.request["type"], final)
		}
	case kind == "tool":
		want := recorded["data"].(map[string]any)
		if want["success"] != true { // a failed result is an error of the agent that gave it
			if data, _ := final["data"].(map[string]any); final["type"] != "error" && data["success"] != false {
				t.Errorf("%v", final)
			}
			break
		}
		data, _ := final["data"].(map[string]any)
		if data == nil {
			t.Errorf("%s: %s", e.request["tool_name"], encode(t, final))
			break
		}
		if data["success"] != true || encode(t, data["data"]) != encode(t, want["data"]) || len(got) != len(e.frames) {
			t.Errorf("%s after %d events, want %s after %d", encode(t, data), len(got)-1, encode(t, want),
				len(e.frames)-1)
		}
		for i, f := range got[:len(got)-1] {
			if f["type"] != "tool/event" || f["seq"] != json.Number(fmt.Sprint(i)) {
				t.Errorf("event %d: %v", i, f)
			}
		}
	case kind == "memory": // served by the hub
		if final["type"] != recorded["type"] {
			t.Errorf("%v, want %s", final, recorded["type"])
		}
		for _, name := range []string{"success", "namespace", "deleted", "total"} {
			if encode(t, final[name]) != encode(t, recorded[name]) {
				t.Errorf("%s: %v, want %v", name, final[name], recorded[name])
			}
		}
	default:
		if final["type"] != recorded["type"] || encode(t, without(final)) != encode(t, without(recorded)) {
			t.Errorf("%s, want %s", encode(t, final), encode(t, recorded))
		}
	}
}

// TestReplayHTTP is http.json against the hub's own listener.
func TestReplayHTTP(t *testing.T) {
	w := newWorld(t, node.Config{})
	base := w.Addresses().Local + "/a2e"
	for _, c := range vectorCases(t, "http.json") {
		t.Run(c.Name, func(t *testing.T) {
			var in struct {
				Method, Path string
				Headers      map[string]string
				Body         string `json:"body_b64"`
			}
			var want struct {
				Status    int             `json:"parley_status"`
				Frames    []string        `json:"parley_stream_frames"`
				Reference int             `json:"reference_status"`
				Body      json.RawMessage `json:"reference_body"`
			}
			if err := errors.Join(json.Unmarshal(c.Input, &in), json.Unmarshal(c.Expect, &want)); err != nil {
				t.Fatal(err)
			}
			body, err := base64.StdEncoding.DecodeString(in.Body)
			if err != nil {
				t.Fatal(err)
			}
			session := newRaw(t, base)
			req, err := http.NewRequestWithContext(t.Context(), in.Method, base+in.Path, bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range in.Headers {
				req.Header.Set(k, strings.ReplaceAll(v, "$S", session.session))
			}
			resp, err := w.web.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != want.Status {
				t.Fatalf("HTTP %d %s, %v; want %d", resp.StatusCode, got, err, want.Status)
			}
			if want.Status == want.Reference {
				var a, b map[string]any
				if err := errors.Join(json.Unmarshal(got, &a), json.Unmarshal(want.Body, &b)); err != nil {
					t.Fatal(err)
				}
				if b["session_id"] != nil && len(fmt.Sprint(a["session_id"])) == 32 {
					b["session_id"] = a["session_id"]
				}
				if encode(t, a) != encode(t, b) {
					t.Errorf("%s, want %s", got, want.Body)
				}
			}
			// A ping of our own comes last, so that nothing else can follow.
			session.send(t, `{"type":"ping","id":"the last"}`)
			s := session.stream(t)
			defer s.close()
			frames := []string{}
			for {
				f := s.next(t, "")
				if f.ReqID == "the last" {
					break
				}
				if f.Type == "error" {
					var e struct{ Code string }
					if err := json.Unmarshal([]byte(f.line), &e); err != nil {
						t.Fatal(err)
					}
					f.Type += " " + e.Code
				}
				frames = append(frames, f.Type)
			}
			if want.Frames != nil && !slices.Equal(frames, want.Frames) {
				t.Errorf("the stream brought %v, want %v", frames, want.Frames)
			}
		})
	}
}
