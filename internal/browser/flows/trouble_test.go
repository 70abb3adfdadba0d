package flows

import (
	"encoding/base64"
	"net/http"
	"net/http/httptest"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/samvad"
)

// ledger and archive are agents that the hub does not reach: nobody listens at the address of the one, the server of
// the other has no such page.
const (
	ledger  = "ledger"
	archive = "archive"
)

// undeliverable adds the agents ledger and archive. What is sent to them is given up after the first attempt.
func (c *console) undeliverable() {
	c.t.Helper()
	c.add(ledger, "http://"+fixedport.Address(c.t))
	lost := httptest.NewServer(http.NotFoundHandler())
	c.t.Cleanup(lost.Close)
	c.add(archive, lost.URL)
}

// add adds a SAMVAD agent that is tried once.
func (c *console) add(name, url string) {
	c.t.Helper()
	id, err := samvad.NewIdentity("agent://"+name+".example", "key-current")
	if err != nil {
		c.t.Fatal(err)
	}
	once := 1
	_, err = c.API.AddAgent(c.t.Context(), admin.NewAgent{Name: name, Title: "Never there",
		Delivery: &admin.DeliveryChange{Tries: &once}, Identities: []admin.NewIdentity{{Protocol: "samvad", ID: id.ID(),
			URL: url, PublicKey: base64.StdEncoding.EncodeToString(id.Public())}}})
	if err != nil {
		c.t.Fatal(err)
	}
}

// lose sends a request that is given up.
func (c *console) lose(from, to, text string) parley.ID {
	c.t.Helper()
	return c.giveUp(admin.Send{From: from, To: to, Text: &text, Timeout: "1h"})
}

// giveUp sends what is given up, and waits until it is.
func (c *console) giveUp(s admin.Send) (id parley.ID) {
	c.t.Helper()
	started := func() {
		r, err := c.API.Send(c.t.Context(), s)
		if err != nil {
			c.t.Fatal(err)
		}
		id = r.ID
	}
	for b, err := range c.API.Watch(c.t.Context(), admin.TimelineFilter{Filter: index.Filter{To: s.To}}, started) {
		if err != nil {
			c.t.Fatal(err)
		}
		for _, e := range b.Entries {
			m := e.Message
			if m != nil && m.ID == id && len(m.Deliveries) > 0 && m.Deliveries[0].State == parley.Dead {
				return id
			}
		}
	}
	c.t.Fatalf("%s to %s was not given up", id, s.To)
	return id
}

// keep pauses an agent and sends to it.
func (c *console) keep(from, to, text string) {
	c.t.Helper()
	if _, err := c.API.PauseFor(c.t.Context(), to, "closed for the night"); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.API.Send(c.t.Context(), admin.Send{From: from, To: to, Text: &text}); err != nil {
		c.t.Fatal(err)
	}
}
