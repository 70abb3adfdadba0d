package stage

import (
	"context"
	"encoding/base64"
	"net"
	"net/http"
	"time"

	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// A shop is the SAMVAD agent "shop", whose server can be closed for a while.
type shop struct {
	id       *samvad.Identity
	listener net.Listener
	agent    http.Handler
	server   *http.Server // nil: not open
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
	s.agent = &samvad.Server{Verifier: &samvad.Verifier{Keys: samvad.StaticKeys{host.Identity: {key}}, Now: now},
		Agent: &samvad.Agent{Card: card.Complete(), Identity: s.id,
			Handler: func(context.Context, *samvad.Request) (samvad.Response, error) {
				return samvad.Response{Result: []byte(`{"text":"one map of Bern, 4.50"}`)}, nil
			}}}
	s.serve()
	return nil
}

func (s *shop) serve() {
	s.server = &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: s.agent}
	go func(s *http.Server, l net.Listener) { _ = s.Serve(l) }(s.server, s.listener) // ends with close
}

func (s *shop) close() {
	_ = s.listener.Close()
	if s.server != nil {
		_ = s.server.Close()
	}
}

// CloseShop has the shop refuse connections.
func (s *Stage) CloseShop() { s.shop.close() }

// OpenShop opens a closed shop at its address.
func (s *Stage) OpenShop() (err error) {
	if s.shop.listener, err = net.Listen("tcp", s.shop.listener.Addr().String()); err == nil {
		s.shop.serve()
	}
	return err
}
