package parley

import (
	"context"
	"errors"
	"iter"
	"strings"
	"testing"
)

// asked is a Caller that keeps what it was asked, and answers what the test says.
type asked struct {
	last    *Message
	events  []*Message
	reply   *Message
	refusal error
}

func (a *asked) Ask(_ context.Context, m *Message) (*Message, error) {
	a.last = m
	return a.reply, a.refusal
}

func (a *asked) Tell(_ context.Context, m *Message) error {
	a.last = m
	return a.refusal
}

func (a *asked) Stream(_ context.Context, m *Message) iter.Seq2[*Message, error] {
	return func(yield func(*Message, error) bool) {
		a.last = m
		for _, e := range a.events {
			if !yield(e, nil) {
				return
			}
		}
		if a.refusal != nil {
			yield(nil, a.refusal)
			return
		}
		yield(a.reply, nil)
	}
}

func response(parts ...Part) *Message { return &Message{Kind: Response, Parts: parts} }

func TestAskContent(t *testing.T) {
	part := Part{MediaType: "image/png", Data: []byte{1}}
	for _, c := range []struct {
		content any
		want    string // media type and data of the parts
	}{
		{nil, ""},
		{"hello", "text/plain; charset=utf-8 hello;"},
		{part, "image/png \x01;"},
		{[]Part{part, Text("x")}, "image/png \x01;text/plain; charset=utf-8 x;"},
		{struct{ N int }{7}, `application/json {"N":7};`},
	} {
		a := &asked{reply: response()}
		if _, err := Ask[struct{}](WithCaller(t.Context(), a), "bob", "do", c.content); err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for _, p := range a.last.Parts {
			got.WriteString(p.MediaType + " " + string(p.Data) + ";")
		}
		if m := a.last; got.String() != c.want || m.Kind != Request || m.To != "bob" || m.Skill != "do" || m.From != "" {
			t.Errorf("%v: %q, %+v", c.content, got.String(), m)
		}
	}
	a := &asked{}
	ctx := WithCaller(t.Context(), a)
	if err := Tell(ctx, "bob", "", "x"); err != nil || a.last.Kind != Notice {
		t.Errorf("%+v, %v", a.last, err)
	}
	if err := Tell(ctx, "bob", "", make(chan int)); err == nil {
		t.Error("content that is no JSON is sent")
	}
}

func TestAskAnswer(t *testing.T) {
	type answer struct {
		City string `json:"city"`
	}
	object := Part{MediaType: "application/json", Data: []byte(`{"city":"Bern"}`)}
	check := func(reply *Message, ask func(ctx context.Context) (any, error), want any) {
		t.Helper()
		got, err := ask(WithCaller(t.Context(), &asked{reply: reply}))
		if want == nil && err == nil || want != nil && (err != nil || got != want) {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
	}
	typed := func(ctx context.Context) (any, error) { return Ask[answer](ctx, "bob", "", nil) }
	check(response(object), typed, answer{"Bern"})
	check(response(Text(`{"city":"Bern"}`)), typed, answer{"Bern"})
	check(response(Text("Bern")), typed, nil)
	check(response(), typed, nil)
	text := func(ctx context.Context) (any, error) { return Ask[string](ctx, "bob", "", nil) }
	check(response(Text("Bern")), text, "Bern")
	check(response(Part{MediaType: "application/json", Data: []byte(`"Bern"`)}), text, "Bern")
	check(response(object), text, nil)
	nothing := func(ctx context.Context) (any, error) { return Ask[struct{}](ctx, "bob", "", nil) }
	check(response(), nothing, struct{}{})
	reply := response(object)
	check(reply, func(ctx context.Context) (any, error) { return Ask[*Message](ctx, "bob", "", nil) }, reply)
	check(reply, func(ctx context.Context) (any, error) {
		parts, err := Ask[[]Part](ctx, "bob", "", nil)
		return len(parts), err
	}, 1)
}

func TestAskErrors(t *testing.T) {
	failure := &Message{Kind: Failure, Error: Refuse(Rejected, "not today")}
	for name, a := range map[string]*asked{"failure": {reply: failure}, "refusal": {refusal: Refuse(Rejected, "no")}} {
		ctx := WithCaller(t.Context(), a)
		_, err := Ask[string](ctx, "bob", "", nil)
		var e *Error
		if !errors.As(err, &e) || e.Code != Rejected || !strings.Contains(err.Error(), `"bob"`) {
			t.Errorf("%s: %v", name, err)
		}
		for u, err := range Stream[string](ctx, "bob", "", nil) {
			if CodeOf(err) != Rejected || u.Event != nil {
				t.Errorf("%s: %v, %v", name, u, err)
			}
		}
	}
	_, err := Ask[string](t.Context(), "bob", "", nil)
	for _, err := range []error{err, Tell(t.Context(), "bob", "", nil)} {
		if !errors.Is(err, ErrNoCaller) || !strings.Contains(err.Error(), "handler") {
			t.Error(err)
		}
	}
	for _, err := range Stream[string](t.Context(), "bob", "", nil) {
		if !errors.Is(err, ErrNoCaller) {
			t.Error(err)
		}
	}
}

func TestStreamUpdates(t *testing.T) {
	a := &asked{events: []*Message{{Kind: Event, State: Working, Parts: []Part{Text("soon")}}},
		reply: response(Text("done"))}
	var got []string
	for u, err := range Stream[string](WithCaller(t.Context(), a), "bob", "", nil) {
		if err != nil {
			t.Fatal(err)
		}
		if u.Event != nil {
			got = append(got, u.Event.State.String(), u.Event.Text())
		} else {
			got = append(got, u.Result)
		}
	}
	if s := strings.Join(got, " "); s != "working soon done" {
		t.Error(s)
	}
}
