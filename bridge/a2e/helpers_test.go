package a2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

func writeSecret(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }

func openTo(agent string) journal.Filter {
	return journal.Filter{To: agent, States: []parley.DeliveryState{parley.Waiting, parley.Delivering}}
}

func (w *world) httpPool() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}
}

// raw is an agent that speaks HTTP itself.
type raw struct{ base, session string }

func newRaw(t *testing.T, base string) *raw {
	t.Helper()
	resp, err := http.Post(base+"/session", "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var v struct {
		Session string `json:"session_id"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return &raw{base, v.Session}
}

func (r *raw) request(ctx context.Context, t *testing.T, method, path, body string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, r.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Session-Id", r.session)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: HTTP %d", method, path, resp.StatusCode)
	}
	return resp
}

func (r *raw) send(t *testing.T, line string) {
	t.Helper()
	resp := r.request(t.Context(), t, http.MethodPost, "/send", line)
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}

type frames struct {
	in   *bufio.Reader
	body io.Closer
	stop context.CancelFunc
}

type frame struct {
	Type  string          `json:"type"`
	ReqID string          `json:"req_id"`
	Data  json.RawMessage `json:"data"`
	line  string
}

func (f frame) Content() string {
	var v struct{ Content string }
	_ = json.Unmarshal(f.Data, &v)
	return v.Content
}

func (r *raw) stream(t *testing.T) *frames {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	resp := r.request(ctx, t, http.MethodGet, "/stream", "")
	// A2E-083, over a real connection.
	if h := resp.Header; !slices.Equal(resp.TransferEncoding, []string{"chunked"}) ||
		h.Get("Content-Type") != "text/event-stream; charset=utf-8" || h.Get("Content-Encoding") != "" {
		t.Errorf("stream: %v %v", resp.TransferEncoding, h)
	}
	return &frames{bufio.NewReader(resp.Body), resp.Body, stop}
}

func (f *frames) next(t *testing.T, want string) frame {
	t.Helper()
	for {
		line, err := f.in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			continue
		}
		v := frame{line: text}
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if want != "" && v.Type != want {
			t.Fatalf("%s, want %s", text, want)
		}
		return v
	}
}

func (f *frames) close() {
	f.stop()
	_ = f.body.Close()
}

// wire is a bare connection.
type wire struct{ net.Conn }

func (w *world) dialTCP(t *testing.T) wire {
	return dialWire(t, strings.TrimPrefix(w.Addresses().A2E, "tcp://"))
}

func (w *world) dialHTTP(t *testing.T) wire {
	return dialWire(t, strings.TrimPrefix(w.Addresses().Local, "http://"))
}

func dialWire(t *testing.T, address string) wire {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return wire{conn}
}

func (c wire) write(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// read reads at least the given number of bytes.
func (c wire) read(t *testing.T, least int) {
	t.Helper()
	if _, err := io.ReadAtLeast(c, make([]byte, 8192), least); err != nil {
		t.Fatal(err)
	}
}

// until reads until text has arrived.
func (c wire) until(t *testing.T, text string) {
	t.Helper()
	until(t, c, text)
}

func until(t *testing.T, r io.Reader, text string) {
	t.Helper()
	var got []byte
	for buf := make([]byte, 8192); !strings.Contains(string(got), text); {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, buf[:n]...)
	}
}
