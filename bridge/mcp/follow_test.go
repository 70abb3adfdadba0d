package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
)

// Progress becomes events: at a bounded rate, the latest ones, and none after the answer.
func TestServerProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newOutWorld(t, outConfig{}, func(_ context.Context, c serverCall) (*serverAnswer, error) {
			c.sent()
			for i := range 1000 { // ten seconds
				c.progress(&mcp.ProgressNotificationParams{Progress: float64(i), Total: 1000, Message: "row"})
				time.Sleep(10 * time.Millisecond)
			}
			return says("done"), nil
		})
		m := w.send(asks("read", file("a")))
		time.Sleep(time.Minute)
		synctest.Wait()
		all := strings.Split(w.said(m.ID), " | ")
		if n := len(all); n < 9 || n > 12 || all[0] != "working row (0 of 1000)" || all[n-1] != "response done" {
			t.Errorf("%q", all)
		}
		last := -1
		for _, s := range all[:len(all)-1] {
			var n int
			if _, err := fmt.Sscanf(s, "working row (%d of 1000)", &n); err != nil || n <= last {
				t.Errorf("%q after %d", s, last)
			}
			last = n
		}
	})
}

// askingServer is a server that asks once, and answers with what it got.
func askingServer(schema any) func(context.Context, serverCall) (*serverAnswer, error) {
	return func(ctx context.Context, c serverCall) (*serverAnswer, error) {
		c.sent()
		if c.elicit == nil {
			return says("nobody to ask"), nil
		}
		r, err := c.elicit(ctx, &mcp.ElicitParams{Message: "where to?", RequestedSchema: schema})
		if err != nil {
			return nil, &callError{true, err}
		}
		content, err := json.Marshal(r.Content)
		if err != nil {
			return nil, &callError{true, err}
		}
		return says(r.Action + " " + string(content)), nil
	}
}

// An elicitation is a needs-input event of the request, and its answer an input that fits the schema.
func TestServerAsksRequester(t *testing.T) {
	t.Parallel()
	city := json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}`)
	number := json.RawMessage(`{"type":"object","properties":{"n":{"type":"number"}},"required":["n"]}`)
	yes := json.RawMessage(`{"type":"object","properties":{"ok":{"type":"boolean"}}}`)
	defaults := json.RawMessage(`{"type":"object","properties":{"age":{"type":"integer","default":30},` +
		`"city":{"type":"string","default":"Bern"},"note":{"type":"string"}},"required":["age","city"]}`)
	object := func(s string) parley.Part { return parley.Part{MediaType: "application/json", Data: []byte(s)} }
	for name, c := range map[string]struct {
		schema json.RawMessage
		inputs []parley.Part
		want   string // after the first question
	}{
		"an object": {city, []parley.Part{object(`{"city":"Bern"}`)}, `response accept {"city":"Bern"}`},
		"a text":    {city, []parley.Part{parley.Text("Bern")}, `response accept {"city":"Bern"}`},
		"a number": {number, []parley.Part{parley.Text(" 0.10000000000000000001 ")},
			`response accept {"n":0.10000000000000000001}`},
		"yes or no":        {yes, []parley.Part{parley.Text("true")}, `response accept {"ok":true}`},
		"defaults":         {defaults, []parley.Part{object(`{}`)}, `response accept {"age":30,"city":"Bern"}`},
		"default replaced": {defaults, []parley.Part{object(`{"age":5}`)}, `response accept {"age":5,"city":"Bern"}`},
		"no fit at first": {city, []parley.Part{object(`{"town":1}`), parley.Text("Bern")},
			"needs-input The answer does not fit"},
		"no fit at all": {number, []parley.Part{parley.Text("a"), parley.Text("b"), parley.Text("c")},
			"response cancel null"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newOutWorld(t, outConfig{settings: AgentSettings{Elicitation: true}}, askingServer(c.schema))
				m := w.send(asks("read", file("a")))
				time.Sleep(time.Second) // the hub records deliveries a little later
				synctest.Wait()
				first := "needs-input where to? " + string(c.schema)
				if got := w.said(m.ID); got != first || w.state(m) != "delivered" || w.rows() != 1 {
					t.Fatalf("%s, %s, %d rows", got, w.state(m), w.rows())
				}
				for _, in := range c.inputs {
					time.Sleep(time.Minute)
					w.about(parley.Input, m, in)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				got := w.said(m.ID)
				if !strings.HasPrefix(got, first+" | ") || !strings.Contains(got, c.want) ||
					strings.Count(got, "needs-input") != max(1, len(c.inputs)) || strings.Count(got, "response") != 1 {
					t.Errorf("%s, want %s", got, c.want)
				}
			})
		})
	}
}

// A server may ask only where the operator allows it, and an open question ends with the request.
func TestServerAsksInVain(t *testing.T) {
	t.Parallel()
	schema := json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)
	for name, c := range map[string]struct {
		allowed bool
		do      func(*outWorld, *parley.Message)
		want    string
	}{
		"not allowed": {false, func(*outWorld, *parley.Message) {}, "response nobody to ask"},
		"cancelled":   {true, func(w *outWorld, m *parley.Message) { w.about(parley.Cancel, m) }, "error cancelled"},
		"deadline":    {true, func(*outWorld, *parley.Message) { time.Sleep(time.Hour) }, "error timed_out"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newOutWorld(t, outConfig{settings: AgentSettings{Elicitation: c.allowed}}, askingServer(schema))
				s := asks("read", file("a"))
				s.Message.Deadline = time.Now().Add(10 * time.Minute)
				m := w.send(s)
				time.Sleep(time.Second)
				c.do(w, m)
				time.Sleep(time.Second)
				synctest.Wait()
				if got := w.said(m.ID); !strings.HasSuffix(got, c.want) || w.rows() != 0 {
					t.Errorf("%s, want %s; %d rows", got, c.want, w.rows())
				}
			})
		})
	}
}

// An input without an open question is refused, so that nobody takes it for answered.
func TestInputWithoutQuestion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newOutWorld(t, outConfig{}, held(nil, make(chan error, 1)))
		m := w.send(asks("read", file("a")))
		time.Sleep(time.Second)
		w.about(parley.Input, m, parley.Text("x"))
		time.Sleep(time.Second)
		synctest.Wait()
		dead := w.hub.Dead()
		if len(dead) != 1 || dead[0].Error == nil || dead[0].Error.Code != parley.Conflict {
			t.Errorf("%+v", dead)
		}
	})
}
