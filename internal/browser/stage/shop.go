package stage

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// A shop is the SAMVAD agent "shop", whose server answers HTTP 503 as often as it is told to.
type shop struct {
	id       *samvad.Identity
	listener net.Listener
	server   *http.Server // nil: not open
	fails    atomic.Int64 // calls that fail from now on
}

// newShop makes the shop, and puts it into a hub's configuration.
func newShop(c *node.Config) (*shop, error) {
	id, err := samvad.NewIdentity("agent://shop.example", "key-current")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &shop{id: id, listener: l}
	c.Agents["shop"] = node.Agent{Title: "Shop", SAMVAD: &node.SAMVADAgent{ID: id.ID(), URL: s.url(),
		Key: base64.StdEncoding.EncodeToString(id.Public())}}
	return s, nil
}

func (s *shop) url() string { return "http://" + s.listener.Addr().String() }

// open serves. The shop trusts the hub's key, as if its operator had enrolled it.
func (s *shop) open(n *node.Node, now func() time.Time) error {
	host := n.SAMVAD().Hosting()
	key, err := samvad.ParseKey(host.Key)
	if err != nil {
		return err
	}
	object := []byte(`{"type":"object"}`)
	card := &samvad.Card{ID: s.id.ID(), Name: "Shop", Version: "1.0.0", Description: "Sells maps.", URL: s.url(),
		PublicKeys: []samvad.CardKey{samvad.CardKeyOf(s.id, true)},
		Skills: []samvad.Skill{{ID: "order", Name: "Order", Description: "Takes an order.", InputSchema: object,
			OutputSchema: object, Modes: []samvad.Mode{samvad.ModeSync}, Trust: samvad.TrustPublic}}}
	agent := &samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{host.Identity: {key}}, Now: now},
		Agent: &samvad.Agent{Card: card.Complete(), Identity: s.id,
			Handler: func(context.Context, *samvad.Request) (samvad.Response, error) {
				return samvad.Response{Result: []byte(`{"text":"one map of Bern, 4.50"}`)}, nil
			}}}
	s.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost && s.fails.Add(-1) >= 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "upstream restarting")
				return
			}
			agent.ServeHTTP(w, r)
		})}
	go func() { _ = s.server.Serve(s.listener) }() // ends with close
	return nil
}

func (s *shop) close() {
	_ = s.listener.Close()
	if s.server != nil {
		_ = s.server.Close()
	}
}

// FailShop has the next calls of the shop fail.
func (s *Stage) FailShop(n int) { s.shop.fails.Store(int64(n)) }
