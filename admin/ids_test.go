package admin

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// near gives two ids of a list with the longest common beginning, and that beginning.
func near(t *testing.T, ids []parley.ID) (common string, a, b parley.ID) {
	t.Helper()
	for i, x := range ids {
		for _, y := range ids[i+1:] {
			n := 0
			for x.String()[n] == y.String()[n] {
				n++
			}
			if n > len(common) {
				common, a, b = x.String()[:n], x, y
			}
		}
	}
	if len(common) < 8 {
		t.Fatalf("the ids are not alike: %v", ids)
	}
	return common, a, b
}

// TestBeginningsOfIDs: everywhere the API takes an id it takes the beginning of one; if several ids begin so, the error
// lists them.
func TestBeginningsOfIDs(t *testing.T) {
	b := open(t, nil)
	ctx := t.Context()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "agh",
		ID: "far"}}}); err != nil {
		t.Fatal(err)
	}
	var dead, conversations []parley.ID
	for range 3 {
		r, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("hello")})
		if err != nil {
			t.Fatal(err)
		}
		<-b.settled
		dead, conversations = append(dead, r.ID), append(conversations, r.Conversation)
	}
	common, x, y := near(t, dead)
	one := x.String()[:len(common)+1]
	if x, y := x.String(), y.String(); strings.HasSuffix(one, "-") {
		one = x[:len(common)+2]
		common = y[:len(common)]
	}
	// Digits without dashes, and capitals, are the same id.
	plain := strings.ToUpper(strings.ReplaceAll(one, "-", ""))
	for name, f := range map[string]func(id string) (parley.ID, error){
		"message": func(id string) (parley.ID, error) {
			m, err := b.client.Message(ctx, id, false)
			return m.ID, err
		},
		"dead letter": func(id string) (parley.ID, error) {
			d, err := b.client.DeadLetter(ctx, id, "")
			return d.Message, err
		},
		"dead letter of a recipient": func(id string) (parley.ID, error) {
			d, err := b.client.DeadLetter(ctx, id, "far")
			return d.Message, err
		},
		"retry": func(id string) (parley.ID, error) {
			d, err := b.client.Retry(ctx, id, "")
			if err == nil {
				<-b.settled
			}
			return d.Message, err
		},
	} {
		for _, id := range []string{one, plain, x.String()} {
			if got, err := f(id); err != nil || got != x {
				t.Errorf("%s %s: %s, %v, want %s", name, id, got, err, x)
			}
		}
		_, err := f(common)
		code(t, err, parley.Conflict)
		for _, id := range []parley.ID{x, y} {
			if !strings.Contains(err.Error(), id.String()) {
				t.Errorf("%s: the error does not list %s: %v", name, id, err)
			}
		}
		_, err = f("ffffffff")
		code(t, err, notFound)
		_, err = f("1234567")
		code(t, err, parley.Malformed)
	}
	if d, err := b.client.Drop(ctx, plain, "", ""); err != nil || d.Message != x {
		t.Errorf("drop: %+v, %v", d, err)
	}

	// Conversations: a whole id may be new, the beginning of one may not.
	common, x, _ = near(t, conversations)
	r, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("more"),
		Conversation: x.String()[:len(common)+2]})
	if err != nil || r.Conversation != x {
		t.Errorf("%+v, %v", r, err)
	}
	<-b.settled
	for what, f := range map[string]func(id string) error{
		"send": func(id string) error {
			_, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("more"), Conversation: id})
			return err
		},
		"show":   func(id string) error { _, err := b.client.Conversation(ctx, id, "", 1); return err },
		"forget": func(id string) error { _, err := b.client.Forget(ctx, Forget{Conversation: id}); return err },
		"messages": func(id string) error {
			_, err := fetch[MessagePage](b.client, ctx, "GET", "/messages", url.Values{"conversation": {id}}, nil)
			return err
		},
	} {
		err := f(common)
		code(t, err, parley.Conflict)
		if !strings.Contains(err.Error(), x.String()) {
			t.Errorf("%s: the error does not list %s: %v", what, x, err)
		}
		code(t, f("ffffffff"), notFound)
		code(t, f("12"), parley.Malformed)
	}
	unused := parley.HashID([]byte("0123456789abcdef"))
	if r, err := b.client.Send(ctx, Send{To: "far", Kind: parley.Notice, Text: text("new"),
		Conversation: unused.String()}); err != nil || r.Conversation != unused {
		t.Errorf("%+v, %v", r, err)
	}
	<-b.settled
	if page, err := b.client.Messages(ctx, index.Filter{Conversation: unused}); err != nil || len(page.Messages) != 1 {
		t.Errorf("%+v, %v", page, err)
	}
	// A reply names its request so, too.
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "crew/bob", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	q, err := b.client.Send(ctx, Send{To: "crew/bob", Text: text("?"), Conversation: unused.String()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.client.Collect(ctx, "crew/bob", 1, time.Minute); err != nil {
		t.Fatal(err)
	}
	reply, err := b.client.Send(ctx, Send{From: "crew/bob", InReplyTo: q.ID.String()[:35], Text: text("!")})
	if err != nil || reply.Conversation != unused {
		t.Errorf("%+v, %v", reply, err)
	}
}

// TestMisspeltAgents: the error for an unknown agent has the name that was meant, for callers who may list the agents.
func TestMisspeltAgents(t *testing.T) {
	b := open(t, nil)
	ctx := t.Context()
	const want = `no agent "wether" here; did you mean "weather"?`
	for name, f := range map[string]func() error{
		"show":   func() error { _, err := b.client.Agent(ctx, "wether", 0); return err },
		"pause":  func() error { _, err := b.client.Pause(ctx, "wether", true); return err },
		"remove": func() error { return b.client.RemoveAgent(ctx, "wether") },
		"send":   func() error { _, err := b.client.Send(ctx, Send{To: "wether"}); return err },
		"ask":    func() error { _, err := b.client.Ask(ctx, Send{To: "wether"}); return err },
		"stream": func() error {
			for _, err := range b.client.Stream(ctx, Send{To: "wether"}, nil) {
				return err
			}
			return nil
		},
	} {
		err := f()
		code(t, err, parley.UnknownAgent)
		if got := parley.AsError(err).Text; got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	_, err := b.client.Agent(ctx, "nobody", 0)
	if got := parley.AsError(err).Text; got != `no agent "nobody" here` {
		t.Error(got)
	}
	// An account that may only register agents learns no names.
	if e := b.admin.unknownAgent(Actor{Name: "guest", Role: Register}, "wether"); e.Text != `no agent "wether" here` {
		t.Error(e.Text)
	}
}

// TestPausedRecipient: a sender learns at once that the recipient is paused. The time that it would have waited is no
// deadline: the request is delivered when the agent is resumed.
func TestPausedRecipient(t *testing.T) {
	b := open(t, nil)
	ctx := t.Context()
	if _, err := b.client.Pause(ctx, "weather", true); err != nil {
		t.Fatal(err)
	}
	ask := Send{To: "weather", Skill: "forecast", JSON: []byte(`{"city":"Bern"}`), Timeout: "1ms"}
	answered := make(chan parley.ID, 8)
	stop := b.hub.Journal().Watch(func(r *journal.Record) {
		if r.Message != nil && r.Message.Kind == parley.Response {
			answered <- r.Message.InReplyTo
		}
	})
	defer stop()
	var waiting []parley.ID
	for name, f := range map[string]func() (Receipt, error){
		"ask":  func() (Receipt, error) { return b.client.Ask(ctx, ask) },
		"send": func() (Receipt, error) { return b.client.Send(ctx, ask) },
		"stream": func() (r Receipt, err error) {
			for m, err := range b.client.Stream(ctx, ask, func(got Receipt) { r = got }) {
				t.Errorf("a paused agent answers: %+v, %v", m, err)
			}
			return r, err
		},
	} {
		r, err := f()
		if err != nil || !r.Paused() || r.Reply != nil || r.ID.IsZero() || time.Until(r.Deadline) < time.Minute {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		waiting = append(waiting, r.ID)
	}
	if _, err := b.client.Pause(ctx, "weather", false); err != nil {
		t.Fatal(err)
	}
	for range waiting {
		if id := <-answered; !slices.Contains(waiting, id) {
			t.Errorf("%s was answered, want one of %s", id, waiting)
		}
	}
	if r, err := b.client.Ask(ctx, Send{To: "weather", Skill: "forecast", JSON: ask.JSON}); err != nil || r.Paused() ||
		r.Reply == nil {
		t.Errorf("%+v, %v", r, err)
	}
}
