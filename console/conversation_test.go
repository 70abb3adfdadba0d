package console_test

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
)

// asked are the peers that a coordinator asks.
var asked = []string{"uagents", "a2e", "agh", "asp"}

// named is an agent that is no peer.
type named struct {
	pairs.Peer
	name string
}

func (n named) Name() string { return n.name }

// crossing is a hub on which a SAMVAD agent asked a handler, which asked agents of four other protocols.
func crossing(t *testing.T) (b *bench, conversation admin.ConversationInfo) {
	t.Helper()
	var peers []pairs.Peer
	for _, p := range append([]string{"samvad"}, asked...) {
		peer, err := pairs.New(p, "peer-"+p)
		if err != nil {
			t.Fatal(err)
		}
		peers = append(peers, peer)
	}
	b = open(t, func(c *node.Config) {
		if err := pairs.Configure(c, t.TempDir(), peers...); err != nil {
			t.Fatal(err)
		}
	})
	err := b.node.Handle(parley.Agent{Name: "coordinator", Exposed: parley.Everywhere}, parley.RawSkill("talk",
		coordinate))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		if err := p.Join(t.Context(), pairs.At(b.node), false); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Leave)
	}
	if _, err := peers[0].Ask(t.Context(), pairs.Question{To: named{name: "coordinator"},
		Text: "<b>all of you</b>"}); err != nil {
		t.Fatal(err)
	}
	list, err := b.api.Conversations(t.Context(), index.ConversationFilter{Agent: "peer-samvad"})
	if err != nil || len(list.Conversations) != 1 {
		t.Fatalf("%v %v", list, err)
	}
	return b, list.Conversations[0]
}

// coordinate asks the other peers, one after the other.
func coordinate(ctx context.Context, _ *parley.Message, r parley.Replier) error {
	for _, p := range asked {
		if _, err := parley.Ask[[]parley.Part](ctx, "peer-"+p, "", "say "+p); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return r.Reply(parley.Text("all answered"))
}

// inline is the first svg element of a page with this class.
func inline(t *testing.T, page, class string) string {
	t.Helper()
	from := strings.Index(page, `<svg class="`+class+`"`)
	if from < 0 {
		t.Fatalf("no diagram:\n%s", page)
	}
	return page[from : from+strings.Index(page[from:], "</svg>")+len("</svg>")]
}

// counted are the data attributes of a diagram's elements.
func counted(t *testing.T, svg string) (root map[string]string, lanes []string, rows []map[string]string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return root, lanes, rows
		}
		if err != nil {
			t.Fatal(err)
		}
		e, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		data := map[string]string{}
		for _, a := range e.Attr {
			data[a.Name.Local] = a.Value
		}
		switch {
		case e.Name.Local == "svg":
			root = data
		case data["data-agents"] != "":
			lanes = append(lanes, data["data-lane"])
		case data["data-row"] != "":
			rows = append(rows, data)
		}
	}
}

// TestCrossing: the diagram of a conversation over six protocols has what the API tells.
func TestCrossing(t *testing.T) {
	b, c := crossing(t)
	w := b.entered(b.token("ops", admin.Read))
	history, err := b.api.Conversation(t.Context(), c.ID.String(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	status, page := w.do("GET", "/console/conversations/"+c.ID.String()[:8], nil)
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, page)
	}
	root, lanes, rows := counted(t, inline(t, page, "seq"))
	if root["data-lanes"] != strconv.Itoa(len(c.Agents)) || len(lanes) != len(c.Agents) {
		t.Errorf("lanes %v for the agents %v", lanes, c.Agents)
	}
	if len(rows) != len(history.History) {
		t.Fatalf("%d rows for %d messages", len(rows), len(history.History))
	}
	for i, m := range history.History {
		attempts, lost := 0, 0
		for _, d := range m.Deliveries {
			attempts += d.Attempts
			for _, l := range d.Losses {
				if m.Kind != parley.Request || !strings.HasPrefix(l, "Reply.") && !strings.HasPrefix(l, "Event.") {
					lost++
				}
			}
		}
		r := rows[i]
		if r["data-id"] != m.ID.String() || r["data-proof"] != m.Assurance.String() ||
			r["data-attempts"] != strconv.Itoa(attempts) || r["data-lost"] != strconv.Itoa(lost) {
			t.Errorf("row %v of %s with %d attempts, %d losses", r, m.ID, attempts, lost)
		}
	}
	if strings.Contains(page, "<b>all of you</b>") {
		t.Error("content is markup")
	}
}

// told is a hub with one conversation: an agent asked another, whose answer waits in no inbox.
func told(t *testing.T, text string) (b *bench, m admin.Receipt) {
	t.Helper()
	b = open(t, nil)
	for _, name := range []string{"asker", "reader"} {
		if _, err := b.api.AddAgent(t.Context(), admin.NewAgent{Name: name, Inbox: true,
			Skills: []admin.Skill{{ID: "read"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.api.IssueToken(t.Context(), admin.NewToken{Name: "speaker", Role: admin.Operate,
		Speak: []string{"*"}}); err != nil {
		t.Fatal(err)
	}
	return b, b.say(text, "")
}

// say sends a notice from asker to reader.
func (b *bench) say(text, conversation string) admin.Receipt {
	b.t.Helper()
	by := admin.Actor{Name: "test", Role: admin.Operate, Speak: []string{"*"}}
	m, err := b.node.Admin().Send(b.t.Context(), by, admin.Send{From: "asker", To: "reader",
		Kind: parley.Notice, Text: &text,
		Conversation: conversation})
	if err != nil {
		b.t.Fatal(err)
	}
	return m
}

// collect reads a message of an inbox, and waits for the record that it was delivered: an inbox hands a message out
// first.
func (b *bench) collect(agent string) {
	b.t.Helper()
	steps := make(chan journal.Step, 1024)
	stop := b.node.Hub().Journal().Watch(func(r *journal.Record) {
		for _, s := range r.Steps {
			steps <- s
		}
	})
	defer stop()
	read, err := b.api.Collect(b.t.Context(), agent, 1, time.Minute)
	if err != nil || len(read) != 1 {
		b.t.Fatalf("%d messages, %v", len(read), err)
	}
	for s := range steps {
		if s.Message == read[0].ID && s.State == parley.Delivered {
			return
		}
	}
}

// TestIDsLeadToConversations: a whole id, its beginning, that of a message, the reference of a refusal.
func TestIDsLeadToConversations(t *testing.T) {
	b, m := told(t, "hello")
	w := b.entered(b.token("ops", admin.Read))
	nobody := "to nobody"
	_, err := b.node.Admin().Send(t.Context(), admin.Actor{Name: "test", Role: admin.Operate, Speak: []string{"*"}},
		admin.Send{From: "asker", To: "nobody-here", Text: &nobody})
	ref := parley.AsError(err).Ref
	if ref == "" {
		t.Fatalf("no reference in %v", err)
	}
	c, id := m.Conversation.String(), m.ID.String()
	for name, try := range map[string]struct {
		path   string
		status int
		want   []string
	}{
		"whole":     {c, 200, []string{`data-id="` + id + `"`, `data-screen="conversation"`}},
		"beginning": {c[:8], 200, []string{`data-id="` + id + `"`}},
		"message":   {id, 200, []string{`title="` + c + `"`, `class="on"`}},
		"reference": {ref, 200, []string{"never recorded", "What helps", "parley explain " + ref}},
		"unknown":   {"01234567", 404, []string{"nothing here has the id or reference", "first 8 digits"}},
		"no id":     {"zz", 404, []string{"nothing here has the id or reference"}},
	} {
		status, page := w.do("GET", "/console/conversations/"+try.path, nil)
		if status != try.status && !(try.status == 404 && status == 400) {
			t.Errorf("%s: %d", name, status)
		}
		for _, s := range try.want {
			if !strings.Contains(page, s) {
				t.Errorf("%s: the page has no %q", name, s)
			}
		}
	}
}

// TestEvidence: the file verifies, one changed byte does not; without the role there is none.
func TestEvidence(t *testing.T) {
	b, m := told(t, "an offer of 71.20")
	path := "/console/conversations/" + m.Conversation.String()[:8] + "/evidence"
	w := b.entered(b.token("reader", admin.Read))
	res, err := w.http.Get(b.base + path)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	file, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	name := "conversation-" + m.Conversation.String() + ".jsonl"
	if got := res.Header.Get("Content-Disposition"); got != `attachment; filename="`+name+`"` {
		t.Errorf("Content-Disposition: %s", got)
	}
	verifies := func(text string) bool {
		r, err := admin.VerifyExport(strings.NewReader(text), nil)
		return err == nil && r.OK()
	}
	if !verifies(string(file)) {
		t.Error("the file does not verify")
	}
	if verifies(strings.Replace(string(file), "reader", "raeder", 1)) {
		t.Error("a changed file verifies")
	}
	if _, body := w.do("GET", path+"?content=false", nil); strings.Contains(body, "71.20") || body == "" {
		t.Errorf("without content: %s", body)
	}
	observer := b.entered(b.token("observer", admin.Observe))
	if status, body := observer.do("GET", path, nil); status != http.StatusForbidden || strings.Contains(body,
		"71.20") {
		t.Errorf("an observer gets the file: %d", status)
	}
}

// TestContentOfConversations: content is text on every tab, and hidden from who may not see it.
func TestContentOfConversations(t *testing.T) {
	text := "secret-word <script>alert(1)</script> \u202emoc\x1b[31m\n" + strings.Repeat("x", 100_000) + "end-of-text"
	b, m := told(t, text)
	reader, observer := b.entered(b.token("reader", admin.Read)), b.entered(b.token("observer", admin.Observe))
	for _, view := range []string{"sequence", "table", "proof", "content"} {
		path := "/console/conversations/" + m.Conversation.String() + "?view=" + view
		status, page := reader.do("GET", path, nil)
		if status != 200 || strings.Contains(page, "<script>alert") || strings.ContainsAny(page, "\u202e\x1b") {
			t.Errorf("%s: %d, or content is more than text", view, status)
		}
		if view == "content" && (!strings.Contains(page, "secret-word &lt;script&gt;") ||
			strings.Contains(page, "end-of-text") ||
			!strings.Contains(page, "The first 64 KiB of 100.1 KB")) {
			t.Errorf("the content is not shown as it is, or not cut:\n%.3000s", page)
		}
		status, page = observer.do("GET", path, nil)
		if status != 200 || strings.Contains(page, "secret-word") {
			t.Errorf("%s: %d, or an observer sees content", view, status)
		}
		if view == "content" && !strings.Contains(page, "Hidden: content needs the role read.") {
			t.Error("nothing says that content is hidden")
		}
		if view == "proof" && strings.Contains(page, "download") {
			t.Error("an observer is offered the evidence")
		}
	}
}

// TestPagesOfConversations: 200 rows a page; the page of a message is found; nothing is left out between them.
func TestPagesOfConversations(t *testing.T) {
	b, m := told(t, "message 0")
	ids := []string{m.ID.String()}
	for n := range 449 {
		ids = append(ids, b.say(fmt.Sprint("message ", n+1), m.Conversation.String()).ID.String())
	}
	w := b.entered(b.token("reader", admin.Read))
	rows := func(path string) (out []string, page string) {
		_, page = w.do("GET", path, nil)
		_, _, list := counted(t, inline(t, page, "seq"))
		for _, r := range list {
			out = append(out, r["data-id"])
		}
		return out, page
	}
	base := "/console/conversations/" + m.Conversation.String()
	var got []string
	for path, n := base, 0; path != "" && n < 5; n++ {
		list, page := rows(path)
		got = append(got, list...)
		path = linkOf(page, "next")
	}
	if strings.Join(got, " ") != strings.Join(ids, " ") {
		t.Errorf("%d rows on all pages for %d messages, or in another order", len(got), len(ids))
	}
	list, page := rows(base + "?m=" + ids[321])
	if len(list) != 200 || list[0] != ids[200] || !strings.Contains(page,
		"200 earlier messages are on the pages before") {
		t.Errorf("the page of message 321 has %d rows from %s", len(list), list[0])
	}
	if list, _ := rows(linkOf(page, "prev")); len(list) != 200 || list[0] != ids[0] {
		t.Errorf("the page before has %d rows", len(list))
	}
}

// linkOf is the address of the link with this relation; "": there is none.
func linkOf(page, rel string) string {
	_, after, found := strings.Cut(page, `rel="`+rel+`" href="`)
	if !found {
		return ""
	}
	link, _, _ := strings.Cut(after, `"`)
	return strings.ReplaceAll(link, "&amp;", "&")
}

// TestTraceOfConversations: the whole trace has the messages of all its conversations, one conversation its own.
func TestTraceOfConversations(t *testing.T) {
	b, _ := told(t, "of another trace")
	var first parley.ID
	for n := range 2 {
		m, err := b.node.Hub().Accept(t.Context(), hub.Submission{Scope: "test",
			Message: &parley.Message{Kind: parley.Notice, From: "asker",
				To: "reader", Parts: []parley.Part{parley.Text("x")},
				Trace:  parley.Trace{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
				Origin: parley.Origin{Protocol: "go", Verdict: parley.Verdict{Assurance: parley.Session}}}})
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			first = m.Conversation
		}
	}
	w := b.entered(b.token("ops", admin.Read))
	for query, want := range map[string]int{"": 1, "?extent=trace": 2} {
		_, page := w.do("GET", "/console/conversations/"+first.String()+query, nil)
		if _, _, rows := counted(t, inline(t, page, "seq")); len(rows) != want {
			t.Errorf("%q: %d rows, want %d", query, len(rows), want)
		}
		if query != "" && !strings.Contains(page, "2 conversations") {
			t.Error("the page does not say how many conversations it shows")
		}
	}
}

// TestErasedConversation: what was erased is said, and is gone.
func TestErasedConversation(t *testing.T) {
	b, m := told(t, "a word to forget")
	b.collect("reader")
	id := m.Conversation.String()
	f, err := b.api.Forget(t.Context(), admin.Forget{Conversation: id, Reason: "asked to"})
	if err != nil || f.Erased != 1 {
		t.Fatalf("%+v %v", f, err)
	}
	w := b.entered(b.token("reader", admin.Read))
	for view, want := range map[string]string{"sequence": "erased ",
		"content": "The content was erased with the conversation"} {
		_, page := w.do("GET", "/console/conversations/"+id+"?view="+view, nil)
		if !strings.Contains(page, want) || strings.Contains(page, "a word to forget") {
			t.Errorf("%s: the page has no %q, or has the content", view, want)
		}
	}
}

// TestEventsThatNobodyIsTold: the row has the reason of the loss table.
func TestEventsThatNobodyIsTold(t *testing.T) {
	peer, err := pairs.New("uagents", "peer-uagents")
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, func(c *node.Config) {
		if err := pairs.Configure(c, t.TempDir(), peer); err != nil {
			t.Fatal(err)
		}
	})
	work := func(_ context.Context, _ *parley.Message, r parley.Replier) error {
		return errors.Join(r.Progress("half"), r.Reply(parley.Text("done")))
	}
	if err := b.node.Handle(parley.Agent{Name: "worker", Exposed: parley.Everywhere},
		parley.RawSkill("talk", work)); err != nil {
		t.Fatal(err)
	}
	if err := peer.Join(t.Context(), pairs.At(b.node), false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(peer.Leave)
	if _, err := peer.Ask(t.Context(), pairs.Question{To: named{name: "worker"}, Text: "go"}); err != nil {
		t.Fatal(err)
	}
	list, err := b.api.Conversations(t.Context(), index.ConversationFilter{Agent: "worker"})
	if err != nil || len(list.Conversations) != 1 {
		t.Fatalf("%v %v", list, err)
	}
	w := b.entered(b.token("reader", admin.Read))
	_, page := w.do("GET", "/console/conversations/"+list.Conversations[0].ID.String(), nil)
	_, _, rows := counted(t, inline(t, page, "seq"))
	untold := 0
	for _, r := range rows {
		if r["data-state"] == "untold" && r["data-untold"] == "1" {
			untold++
		}
	}
	if untold != 1 || !strings.Contains(page, "not told to peer-uagents: ") {
		t.Errorf("%d rows of %d say that nobody is told", untold, len(rows))
	}
}
