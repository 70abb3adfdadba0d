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

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/pairs"
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
	err := b.node.Handle(parley.Agent{Name: "coordinator", Exposed: parley.Everywhere}, parley.RawSkill("talk", coordinate))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers {
		if err := p.Join(t.Context(), pairs.At(b.node), false); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Leave)
	}
	if _, err := peers[0].Ask(t.Context(), pairs.Question{To: named{name: "coordinator"}, Text: "<b>all of you</b>"}); err != nil {
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
