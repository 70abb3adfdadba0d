package aghnats

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
)

// Subjects between the accounts. Peers never see them.
const (
	upPrefix    = "agh-up."    // agh-up.<uid>.<subject>: published by a user, read by the hub
	inPrefix    = "agh-in."    // a user's account maps its publications to this prefix
	toPrefix    = "agh-to."    // agh-to.<uid>.<subject>: for the peers of one user
	replyPrefix = "agh-reply." // reply subjects of relayed whois requests
)

// account is a user with its NATS account.
type account struct {
	user    User
	uid     string
	account *server.Account
}

// startServer starts the embedded server, which listens once all accounts exist.
func (g *Gateway) startServer() error {
	g.Router.Relay = true
	if g.Router.Reachable == nil {
		g.Router.Reachable = g.subscribed
	}
	host, port, err := net.SplitHostPort(cmp.Or(g.Listen, "127.0.0.1:4222"))
	if err != nil {
		return fmt.Errorf("aghnats: listen address: %w", err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("aghnats: listen address: %w", err)
	}
	if n == 0 {
		n = server.RANDOM_PORT
	}
	var secret [32]byte
	rand.Read(secret[:]) // never fails
	g.hubUser, g.hubPassword = "hub-"+hex.EncodeToString(secret[:8]), hex.EncodeToString(secret[8:])
	o := &server.Options{
		Host: host, Port: n, DontListen: true, ServerName: "parley-agh", NoLog: true, NoSigs: true,
		MaxPayload: int32(cmp.Or(g.Router.Verifier.Limits.Envelope, 1<<20)), MaxSubs: 65536,
		CustomClientAuthentication: (*authenticator)(g), AlwaysEnableNonce: true,
		DisableShortFirstPing: true, AuthTimeout: cmp.Or(g.AuthWait, 2*time.Second).Seconds(),
	}
	if g.TLS != nil {
		o.TLSConfig, o.TLS, o.TLSTimeout = g.TLS, true, 5
	}
	g.server, err = server.NewServer(o)
	if err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	told := make(violations, maxViolations)
	g.server.SetLogger(told, false, false)
	g.wg.Go(func() { told.tell(g) })
	g.hub, err = g.server.RegisterAccount("AGH-HUB")
	if err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	for _, err := range []error{
		g.hub.AddServiceExportWithResponse(upPrefix+">", server.Streamed, nil),
		g.hub.SetServiceExportResponseThreshold(upPrefix+">", time.Minute),
		g.hub.AddStreamExport(agh.SubjectPrefix+".>", nil),
		g.hub.AddStreamExport(toPrefix+">", nil),
		g.hub.AddStreamExport("_INBOX.>", nil),
	} {
		if err != nil {
			return fmt.Errorf("aghnats: hub account: %w", err)
		}
	}
	for _, u := range g.Users {
		if err := g.addUser(u); err != nil {
			return err
		}
	}
	g.server.Start()
	if !g.server.ReadyForConnections(5 * time.Second) {
		return errors.New("aghnats: the server did not get ready")
	}
	if err := g.reverseMappings(); err != nil {
		return err
	}
	g.nc, err = g.connect("")
	if err != nil {
		return err
	}
	if _, err := g.nc.Subscribe(upPrefix+">", g.up); err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	if err := g.nc.FlushTimeout(5 * time.Second); err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	// One connection is the gateway's own. The bound is set here because the server may
	// still count the closed connections of reverseMappings.
	o.MaxConn = cmp.Or(g.MaxConns, 16384) + 1
	listening := make(chan struct{})
	go g.server.AcceptLoop(listening)
	<-listening
	if g.Addr() == "" {
		return fmt.Errorf("aghnats: cannot listen on %s: is the address in use?", net.JoinHostPort(host, port))
	}
	return nil
}

// connect makes a connection of the gateway's own, in a user's account or, if uid
// is empty, in the hub's.
func (g *Gateway) connect(uid string) (*nats.Conn, error) {
	nc, err := nats.Connect("", nats.InProcessServer(g.server), nats.UserInfo(g.hubUser, g.hubPassword), nats.Name(uid),
		nats.NoEcho(), nats.MaxReconnects(-1))
	if err != nil {
		return nil, fmt.Errorf("aghnats: %w", err)
	}
	return nc, nil
}

// reverseMappings makes the server build each user's reverse mapping. Otherwise the
// server builds it at the first subscription that needs it, without a lock, and
// concurrent subscriptions of a user's connections race.
func (g *Gateway) reverseMappings() error {
	for uid, a := range g.users {
		nc, err := g.connect(uid)
		if err != nil {
			return err
		}
		for _, w := range a.user.Workspaces {
			subject := agh.SubjectPrefix + "." + strings.ReplaceAll(w, "*", "w")
			_, e1 := nc.SubscribeSync(subject + ".c.broadcast")
			_, e2 := nc.SubscribeSync(subject + ".c.peer.p")
			err = errors.Join(err, e1, e2)
		}
		err = errors.Join(err, nc.Flush())
		nc.Close()
		if err != nil {
			return fmt.Errorf("aghnats: account of %s: %w", a.user.Name, err)
		}
	}
	return nil
}

// Addr gives the address that peers connect to, "" when joined by URL.
func (g *Gateway) Addr() string {
	if g.server == nil || g.server.Addr() == nil {
		return ""
	}
	return g.server.Addr().String()
}

// addUser adds a user before the server starts.
func (g *Gateway) addUser(u User) error {
	if err := u.check(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	a := &account{user: u, uid: u.uid()}
	if other := g.users[a.uid]; other != nil {
		return fmt.Errorf("aghnats: there is a user %s already", u.Name)
	}
	if other := g.proofs[u.proof()]; other != nil {
		return fmt.Errorf("aghnats: user %s has the credentials of user %s", u.Name, other.user.Name)
	}
	for _, p := range u.Peers {
		for _, other := range g.exact[p] {
			if overlap(u.Workspaces, other.user.Workspaces) {
				return fmt.Errorf("aghnats: peer %s belongs to user %s already", p, other.user.Name)
			}
		}
	}
	acc, err := g.server.RegisterAccount("AGH-" + a.uid)
	if err != nil {
		return fmt.Errorf("aghnats: account of %s: %w", u.Name, err)
	}
	a.account = acc
	for _, prefix := range []string{inPrefix, replyPrefix} {
		if err := acc.AddServiceImport(g.hub, prefix+">", upPrefix+a.uid+"."+prefix+">"); err != nil {
			return fmt.Errorf("aghnats: account of %s: %w", u.Name, err)
		}
	}
	for _, w := range u.Workspaces {
		subject := agh.SubjectPrefix + "." + w
		errs := []error{acc.AddMapping(below(w), inPrefix+below(w))}
		for _, x := range [][2]string{
			{subject + ".*.broadcast", ""},
			{toPrefix + a.uid + "." + subject + ".*.peer.*", subject + ".*.peer.*"},
			{toPrefix + a.uid + "." + subject + ".*.broadcast", subject + ".*.broadcast"},
		} {
			err := acc.AddMappedStreamImport(g.hub, x[0], x[1])
			if !errors.Is(err, server.ErrStreamImportDuplicate) { // a workspace may be listed twice
				errs = append(errs, err)
			}
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("aghnats: account of %s: %w", u.Name, err)
		}
	}
	if g.users == nil {
		g.users, g.proofs, g.exact = map[string]*account{}, map[string]*account{}, map[string][]*account{}
	}
	g.users[a.uid], g.proofs[u.proof()] = a, a
	for _, p := range u.Peers {
		if !strings.HasSuffix(p, "*") {
			g.exact[p] = append(g.exact[p], a)
		}
	}
	return nil
}

func overlap(a, b []string) bool {
	for _, x := range a {
		for _, y := range b {
			if x == y || x == "*" || y == "*" {
				return true
			}
		}
	}
	return false
}
