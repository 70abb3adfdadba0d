package console_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/node"
)

// withAgents is a bench whose hub answers: weather at once, museum with a failure, and nobody reads the box of sink.
func withAgents(t *testing.T) *bench {
	t.Helper()
	b := open(t, func(c *node.Config) { c.Listen.HTTP = "127.0.0.1:0" })
	handle := func(name string, f func(context.Context, json.RawMessage) (any, error)) {
		agent := parley.Agent{Name: name, Exposed: parley.Everywhere}
		if err := b.node.Handle(agent, parley.Skill("do", func(ctx context.Context, _ *parley.Message, in json.RawMessage) (
			any, error) {
			return f(ctx, in)
		})); err != nil {
			t.Fatal(err)
		}
	}
	handle("weather", func(context.Context, json.RawMessage) (any, error) { return map[string]int{"celsius": 21}, nil })
	handle("museum", func(context.Context, json.RawMessage) (any, error) {
		return nil, parley.Refuse(parley.Rejected, "closed on Mondays")
	})
	if _, err := b.api.AddAgent(context.Background(), admin.NewAgent{Name: "sink", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	return b
}

// ask sends a request and waits for its answer.
func (b *bench) ask(to, content string) admin.Receipt {
	b.t.Helper()
	r, err := b.api.Ask(context.Background(), admin.Send{To: to, Skill: "do", JSON: json.RawMessage(content)})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// tell sends a notice.
func (b *bench) tell(s admin.Send) admin.Receipt {
	b.t.Helper()
	if s.Kind == 0 {
		s.Kind = parley.Notice
	}
	r, err := b.api.Send(context.Background(), s)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// forge sends a SAMVAD request in somebody's name, and gives the reference of its refusal.
func (b *bench) forge(claim string) string {
	b.t.Helper()
	body, err := json.Marshal(map[string]any{"from": claim, "to": "agent://localhost", "skill": "do", "mode": "sync",
		"nonce": fmt.Sprintf("nonce-%d", time.Now().UnixNano()), "timestamp": b.clock.now().UTC().Format(time.RFC3339),
		"traceId": "trace-12345678", "spanId": "span-12345678", "payload": map[string]string{"city": "Bern"}})
	if err != nil {
		b.t.Fatal(err)
	}
	res, err := http.Post(b.node.Addresses().HTTP+"/agents/weather/agent/message", "application/json",
		strings.NewReader(string(body)))
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	ref := res.Header.Get("Parley-Ref")
	if res.StatusCode < 400 || ref == "" {
		b.t.Fatalf("a forged request: %d, reference %q", res.StatusCode, ref)
	}
	return ref
}

var rowKeys = regexp.MustCompile(`<tr id="[^"]*" data-row="([^"]+)"`)

// rows are the keys of a page's rows, in their order.
func rows(page string) (out []string) {
	for _, m := range rowKeys.FindAllStringSubmatch(page, -1) {
		out = append(out, m[1])
	}
	return out
}

// row is the text of a row.
func row(t *testing.T, page, key string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `data-row="`+key+`"`)
	if !ok {
		t.Fatalf("the page has no row %s", key)
	}
	text, _, _ := strings.Cut(rest, "</tr>")
	return text
}

// page gets a page, which must be there.
func (w *browser) page(path string) string {
	w.t.Helper()
	status, body := w.do("GET", path, nil)
	if status != http.StatusOK {
		w.t.Fatalf("%s: %d %s", path, status, body)
	}
	return body
}
