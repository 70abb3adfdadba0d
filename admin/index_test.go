package admin

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
)

// ask asks the agent weather for a city's forecast.
func (b *bench) ask(city string) Receipt {
	b.t.Helper()
	r, err := b.client.Ask(b.t.Context(), Send{To: "weather", Skill: "forecast",
		JSON: fmt.Appendf(nil, `{"city":%q}`, city)})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func TestMessages(t *testing.T) {
	b := open(t, nil)
	first := b.ask("Bern")
	b.ask("Atlantis")
	page, err := b.client.Messages(t.Context(), index.Filter{Limit: 2})
	if err != nil || len(page.Messages) != 2 || page.Next == "" || page.Messages[0].Kind != parley.Failure ||
		page.Messages[1].To != "weather" {
		t.Fatalf("%+v %v", page, err)
	}
	if page, err = b.client.Messages(t.Context(), index.Filter{Cursor: page.Next}); err != nil ||
		len(page.Messages) != 3 || page.Next != "" {
		t.Fatalf("%+v %v", page, err)
	}
	if page, err = b.client.Messages(t.Context(), index.Filter{Failed: true}); err != nil || len(page.Messages) != 1 ||
		page.Messages[0].Error.Text != "no such city" {
		t.Fatalf("%+v %v", page, err)
	}
	page, err = b.client.Messages(t.Context(), index.Filter{Agent: "weather", From: "operator", To: "weather",
		Conversation: first.Conversation, Kind: parley.Request,
		State: parley.Answered, Protocol: "api", Since: time.Unix(1,
			0), Until: time.Now().Add(time.Hour), Text: "bern"})
	if err != nil || len(page.Messages) != 1 || page.Messages[0].ID != first.ID ||
		page.Messages[0].Snippet != `{"city":"«Bern»"}` ||
		page.Messages[0].Deliveries[0].State != parley.Answered ||
		page.Messages[0].Deliveries[0].Reply != first.Reply.ID {
		t.Fatalf("%+v %v", page, err)
	}
	for _, bad := range []index.Filter{{Cursor: "?"}, {Text: "***"}} {
		var e *parley.Error
		if _, err := b.client.Messages(t.Context(), bad); !errors.As(err, &e) || e.Code != parley.Malformed {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for _, bad := range []string{"kind=odd", "state=odd", "conversation=12", "since=yesterday", "failed=yes",
		"limit=-1", "odd=1"} {
		resp, err := b.raw("/v1/messages?" + bad)
		if err != nil || resp.StatusCode != 400 {
			t.Errorf("%s: %v %v", bad, resp, err)
		}
	}
	one, err := b.client.Message(t.Context(), first.ID.String(), true)
	if err != nil || one.ID != first.ID || one.Content == nil ||
		string(one.Content.Parts[0].JSON) != `{"city":"Bern"}` || len(one.Deliveries) != 1 ||
		len(one.Deliveries[0].Steps) != 2 || one.Node != "test" {
		t.Fatalf("%+v %v", one, err)
	}
	var e *parley.Error
	if _, err := b.client.Message(t.Context(), "00000000", false); !errors.As(err, &e) || e.Code != notFound {
		t.Errorf("an unknown id: %v", err)
	}
	if _, err := b.client.Message(t.Context(), first.ID.String()[:8], false); !errors.As(err, &e) ||
		e.Code != parley.Conflict {
		t.Errorf("an ambiguous id: %v", err)
	}
	s, err := b.client.Stats(t.Context())
	if err != nil || s.Index == nil || s.Index.Lag != 0 || s.Index.Indexed == 0 {
		t.Errorf("%+v %v", s.Index, err)
	}
}

// raw makes a request that Client cannot make.
func (b *bench) raw(path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(b.t.Context(), "GET", b.server.URL+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+rootToken)
	resp, err := http.DefaultClient.Do(req)
	if err == nil {
		err = resp.Body.Close()
	}
	return resp, err
}

func TestConversations(t *testing.T) {
	b := open(t, nil)
	first, second := b.ask("Bern"), b.ask("Atlantis")
	page, err := b.client.Conversations(t.Context(), index.ConversationFilter{Agent: "weather", Limit: 1})
	if err != nil || len(page.Conversations) != 1 || page.Conversations[0].ID != second.Conversation ||
		page.Conversations[0].Failed != 1 || page.Next == "" {
		t.Fatalf("%+v %v", page, err)
	}
	page, err = b.client.Conversations(t.Context(), index.ConversationFilter{Cursor: page.Next, Since: time.Unix(1, 0),
		Until: time.Now().Add(time.Hour)})
	if err != nil || len(page.Conversations) != 1 || page.Conversations[0].ID != first.Conversation ||
		!slices.Equal(page.Conversations[0].Agents, []string{"operator", "weather"}) {
		t.Fatalf("%+v %v", page, err)
	}
	if page, err = b.client.Conversations(t.Context(), index.ConversationFilter{Failed: true}); err != nil ||
		len(page.Conversations) != 1 {
		t.Fatalf("%+v %v", page, err)
	}
	if page, err = b.client.Conversations(t.Context(), index.ConversationFilter{Open: true}); err != nil ||
		len(page.Conversations) != 0 {
		t.Fatalf("%+v %v", page, err)
	}
	v, err := b.client.Conversation(t.Context(), first.Conversation.String(), "", 2)
	if err != nil || v.Messages != 3 || len(v.History) != 2 || v.History[0].ID != first.ID || v.Next == "" {
		t.Fatalf("%+v %v", v, err)
	}
	if v, err = b.client.Conversation(t.Context(), first.Conversation.String(), v.Next, 0); err != nil ||
		len(v.History) != 1 || v.History[0].Kind != parley.Response {
		t.Fatalf("%+v %v", v, err)
	}
	if _, err := b.as("nobody's token, long enough").Conversations(t.Context(),
		index.ConversationFilter{}); !errors.Is(err, ErrToken) {
		t.Errorf("without a token: %v", err)
	}
	if _, err := b.as(viewerToken).Conversations(t.Context(), index.ConversationFilter{}); err != nil {
		t.Errorf("the role read: %v", err)
	}
}

func TestTail(t *testing.T) {
	b := open(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan struct{})
	events := make(chan Event)
	done := make(chan error, 1)
	go func() {
		for e, err := range b.client.Tail(ctx, index.Filter{}, func() { close(started) }) {
			if err != nil {
				done <- err
				return
			}
			events <- e
		}
		done <- nil
	}()
	<-started
	r := b.ask("Bern")
	e := <-events
	if e.Message == nil || e.Message.ID != r.ID || e.Message.Deliveries[0].State != parley.Delivering {
		t.Fatalf("%+v", e)
	}
	if e = <-events; e.Message == nil || e.Message.State != parley.Working {
		t.Fatalf("%+v", e)
	}
	if e = <-events; e.Message == nil || e.Message.Kind != parley.Response {
		t.Fatalf("%+v", e)
	}
	if e = <-events; e.Delivery == nil || e.Delivery.State != parley.Answered || e.Delivery.Message != r.ID ||
		e.Delivery.Reply != r.Reply.ID {
		t.Fatalf("%+v", e)
	}
	ref := b.hub.Refuse(hub.Refusal{Protocol: "samvad", Claim: "agent://x", Step: "signature",
		Code: parley.Unauthenticated, Text: "no"})
	if e = <-events; e.Refusal == nil || e.Refusal.Ref != ref {
		t.Fatalf("%+v", e)
	}
	cancel()
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestTailFailed: the tail of failures has failed attempts, dead letters, error answers and
// refusals, and nothing of messages that went well.
func TestTailFailed(t *testing.T) {
	b := open(t, nil)
	if _, err := b.client.AddAgent(t.Context(), NewAgent{Name: "far", Identities: []NewIdentity{{Protocol: "agh",
		ID: "nowhere/far"}}}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for e, err := range b.client.Tail(t.Context(), index.Filter{Failed: true}, func() {
		b.ask("Bern")
		if _, err := b.client.Send(t.Context(), Send{To: "far", Kind: parley.Notice, Text: text("hello")}); err != nil {
			t.Error(err)
		}
		<-b.settled
		b.ask("Atlantis")
		b.hub.Refuse(hub.Refusal{Protocol: "samvad", Step: "signature", Code: parley.Unauthenticated, Text: "no"})
	}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case e.Message != nil:
			got = append(got, e.Message.Kind.String())
		case e.Delivery != nil:
			if e.Delivery.Error == nil {
				t.Errorf("a failed step without a reason: %+v", e.Delivery)
			}
			got = append(got, e.Delivery.State.String())
		case e.Refusal != nil:
			got = append(got, "refused")
		}
		if e.Refusal != nil { // the last: refusals are looked for from time to time
			break
		}
	}
	if want := []string{"waiting", "waiting", "dead", "error", "refused"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTailChooses tails with filters, in process; a refusal that every filter lets
// through ends the streams.
func TestTailChooses(t *testing.T) {
	b := open(t, nil)
	by := Actor{Name: "test", Role: Read}
	for name, c := range map[string]struct {
		f    index.Filter
		want string
	}{
		"all":     {index.Filter{}, "request event response answered request error answered"},
		"failed":  {index.Filter{Failed: true}, "error"},
		"from":    {index.Filter{From: "weather"}, "event response error"},
		"request": {index.Filter{Kind: parley.Request}, "request answered request answered"},
		"text":    {index.Filter{Text: "celsius"}, "response"},
		"state":   {index.Filter{State: parley.Answered}, "answered answered"},
		"nobody":  {index.Filter{Agent: "nobody"}, ""},
	} {
		var got []string
		ctx, cancel := context.WithCancel(t.Context())
		for e, err := range b.admin.Tail(ctx, by, c.f, func() {
			b.ask("Bern")
			b.ask("Atlantis")
			if c.want == "" {
				cancel()
			}
		}) {
			if err != nil {
				t.Fatal(err)
			}
			if e.Message != nil {
				got = append(got, e.Message.Kind.String())
			}
			if e.Delivery != nil {
				got = append(got, e.Delivery.State.String())
			}
			if len(got) == len(strings.Fields(c.want)) {
				break
			}
		}
		cancel()
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: %q, want %q", name, s, c.want)
		}
	}
}

// TestTailDrops: a reader that takes nothing gets Dropped, and then no more.
func TestTailDrops(t *testing.T) {
	b := open(t, nil)
	var last Event
	first := true
	for e, err := range b.admin.Tail(t.Context(), Actor{Name: "test", Role: Read}, index.Filter{},
		func() { b.ask("Bern") }) {
		if err != nil {
			t.Fatal(err)
		}
		if last = e; first {
			first = false
			for range tailQueue / 2 {
				b.ask("Bern")
			}
		}
	}
	if last.Dropped == nil {
		t.Errorf("%+v, want Dropped", last)
	}
}

// TestTailEnds: a hub that shuts down does not wait for readers of Tail.
func TestTailEnds(t *testing.T) {
	b := open(t, nil)
	for _, err := range b.client.Tail(t.Context(), index.Filter{}, b.admin.EndStreams) {
		var away *UnreachableError
		if !errors.As(err, &away) {
			t.Fatalf("%v, want an UnreachableError", err)
		}
	}
}

// exported is a conversation as its export's lines.
func exported(t *testing.T, b *bench) []string {
	t.Helper()
	r := b.ask("Bern")
	for _, city := range []string{"Thun", "Chur", "Genf"} {
		if _, err := b.client.Ask(t.Context(), Send{To: "weather", Skill: "forecast",
			JSON: fmt.Appendf(nil, `{"city":%q}`, city), Conversation: r.Conversation.String()}); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := b.client.Export(t.Context(), r.Conversation.String(), true, &out); err != nil {
		t.Fatal(err)
	}
	return strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func check(t *testing.T, lines []string) *Report {
	t.Helper()
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\n") + "\n"
	}
	r, err := VerifyExport(strings.NewReader(strings.Join(lines, "")), func(_ *ExportHeader, _ int, r *ExportRecord) {
		if r.Message != nil {
			if err := r.Message.Check(); err != nil {
				t.Errorf("message %s: %v", r.Message.ID, err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// rehash makes a line consistent in itself.
func rehash(t *testing.T, line string, change func(*ExportLine)) string {
	t.Helper()
	var l ExportLine
	if err := jsonx.DecodeKnown([]byte(strings.TrimSpace(line)), &l); err != nil {
		t.Fatal(err)
	}
	change(&l)
	previous, err := hex.DecodeString(l.Previous)
	if err != nil {
		t.Fatal(err)
	}
	hash, err := hashLine(&l, previous)
	if err != nil {
		t.Fatal(err)
	}
	l.Hash = hex.EncodeToString(hash)
	out, err := canonical(&l)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestExportFindsChanges: the report names every change of the file.
func TestExportFindsChanges(t *testing.T) {
	b := open(t, nil)
	lines := exported(t, b)
	if r := check(t, slices.Clone(lines)); !r.OK() || r.Messages != 12 || r.Records != len(lines)-2 {
		t.Fatalf("%d lines: %+v", len(lines), r)
	}
	last := len(lines) - 1
	stranger, err := keyring.Open(keyring.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := stranger.Ensure(keyring.New{Owner: keyring.Hub, Purpose: exportPurpose, Algorithm: keyring.Ed25519})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func([]string) []string
		want   []string
	}{
		"changed": {func(l []string) []string {
			l[3] = strings.Replace(l[3], "weather", "whether",
				1)
			return l
		}, []string{"line 4 was changed"}},
		"white space": {func(l []string) []string { l[3] = strings.Replace(l[3], ":", ": ", 1); return l },
			[]string{"line 4 was changed"}},
		"header changed": {func(l []string) []string {
			l[0] = strings.Replace(l[0], "hub-test", "hub-best",
				1)
			return l
		}, []string{"line 1 was changed"}},
		"end changed": {func(l []string) []string {
			l[last] = strings.Replace(l[last], `"records":`, `"records":1`, 1)
			return l
		}, []string{fmt.Sprintf("line %d was changed", last+1)}},
		"missing": {func(l []string) []string { return slices.Delete(l, 4, 5) },
			[]string{"line number 4 is missing"}},
		"several missing": {func(l []string) []string { return slices.Delete(l, 4, 7) },
			[]string{"lines number 4 to 6 are missing"}},
		"header missing": {func(l []string) []string { return l[1:] },
			[]string{"the first line is not the header of an export", "line number 0 is missing"}},
		"cut off": {func(l []string) []string { return l[:last-2] },
			[]string{"the last line of the export is missing: the file was cut off"}},
		"moved down": {func(l []string) []string { x := l[2]; return slices.Insert(slices.Delete(l, 2, 3), 6, x) },
			[]string{"line 7 was moved: it is number 2"}},
		"moved up": {func(l []string) []string { x := l[6]; return slices.Insert(slices.Delete(l, 6, 7), 2, x) },
			[]string{"line 3 was moved: it is number 6"}},
		"copied": {func(l []string) []string { return slices.Insert(l, 5, l[3]) },
			[]string{"line 6 is a copy of line 4: it was inserted"}},
		"inserted": {func(l []string) []string {
			return slices.Insert(l, 4, rehash(t, l[3], func(l *ExportLine) { l.Record.Node = "elsewhere" }))
		}, []string{"line 5 was inserted: another line is number 3"}},
		"rubbish inserted": {func(l []string) []string { return slices.Insert(l, 4, "{}") },
			[]string{"line 5 was changed"}},
		"no JSON": {func(l []string) []string { l[4] = "rubbish"; return l },
			[]string{"line 5 is not a line of an export", "line number 4 is missing"}},
		"replaced": {func(l []string) []string {
			l[3] = rehash(t, l[3], func(l *ExportLine) { l.Record.Node = "elsewhere" })
			return l
		}, []string{"line 4 was replaced, or line 5: the one does not continue the other"}},
		"behind the end": {func(l []string) []string {
			return append(l, rehash(t, l[3], func(l *ExportLine) { l.Line = last + 1 }))
		}, []string{fmt.Sprintf("line %d was inserted: it has a number behind the end", last+2)}},
		"signed by nobody": {func(l []string) []string {
			l[last] = rehash(t, l[last], func(l *ExportLine) { l.Signature = make([]byte, ed25519.SignatureSize) })
			return l
		}, []string{"the signature of the last line is not that of the header's key"}},
		"written anew without the key": {func(l []string) []string {
			var out bytes.Buffer
			c := chain{w: &out}
			for i, line := range l {
				var x ExportLine
				if err := jsonx.DecodeKnown([]byte(strings.TrimSpace(line)), &x); err != nil {
					t.Fatal(err)
				}
				var s keyring.Signer
				if x.Record != nil && i == 3 {
					x.Record.Node = "elsewhere"
				}
				if x.End != nil {
					s = other
				}
				x.Hash, x.Signature = "", nil
				if err := c.add(&x, s); err != nil {
					t.Fatal(err)
				}
			}
			return strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")
		}, []string{"the signature of the last line is not that of the header's key"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := check(t, c.change(slices.Clone(lines)))
			if r.OK() {
				t.Fatal("nothing was found")
			}
			if len(r.Problems) != len(c.want) {
				t.Errorf("found %q, want %q", r.Problems, c.want)
			}
			for i := range min(len(c.want), len(r.Problems)) {
				if !strings.HasPrefix(r.Problems[i], c.want[i]) {
					t.Errorf("found %q, want %q", r.Problems, c.want)
				}
			}
		})
	}
}

// FuzzVerifyExport: no made-up file verifies or causes a panic.
func FuzzVerifyExport(f *testing.F) {
	f.Add("{}\n")
	f.Add(`{"header":{"conversation":"","content":true,"exported":"2026-11-20T12:00:00Z","format":"parley conversation",` +
		`"hub":"h","key":"","keyId":"","version":1},"line":0}` + "\n")
	f.Add(`{"end":{"records":0},"line":2147483647,"previous":"00","hash":"00","signature":""}` + "\n" + `{"line":-5}`)
	f.Fuzz(func(t *testing.T, s string) {
		r, err := VerifyExport(strings.NewReader(s), nil)
		if err == nil && r.OK() {
			t.Errorf("%q is taken for an export", s)
		}
	})
}

// TestExportWithoutContent: digests take the place of bytes.
func TestExportWithoutContent(t *testing.T) {
	b := open(t, nil)
	r := b.ask("Bern")
	var out bytes.Buffer
	if err := b.client.Export(t.Context(), r.Conversation.String(), false, &out); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "Bern") || strings.Contains(out.String(), `"data"`) {
		t.Error("there is content in it")
	}
	if v := check(t, strings.SplitAfter(strings.TrimSuffix(out.String(), "\n"), "\n")); !v.OK() {
		t.Errorf("%+v", v)
	}
	var e *parley.Error
	if err := b.client.Export(t.Context(), "00000000", true, io.Discard); !errors.As(err, &e) || e.Code != notFound {
		t.Errorf("an unknown conversation: %v", err)
	}
}
