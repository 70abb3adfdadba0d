package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
)

// asking is a handler that asks for what the question says, once for each, and answers with what it got.
func asking(questions ...[]parley.Part) parley.Handler {
	return func(_ context.Context, _ *parley.Message, r parley.Replier) error {
		p, _ := r.(parley.Prompter)
		var got []parley.Part
		for _, q := range questions {
			m, err := p.NeedInput(q...)
			if err != nil {
				return err
			}
			got = append(got, m.Parts...)
		}
		return r.Reply(got...)
	}
}

func say(s string) []parley.Part { return []parley.Part{parley.Text(s)} }

const dateForm = `{"type":"object","properties":{"when":{"type":"string","format":"date"},` +
	`"seats":{"type":"integer"}},"required":["when"]}`

func accept(content map[string]any) *mcp.ElicitResult {
	return &mcp.ElicitResult{Action: "accept", Content: content}
}

// MCP-040, MCP-042: a question goes to a client that offers to be asked, and its answer to the open request.
func TestElicitation(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{legacy, modern} {
		t.Run(revision, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.handle("travel", asking(say("where to?")))
			w.handle("booking", asking([]parley.Part{parley.Text("when?"), part("application/json", "", dateForm)}))
			var asked []*mcp.ElicitParams
			c := w.connect("alice", revision, answering(func(p *mcp.ElicitParams) *mcp.ElicitResult {
				asked = append(asked, p)
				if strings.Contains(p.Message, "when") {
					return accept(map[string]any{"when": "2026-12-01", "seats": 2})
				}
				return accept(map[string]any{"answer": "SFO"})
			}))
			r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`)
			wantText(t, r, err, false, "SFO")
			r, err = c.tool(t.Context(), "booking__do", `{"text":"go"}`)
			wantText(t, r, err, false, `{"seats":2,"when":"2026-12-01"}`)
			if len(asked) != 2 || asked[0].Mode != "form" || !strings.Contains(asked[0].Message, `"travel" asks: where to?`) ||
				encoded(t, asked[0].RequestedSchema) != string(canonicalForm(t, textForm)) ||
				asked[1].Message != `Agent "booking" asks: when?` ||
				!strings.Contains(encoded(t, asked[1].RequestedSchema), "seats") {
				t.Error(encoded(t, asked))
			}
			requests, inputs := w.messages(parley.Request), w.messages(parley.Input)
			if len(requests) != 2 || len(inputs) != 2 || inputs[0].InReplyTo != requests[0].ID || inputs[0].From != "alice" ||
				!inputs[0].Parts[0].IsText() || !inputs[1].Parts[0].IsJSON() {
				t.Errorf("%d requests, %d inputs: %+v", len(requests), len(inputs), inputs)
			}
		})
	}
}

// canonicalForm orders the members of a schema as a client's decoder does.
func canonicalForm(t *testing.T, b json.RawMessage) json.RawMessage {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return json.RawMessage(encoded(t, v))
}

// Two questions: since 2026-07-28 both are asked; before it the SDK asks once, so the second comes as text.
func TestSecondQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("travel", asking(say("where to?"), say("when?")))
	answers := answering(func(p *mcp.ElicitParams) *mcp.ElicitResult {
		return accept(map[string]any{"answer": p.Message[strings.LastIndex(p.Message, " ")+1:]})
	})
	r, err := w.connect("alice", modern, answers).tool(t.Context(), "travel__do", `{"text":"go"}`)
	wantText(t, r, err, false, "to?\nwhen?")
	r, err = w.connect("bob", legacy, answers).tool(t.Context(), "travel__do", `{"text":"go"}`)
	wantText(t, r, err, true, `"travel" asks: when?`, toolSend, toolResult)
	if n := len(w.messages(parley.Request)); n != 2 {
		t.Errorf("%d requests", n)
	}
}

// MCP-040: a client that offers no elicitation gets the question as text, with the way to answer it.
func TestQuestionAsText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("travel", asking(say("where to?")))
	only := func(e *mcp.ElicitationCapabilities) func(*mcp.ClientOptions, *caller) {
		return func(o *mcp.ClientOptions, _ *caller) {
			o.Capabilities.Elicitation = e
			o.ElicitationHandler = func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				t.Error("the client is asked")
				return &mcp.ElicitResult{Action: "cancel"}, nil
			}
		}
	}
	urls := only(&mcp.ElicitationCapabilities{URL: &mcp.URLElicitationCapabilities{}})
	for _, revision := range []string{legacy, modern} {
		for name, c := range map[string]*client{"none": w.connect("alice", revision),
			"url alone": w.connect("alice", revision, urls)} {
			r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`)
			id, _ := r.Meta[metaHandle].(string)
			wantText(t, r, err, true, `Agent "travel" asks: where to?`, toolSend, toolResult, id)
			if id == "" || len(r.InputRequests) > 0 {
				t.Errorf("%s, %s: %+v", revision, name, r)
			}
			// parley_result asks again.
			r, err = c.tool(t.Context(), "parley_result", fmt.Sprintf(`{"id":%q}`, id))
			wantText(t, r, err, true, "where to?")
		}
	}
	var asked atomic.Int32
	c := w.connect("alice", modern, answering(func(*mcp.ElicitParams) *mcp.ElicitResult {
		asked.Add(1)
		return accept(map[string]any{"answer": "SFO"})
	}))
	id := w.messages(parley.Request)[0].ID
	r, err := c.tool(t.Context(), "parley_result", fmt.Sprintf(`{"id":%q}`, id))
	if wantText(t, r, err, false, "SFO"); asked.Load() != 1 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// A client that offers to be asked, and then fails, gets the question as text: the request stays open.
func TestQuestionFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("travel", asking(say("where to?")))
	c := w.connect("alice", legacy, func(o *mcp.ClientOptions, _ *caller) {
		o.Capabilities.Elicitation = &mcp.ElicitationCapabilities{Form: &mcp.FormElicitationCapabilities{}}
		o.ElicitationHandler = func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return nil, errors.New("the user's window is gone")
		}
	})
	r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`)
	id := w.messages(parley.Request)[0].ID.String()
	wantText(t, r, err, true, `Agent "travel" asks: where to?`, toolSend, toolResult, id)
	if r.Meta[metaHandle] != id {
		t.Errorf("the result names no request: %v", r.Meta)
	}
	r, err = c.tool(t.Context(), toolSend, fmt.Sprintf(`{"agent":"travel","in_reply_to":%q,"content":"SFO"}`, id))
	wantText(t, r, err, false)
	r, err = c.tool(t.Context(), toolResult, fmt.Sprintf(`{"id":%q}`, id))
	wantText(t, r, err, false, "SFO")
}

// MCP-043: decline and cancel end the request.
func TestDeclined(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{legacy, modern} {
		for _, action := range []string{"decline", "cancel"} {
			t.Run(revision+" "+action, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				w.handle("travel", asking(say("where to?")))
				c := w.connect("alice", revision, answering(func(*mcp.ElicitParams) *mcp.ElicitResult {
					return &mcp.ElicitResult{Action: action}
				}))
				r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`)
				wantText(t, r, err, true, "cancelled", action)
				if got := encoded(t, r.Meta[metaError]); !strings.Contains(got, `"code":"cancelled"`) {
					t.Error(got)
				}
				w.eventually("the request goes on", func() bool { return len(w.messages(parley.Failure)) == 1 })
				if f := w.messages(parley.Failure)[0]; f.Error.Code != parley.Cancelled {
					t.Errorf("%+v", f.Error)
				}
			})
		}
	}
}

// MCP-040: an authorization is never asked for by a form.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.far("bank", parley.SkillSpec{ID: "do"})
	link := parley.Part{URI: "https://bank.test/allow?x=1"}
	auth := func(parts ...parley.Part) parley.Message {
		return parley.Message{Kind: parley.Event, State: parley.NeedsInput, Act: authRequired, Parts: parts}
	}
	form := answering(func(p *mcp.ElicitParams) *mcp.ElicitResult {
		t.Errorf("asked: %+v", p)
		return &mcp.ElicitResult{Action: "cancel"}
	})
	formOnly := func(o *mcp.ClientOptions, c *caller) { form(o, c); o.Capabilities.Elicitation.URL = nil }
	secret := parley.Message{Kind: parley.Event, State: parley.NeedsInput, Parts: []parley.Part{parley.Text("password?"),
		part("application/json", "", `{"type":"object","properties":{"pw":{"type":"string","format":"password"}}}`)}}
	for _, revision := range []string{legacy, modern} {
		for _, x := range []struct {
			name  string
			event parley.Message
			can   func(*mcp.ClientOptions, *caller)
			words []string
		}{
			{"no address", auth(parley.Text("allow it")), form, []string{"allow it", "authorization", "no password"}},
			{"no URL mode", auth(parley.Text("allow it"), link), formOnly, []string{"allow it", link.URI}},
			{"an address that is none", auth(parley.Part{URI: "javascript:alert(1)"}), form, []string{"authorization"}},
			{"a schema that marks a secret", secret, form, []string{"password?", "authorization"}},
		} {
			t.Run(revision+" "+x.name, func(t *testing.T) {
				c := w.connect("alice", revision, x.can)
				before, done := len(w.messages(parley.Request)), make(chan struct{})
				go func() {
					defer close(done)
					r, err := c.tool(t.Context(), "bank__do", `{"text":"pay"}`)
					if err != nil {
						t.Error(err)
						return
					}
					wantText(t, r, nil, true, append(x.words, `"bank"`, toolResult)...)
				}()
				w.eventually("no request", func() bool { return len(w.messages(parley.Request)) > before })
				w.reply(x.event)
				<-done
			})
		}
		t.Run(revision+" URL mode", func(t *testing.T) {
			var asked *mcp.ElicitParams
			c := w.connect("bob", revision, answering(func(p *mcp.ElicitParams) *mcp.ElicitResult {
				asked = p
				return &mcp.ElicitResult{Action: "accept"}
			}))
			before, inputs, done := len(w.messages(parley.Request)), len(w.messages(parley.Input)), make(chan struct{})
			go func() {
				defer close(done)
				r, err := c.tool(t.Context(), "bank__do", `{"text":"pay"}`)
				if err != nil {
					t.Error(err)
					return
				}
				wantText(t, r, nil, false, "paid")
			}()
			w.eventually("no request", func() bool { return len(w.messages(parley.Request)) > before })
			w.reply(auth(parley.Text("allow it"), link))
			w.eventually("no input", func() bool { return len(w.messages(parley.Input)) > inputs })
			w.reply(parley.Message{Kind: parley.Response, Parts: say("paid")})
			<-done
			if asked == nil || asked.Mode != "url" || asked.URL != link.URI || asked.ElicitationID == "" ||
				asked.RequestedSchema != nil || !strings.Contains(asked.Message, `"bank" asks: allow it`) {
				t.Errorf("%+v", asked)
			}
		})
	}
}

// MCP-041, MCP-042: a state is good for one call of one caller, for ten minutes; used twice it changes nothing.
func TestRequestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.handle("travel", asking(say("where to?")))
		w.handle("other", asking(say("where to?")))
		w.far("distant", parley.SkillSpec{ID: "do"})
		manual := func(o *mcp.ClientOptions, _ *caller) { o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true} }
		offers := answering(func(*mcp.ElicitParams) *mcp.ElicitResult { return nil })
		alice, bob := w.connect("alice", modern, offers, manual), w.connect("bob", modern, offers, manual)
		ask := func() string {
			r, err := alice.tool(t.Context(), "travel__do", `{"text":"go"}`)
			w.must(err)
			if !r.NeedsInput() || len(r.InputRequests) != 1 || r.RequestState == "" {
				t.Fatalf("%+v", r)
			}
			return r.RequestState
		}
		retry := func(c *client, tool, arguments, state string, responses mcp.InputResponseMap) (*mcp.CallToolResult, error) {
			return c.tool(t.Context(), tool, arguments, func(p *mcp.CallToolParams) {
				p.RequestState, p.InputResponses = state, responses
			})
		}
		answer := func(s string) mcp.InputResponseMap {
			return mcp.InputResponseMap{inputName: accept(map[string]any{"answer": s})}
		}
		const same = `{"text":"go"}`
		state := ask()
		tampered := []byte(state)
		tampered[20] ^= 1
		for _, x := range []struct {
			name      string
			c         *client
			tool      string
			arguments string
			state     string
			responses mcp.InputResponseMap
			word      string
		}{
			{"tampered", alice, "travel__do", same, string(tampered), answer("SFO"), "requestState"},
			{"cut", alice, "travel__do", same, state[:len(state)-4], answer("SFO"), "requestState"},
			{"no state of the hub", alice, "travel__do", same, "x", answer("SFO"), "requestState"},
			{"of another caller", bob, "travel__do", same, state, answer("SFO"), "requestState"},
			{"of another tool", alice, "other__do", same, state, answer("SFO"), "requestState"},
			{"with other arguments", alice, "travel__do", `{"text":"no"}`, state, answer("SFO"), "requestState"},
			{"without a state", alice, "travel__do", same, "", answer("SFO"), "inputResponses"},
			{"an unknown action", alice, "travel__do", same, state,
				mcp.InputResponseMap{inputName: &mcp.ElicitResult{Action: "maybe"}}, "action"},
			{"an answer of the wrong form", alice, "travel__do", same, state,
				mcp.InputResponseMap{inputName: accept(map[string]any{"answer": 7})}, "answer"},
		} {
			_, err := retry(x.c, x.tool, x.arguments, x.state, x.responses)
			var wire *jsonrpc.Error
			if !errors.As(err, &wire) || wire.Code != -32602 || !strings.Contains(wire.Message, x.word) {
				t.Errorf("%s: %v", x.name, err)
			}
		}
		if n := len(w.messages(parley.Input)); n > 0 {
			t.Errorf("%d inputs", n)
		}

		r, err := retry(alice, "travel__do", same, state, mcp.InputResponseMap{"more": accept(nil)})
		w.must(err)
		if !r.NeedsInput() { // a missing answer is asked again
			t.Errorf("%+v", r)
		}
		responses := answer("SFO")
		responses["more"] = accept(nil) // is ignored
		r, err = retry(alice, "travel__do", ` {"text": "go"}`, state, responses)
		wantText(t, r, err, false, "SFO")
		for _, again := range []mcp.InputResponseMap{answer("LAX"), {inputName: &mcp.ElicitResult{Action: "decline"}}, nil} {
			r, err = retry(alice, "travel__do", same, state, again)
			wantText(t, r, err, false, "SFO")
		}
		if n, c := len(w.messages(parley.Input)), len(w.messages(parley.Cancel)); n != 1 || c != 0 {
			t.Errorf("%d inputs, %d cancels", n, c)
		}
		if n := len(w.messages(parley.Request)); n != 1 {
			t.Errorf("%d requests", n)
		}

		// The state outlives a restart of the hub, and ten minutes no call.
		results := make(chan *mcp.CallToolResult, 1)
		call := func(c *client, edit ...func(*mcp.CallToolParams)) {
			r, err := c.tool(t.Context(), "distant__do", same, edit...)
			if err != nil {
				t.Error(err)
			}
			results <- r
		}
		go call(alice)
		synctest.Wait()
		w.reply(parley.Message{Kind: parley.Event, State: parley.NeedsInput, Parts: say("where to?")})
		state = (<-results).RequestState
		w.restart(nil)
		time.Sleep(stateLife - time.Second)
		again := w.connect("alice", modern, offers, manual)
		go call(again, func(p *mcp.CallToolParams) { p.RequestState, p.InputResponses = state, answer("LAX") })
		w.eventually("no input", func() bool { return len(w.messages(parley.Input)) == 2 })
		w.reply(parley.Message{Kind: parley.Response, Parts: say("booked")})
		wantText(t, <-results, nil, false, "booked")
		time.Sleep(2 * time.Second)
		var wire *jsonrpc.Error
		if _, err := retry(again, "distant__do", same, state, nil); !errors.As(err, &wire) || wire.Code != -32602 {
			t.Errorf("expired: %v", err)
		}
	})
}

// MCP-042: many uses of one state at once are one input.
func TestStateUsedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("travel", asking(say("where to?")))
	c := w.connect("alice", modern, answering(func(*mcp.ElicitParams) *mcp.ElicitResult { return nil }),
		func(o *mcp.ClientOptions, _ *caller) { o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true} })
	r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`)
	w.must(err)
	state := r.RequestState
	const n = 8
	got := make(chan string, n)
	for i := range n {
		go func() {
			r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`, func(p *mcp.CallToolParams) {
				p.RequestState = state
				p.InputResponses = mcp.InputResponseMap{inputName: accept(map[string]any{"answer": fmt.Sprint("city ", i)})}
			})
			if err != nil {
				t.Error(err)
				got <- ""
				return
			}
			got <- texts(r)
		}()
	}
	first := <-got
	for range n - 1 {
		if s := <-got; s != first {
			t.Errorf("%q and %q", s, first)
		}
	}
	if inputs := w.messages(parley.Input); len(inputs) != 1 || !strings.HasPrefix(first, "city ") {
		t.Errorf("%d inputs, answer %q", len(inputs), first)
	}
}

// A client of the handshake revisions that cancels while it is asked cancels the request.
func TestCancelWhileAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("travel", asking(say("where to?")))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release := make(chan struct{})
	defer close(release) // before the client is closed
	c := w.connect("alice", legacy, answering(func(*mcp.ElicitParams) *mcp.ElicitResult {
		cancel()
		<-release
		return &mcp.ElicitResult{Action: "cancel"}
	}))
	if _, err := c.tool(ctx, "travel__do", `{"text":"go"}`); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.eventually("the request is not cancelled", func() bool { return len(w.messages(parley.Cancel)) == 1 })
	w.eventually("the request goes on", func() bool { return len(w.messages(parley.Failure)) == 1 })
}

// MCP-032: a client that answers a question and closes the stream before the call has begun withdraws the request; its
// answer does not go to the agent.
func TestCancelOfAnAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handle("travel", asking(say("where to?")))
	c := w.connect("alice", modern, answering(func(*mcp.ElicitParams) *mcp.ElicitResult { return nil }),
		func(o *mcp.ClientOptions, _ *caller) { o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true} })
	r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`)
	w.must(err)
	who := w.caller("alice")
	who.modern = true
	again := w.toolCall(who, "travel__do", `{"text":"go"}`)
	again.params.Meta[mcp.MetaKeyProtocolVersion] = modern
	again.params.RequestState = r.RequestState
	again.params.InputResponses = mcp.InputResponseMap{inputName: accept(map[string]any{answerName: "SFO"})}
	closed, closes := context.WithCancel(t.Context())
	closes()
	r, err = w.node.calls.call(closed, again)
	wantText(t, r, err, true, "cancelled")
	if n, c := len(w.messages(parley.Input)), len(w.messages(parley.Cancel)); n != 0 || c != 1 {
		t.Errorf("%d inputs, %d cancels", n, c)
	}
}

// Choices go to a client in the form of its revision: titled and several ones are since 2025-11-25. Where the revision
// has none, the question is asked as one text. The answer must be one of the choices.
func TestChoices(t *testing.T) {
	t.Parallel()
	const titled = `"type":"string","oneOf":[{"const":"eco","title":"Economy"},{"const":"first","title":"First class"}]`
	const several = `"type":"array","minItems":1,"maxItems":2,"items":`
	field := func(f string) string { return `{"type":"object","properties":{"x":{` + f + `}},"required":["x"]}` }
	one := map[string]any{"x": "first"}
	for name, x := range map[string]struct {
		field  string
		before string // the field until 2025-06-18; "": asked as one text
		answer map[string]any
		wrong  []map[string]any
	}{
		"titled": {titled, `"type":"string","enum":["eco","first"],"enumNames":["Economy","First class"]`, one,
			[]map[string]any{{"x": "First class"}, {"x": []any{"eco"}}, {}}},
		"named": {`"type":"string","enum":["eco","first"],"enumNames":["Economy","First class"]`,
			`"type":"string","enum":["eco","first"],"enumNames":["Economy","First class"]`, one, nil},
		"several": {several + `{"type":"string","enum":["a","b","c"]}`, "", map[string]any{"x": []any{"a", "c"}},
			[]map[string]any{{"x": []any{}}, {"x": []any{"a", "b", "c"}}, {"x": []any{"d"}}, {"x": []any{1}}, {"x": "a"}}},
		"several titled": {several + `{"anyOf":[{"const":"a","title":"A"},{"const":"b","title":"B"}]}`, "",
			map[string]any{"x": []any{"b"}}, []map[string]any{{"x": []any{"B"}}, {"x": nil}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.handle("travel", asking([]parley.Part{parley.Text("which?"), part("application/json", "", field(x.field))}))
			for _, revision := range []string{"2025-06-18", legacy, modern} {
				want, answer := field(x.field), x.answer
				if revision < legacy {
					if want = field(x.before); x.before == "" {
						want, answer = string(textForm), map[string]any{answerName: "mine"}
					}
				}
				var asked *mcp.ElicitParams
				c := w.connect("alice", revision, answering(func(p *mcp.ElicitParams) *mcp.ElicitResult {
					asked = p
					return accept(answer)
				}))
				r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`)
				reply := encoded(t, answer)
				if want == string(textForm) {
					reply = "mine"
				}
				wantText(t, r, err, false, reply)
				if got := encoded(t, asked.RequestedSchema); got != string(canonicalForm(t, json.RawMessage(want))) ||
					strings.Contains(asked.Message, `"x"`) != (want == string(textForm)) {
					t.Errorf("%s: %q with\n%s\nwant\n%s", revision, asked.Message, got, want)
				}
			}
			manual := func(o *mcp.ClientOptions, _ *caller) { o.MultiRoundTrip = &mcp.MultiRoundTripOptions{Disabled: true} }
			c := w.connect("bob", modern, answering(func(*mcp.ElicitParams) *mcp.ElicitResult { return nil }), manual)
			r, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`)
			w.must(err)
			for _, wrong := range x.wrong {
				_, err := c.tool(t.Context(), "travel__do", `{"text":"go"}`, func(p *mcp.CallToolParams) {
					p.RequestState, p.InputResponses = r.RequestState, mcp.InputResponseMap{inputName: accept(wrong)}
				})
				var wire *jsonrpc.Error
				if !errors.As(err, &wire) || wire.Code != -32602 || !strings.Contains(wire.Message, "content") {
					t.Errorf("%v: %v", wrong, err)
				}
			}
		})
	}
}

// MCP-040: a form has only what elicitation knows.
func TestFormSchema(t *testing.T) {
	t.Parallel()
	for _, x := range []struct{ schema, want string }{
		{dateForm, `{"type":"object","properties":{"seats":{"type":"integer"},"when":{"type":"string","format":"date"}},` +
			`"required":["when"]}`},
		{`{"type":"object","properties":{"a":{"type":"string","enum":["x"],"enumNames":["X"],"default":"x","$comment":"c"},` +
			`"b":{"type":"boolean","title":"B"},"n":{"type":"number","minimum":0.10,"maximum":9}},"$id":"https://x.test"}`,
			`{"type":"object","properties":{"a":{"type":"string","enum":["x"],"enumNames":["X"],"default":"x"},` +
				`"b":{"type":"boolean","title":"B"},"n":{"type":"number","minimum":0.10,"maximum":9}}}`},
		{`{"type":"object","properties":{"a":{"type":"string","oneOf":[{"const":"x"},` +
			`{"const":"y","title":"\u200bY","x":1}]},"b":{"type":"array","uniqueItems":true,"items":{"enum":["x"]}},` +
			`"c":{"type":"array","maxItems":1,"items":{` +
			`"type":"string","anyOf":[{"const":"x","title":"X"}]}},"d":{"type":"string","items":{}}}}`,
			`{"type":"object","properties":{"a":{"type":"string","oneOf":[{"const":"x","title":"x"},` +
				`{"const":"y","title":"Y"}]},"b":{"type":"array","items":{"type":"string","enum":["x"]}},` +
				`"c":{"type":"array","items":{"anyOf":[{"const":"x","title":"X"}]},"maxItems":1},"d":{"type":"string"}}}`},
		{`{"type":"object","properties":{"a":{"type":"string","enum":["x"],"oneOf":[{"const":"x","title":"X"}]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string","oneOf":[{"minLength":1}]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string","oneOf":[{"const":"x"},{"const":"x"}]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"boolean","oneOf":[{"const":"x"}]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string","enum":["x\u200b"]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string","enum":["` + strings.Repeat("x", maxLabel+1) + `"]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array","items":{"type":"number","enum":["1"]}}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array","items":{"enum":[]}}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array","items":{"enum":["x"],"anyOf":[{"const":"x"}]}}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array","enum":["x"],"items":{"enum":["x"]}}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array","minItems":-1,"items":{"enum":["x"]}}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array","items":[{"enum":["x"]}]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string","enum":["x"` + strings.Repeat(`,"x"`, maxChoices) + `]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"object"}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array"}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string","format":"password"}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"integer","enum":[1]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"string"}},"required":["b"]}`, ""},
		{`{"type":"object","properties":{"a":{"$ref":"https://x.test"}}}`, ""},
		{`{"type":"object","properties":{}}`, ""},
		{`{"type":"array"}`, ""}, {`{"city":"Bern"}`, ""}, {`1`, ""}, {`{`, ""},
	} {
		p := part("application/json", "", x.schema)
		if got := string(formSchema(&p, true)); got != x.want {
			t.Errorf("%s\ngives %s", x.schema, got)
		}
	}
	many := map[string]any{}
	for i := range maxFields + 1 {
		many[fmt.Sprint(i)] = map[string]any{"type": "string"}
	}
	p := part("application/json", "", encoded(t, map[string]any{"type": "object", "properties": many}))
	if got := formSchema(&p, true); got != nil {
		t.Error("too many fields")
	}
	long := &parley.Message{From: "x", Parts: say(strings.Repeat("x", 5000))}
	if got := questionOf(long, true); len(got) != 5000 {
		t.Error(len(got))
	}
	if got := questionOf(&parley.Message{Parts: []parley.Part{part("application/json", "", dateForm)}}, true); got !=
		"it needs more input" {
		t.Error(got)
	}
	if !slices.Equal(formOf(&parley.Message{Parts: say("x")}, true), textForm) {
		t.Error("not a text")
	}
}
