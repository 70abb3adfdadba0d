package asptest

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/memhttp"
)

// URL is the address of every [Server].
const URL = "https://hub.test"

// A Server is a sequencer in memory. Agents may register themselves there.
type Server struct {
	*asp.Server
	HTTP *http.Client // reaches the server at every URL

	t testing.TB
}

// NewServer starts a server, which ends with the test. The functions change it before.
func NewServer(t testing.TB, change ...func(*asp.Server)) *Server {
	t.Helper()
	s := &Server{t: t, Server: &asp.Server{PublicURL: URL, Registration: asp.RegistrationOpen,
		Identity: identity(t, "agent://hub.test/ops/hub")}}
	for _, f := range change {
		f(s.Server)
	}
	var stop func()
	s.HTTP, stop = memhttp.Client(s.Server)
	t.Cleanup(func() {
		s.EndStreams()
		stop()
	})
	return s
}

// identity makes an identity whose keys come from its name.
func identity(t testing.TB, id string) *asp.Identity {
	t.Helper()
	seed, scalar := sha256.Sum256([]byte("seed "+id)), sha256.Sum256([]byte("scalar "+id))
	i, err := asp.IdentityFromSeed(id, "org_test", seed[:], scalar[:])
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// A Peer is a registered agent of a [Server]. Its keys come from its id, so that they are
// the same in each run.
type Peer struct {
	*asp.Client

	t    testing.TB
	life context.Context
	work sync.WaitGroup

	mu       sync.Mutex
	received []*asp.Message
}

// Peer registers an agent with an id of the form "agent://test.example/services/alice".
// It leaves at the end of the test.
func (s *Server) Peer(id string) *Peer {
	s.t.Helper()
	p := &Peer{t: s.t, Client: &asp.Client{Server: URL, Identity: identity(s.t, id), HTTP: s.HTTP, Now: s.Now}}
	var end context.CancelFunc
	p.life, end = context.WithCancel(context.Background())
	s.t.Cleanup(func() {
		end()
		p.work.Wait()
	})
	if err := p.Register(p.life, p.Identity.Card(), nil); err != nil {
		s.t.Fatal(err)
	}
	return p
}

// ID is the peer's agent id.
func (p *Peer) ID() string { return p.Identity.ID() }

// Keys are what a verifier must know to accept the peer.
func (p *Peer) Keys() asp.StaticKeys { return asp.StaticKeys{p.ID(): {p.Identity.Public()}} }

// Handle lets the peer accept every invitation. h is called with each further message of
// the others, in order for one session; its error fails the test.
func (p *Peer) Handle(h func(ctx context.Context, s *asp.Session, m *asp.Message) error) {
	p.work.Go(func() {
		for invite, err := range p.Invitations(p.life) {
			if err != nil {
				p.failed(err)
				return
			}
			p.work.Go(func() { p.failed(p.serve(invite.SessionID, h)) })
		}
	})
}

// failed fails the test, unless it is over.
func (p *Peer) failed(err error) {
	if err != nil && p.life.Err() == nil {
		p.t.Errorf("asptest: %s: %v", p.ID(), err)
	}
}

func (p *Peer) serve(session string, h func(ctx context.Context, s *asp.Session, m *asp.Message) error) error {
	s, err := p.Join(p.life, session)
	if err != nil {
		return err
	}
	for m, err := range s.Messages(p.life) {
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.received = append(p.received, m)
		p.mu.Unlock()
		if m.IsInvitation() {
			_, err = s.Send(p.life, asp.Accept, asp.Answer{}, asp.InReplyTo(m))
		} else {
			err = h(p.life, s, m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Received gives the messages to Handle and the invitations so far.
func (p *Peer) Received() []*asp.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.received)
}

// Meet opens a session with another agent, and waits until it has accepted.
func (p *Peer) Meet(ctx context.Context, agent string) *asp.Session {
	p.t.Helper()
	s, err := p.Open(ctx, asp.Invitation{To: []string{agent}, Purpose: "a test"})
	if err != nil {
		p.t.Fatal(err)
	}
	for m, err := range s.Messages(ctx) {
		if err != nil {
			p.t.Fatal(err)
		}
		if m.State == asp.Introduced {
			return s
		}
	}
	p.t.Fatalf("asptest: %s did not accept the invitation", agent)
	return nil
}
