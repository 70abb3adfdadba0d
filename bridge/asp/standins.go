package asp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
)

// The purposes of a stand-in's two keys.
const (
	purposeSigning = Protocol           // Ed25519, of messages
	purposeProof   = Protocol + "-dpop" // P-256, of proofs
)

// standIns are the identities that the hub keeps for agents of other protocols, and
// its own.
type standIns struct {
	b *Binding

	mu     sync.RWMutex
	newest map[string]keyedIdentity      // with the current keys of the keyring
	byName map[string]*protocol.Identity // with the registered keys, which sign
	ready  map[string]readiness
	byID   map[string]string // agent URI → directory name
}

// keyedIdentity is an identity and the ids of its keys.
type keyedIdentity struct {
	keys string
	id   *protocol.Identity
}

// readiness has the sources of a stand-in at its last check. While it holds, the
// stand-in needs no check.
type readiness struct {
	made  *protocol.Identity // of the newest keys
	agent *protocol.Agent
	entry *directory.Entry // nil: the agent is not in the directory
}

// holds reports whether the check needs no repetition: the agent may have changed, but not for its stand-in.
func (r readiness) holds(now readiness) bool {
	if r == now || r.made != now.made || r.agent != now.agent || r.entry == nil || now.entry == nil {
		return r == now
	}
	old, _ := r.entry.Identity(Protocol)
	next, _ := now.entry.Identity(Protocol)
	return old == next && r.entry.ExposedIn(Protocol) == now.entry.ExposedIn(Protocol) && r.entry.SameCard(now.entry)
}

func newStandIns(b *Binding) *standIns {
	return &standIns{b: b, newest: map[string]keyedIdentity{}, byName: map[string]*protocol.Identity{},
		ready: map[string]readiness{}, byID: map[string]string{}}
}

// owner gives the owner of an agent's keys in the keyring.
func (s *standIns) owner(name string) string {
	if name == s.b.c.Root {
		return keyring.Hub
	}
	return name
}

// id gives the agent URI of an agent's stand-in.
func (s *standIns) id(name string) string {
	department, rest, ok := strings.Cut(name, "/")
	switch {
	case name == s.b.c.Root:
		department, rest = "parley", "hub"
	case !ok:
		department, rest = "agents", name
	case department == "agents" || name == "parley/hub":
		rest = segment(name) // distinct from an agent "agents/…" and the hub
	}
	return "agent://" + s.b.c.Domain + "/" + segment(department) + "/" + segment(rest)
}

// looksOurs reports whether an agent URI is in the hub's domain.
func (s *standIns) looksOurs(id string) bool {
	return strings.HasPrefix(id, "agent://"+s.b.c.Domain+"/")
}

// identity gives the identity of an agent's stand-in. It makes the keys at first use.
func (s *standIns) identity(name string) (*protocol.Identity, error) {
	wanted := s.keys(name)
	signing, err := s.b.c.Keys.Ensure(wanted[0])
	if err != nil {
		return nil, fmt.Errorf("the key of the stand-in for %s: %w", name, err)
	}
	proving, err := s.b.c.Keys.Ensure(wanted[1])
	if err != nil {
		return nil, fmt.Errorf("the proof key of the stand-in for %s: %w", name, err)
	}
	s.mu.RLock()
	have := s.newest[name]
	s.mu.RUnlock()
	keys := signing.ID() + " " + proving.ID()
	if have.keys == keys {
		return have.id, nil
	}
	id, err := protocol.IdentityFromSeed(s.id(name), s.b.c.Organization, signing.Seed(), proving.Seed())
	if err != nil {
		return nil, fmt.Errorf("the keys of the stand-in for %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest[name] = keyedIdentity{keys, id}
	if s.byName[name] == nil { // else the old keys sign until the new ones are registered
		s.byName[name] = id
	}
	s.byID[id.ID()] = name
	return id, nil
}

// keys gives the signing key and the proof key of an agent's stand-in.
func (s *standIns) keys(name string) []keyring.New {
	owner := s.owner(name)
	return []keyring.New{{Owner: owner, Purpose: purposeSigning, Algorithm: keyring.Ed25519, By: "parley"},
		{Owner: owner, Purpose: purposeProof, Algorithm: keyring.P256, By: "parley"}}
}

// formerIdentity gives a stand-in's identity with its registered keys. They remain in
// use while the stand-in is in a session, also after the keyring has replaced them.
func (s *standIns) formerIdentity(ctx context.Context, name, id string) (*protocol.Identity, error) {
	a, err := s.b.store.Agent(ctx, id)
	if err != nil {
		return nil, err
	}
	card, err := a.Card()
	if err != nil {
		return nil, err
	}
	signing, err := s.retiringKeys(name, purposeSigning, card.SigningKey)
	if err != nil {
		return nil, err
	}
	proving, err := s.retiringKeys(name, purposeProof, nil)
	if err != nil {
		return nil, err
	}
	for _, p := range proving {
		old, err := protocol.IdentityFromSeed(id, s.b.c.Organization, signing[0].Seed(), p.Seed())
		if err != nil {
			return nil, fmt.Errorf("the keys of the stand-in for %s: %w", name, err)
		}
		if old.Public().Proof.Equal(card.ProofKey) {
			return old, nil
		}
	}
	return nil, errKeysGone(name)
}

func errKeysGone(name string) error {
	return fmt.Errorf("the keys with which the stand-in for %s speaks in its sessions are gone; "+
		"new ones are used when those have ended", name)
}

// retiringKeys lists the valid keys of a stand-in, or only the one with that public
// key.
func (s *standIns) retiringKeys(name, purpose string, public []byte) ([]keyring.Signer, error) {
	var out []keyring.Signer
	for _, k := range s.b.c.Keys.Keys(s.owner(name), purpose) {
		if public != nil && !bytes.Equal(k.Public, public) {
			continue
		}
		signer, err := s.b.c.Keys.SignerByID(k.ID)
		if err != nil {
			return nil, err
		}
		out = append(out, signer)
	}
	if len(out) == 0 {
		return nil, errKeysGone(name)
	}
	return out, nil
}

// start registers the stand-ins of all exposed agents, and the stand-ins that have keys
// already.
func (s *standIns) start(ctx context.Context) error {
	if _, err := s.ensure(ctx, s.b.c.Root); err != nil {
		return err
	}
	var names []string
	for _, e := range s.b.c.Hub.Directory().All() {
		if s.b.hosts(e) {
			names = append(names, e.Name)
		}
	}
	for _, k := range s.b.c.Keys.List() {
		if k.Purpose != purposeSigning || k.Owner == keyring.Hub || k.State != keyring.Active {
			continue
		}
		if e, ok := s.b.c.Hub.Directory().Agent(k.Owner); ok && !s.b.hosts(e) {
			names = append(names, k.Owner)
		}
	}
	return s.ensureAll(ctx, names, func(done int) { s.b.c.Hub.Progress("stand-ins in asp", done, len(names)) })
}

// registering is how many stand-ins are registered at once, so that they share the syncs of the journal.
const registering = 64

// ensureAll is ensure for many agents, with one write of keys.
func (s *standIns) ensureAll(ctx context.Context, names []string, progress func(done int)) error {
	if len(names) == 0 {
		return nil
	}
	var keys []keyring.New
	for _, name := range names {
		keys = append(keys, s.keys(name)...)
	}
	if err := s.b.c.Keys.EnsureAll(keys...); err != nil {
		return fmt.Errorf("the keys of stand-ins: %w", err)
	}
	var mu sync.Mutex
	var errs []error
	unnoted := map[string]parley.Identity{}
	var work errgroup.Group
	work.SetLimit(registering)
	for i, name := range names {
		if ctx.Err() != nil {
			break
		}
		progress(i)
		work.Go(func() error {
			id, noted, err := s.register(ctx, name)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			} else if !noted {
				unnoted[name] = s.note(id)
			}
			return nil
		})
	}
	_ = work.Wait() // errs has the errors
	errs = append(errs, ctx.Err(), s.b.c.Hub.Directory().StandIns(ctx, unnoted))
	progress(len(names))
	return errors.Join(errs...)
}

// ensure registers an agent's stand-in if necessary, and gives its identity.
func (s *standIns) ensure(ctx context.Context, name string) (*protocol.Identity, error) {
	id, noted, err := s.register(ctx, name)
	if err != nil || noted {
		return id, err
	}
	err = s.b.c.Hub.Directory().StandIn(ctx, name, s.note(id))
	if err != nil && !errors.Is(err, directory.ErrUnknown) {
		return nil, fmt.Errorf("note the stand-in for %s: %w", name, err)
	}
	return id, nil
}

// note is a stand-in's identity in the directory.
func (s *standIns) note(id *protocol.Identity) parley.Identity {
	return parley.Identity{Protocol: Protocol, ID: id.ID(), URL: s.b.public.String()}
}

// register registers an agent's stand-in if necessary, and gives its identity. Noted reports that the directory needs
// no change.
func (s *standIns) register(ctx context.Context, name string) (id *protocol.Identity, noted bool, err error) {
	if id, err = s.identity(name); err != nil {
		return nil, false, err
	}
	e, ok := s.b.c.Hub.Directory().Agent(name)
	agent, _ := s.b.store.Agent(ctx, id.ID())
	now := readiness{id, agent, e}
	s.mu.RLock()
	was, speaker := s.ready[name], s.byName[name]
	s.mu.RUnlock()
	if was.holds(now) && speaker == id {
		if was != now { // the old entry need not be kept
			s.mu.Lock()
			s.ready[name] = now
			s.mu.Unlock()
		}
		return id, true, nil
	}
	card := id.Card()
	card.Endpoints = map[string]string{"asp": s.b.public.String() + "/v1/asp"}
	switch {
	case !ok:
	case name != s.b.c.Root && !e.ExposedIn(Protocol):
		card.Name = e.Name // it can send requests, but a search by capability does not find it
	default:
		card.Name, card.Description = cmp.Or(e.Title, e.Name), e.Description
		for _, k := range e.Skills {
			card.Capabilities = append(card.Capabilities, k.ID)
		}
	}
	b, err := card.JSON()
	if err != nil {
		return nil, false, err
	}
	registered := agent != nil && !agent.Removed && bytes.Equal(agent.Cards[len(agent.Cards)-1].Card, b)
	if !registered {
		_, err := s.b.server.Register(ctx, b)
		if codeIs(err, "agent_in_session") {
			id, err = s.formerIdentity(ctx, name, id.ID())
		}
		if err != nil && !errors.Is(err, protocol.ErrAgentExists) {
			return nil, false, fmt.Errorf("register the stand-in for %s: %w", name, err)
		}
	}
	s.mu.Lock()
	s.byName[name] = id
	s.mu.Unlock()
	noted = !ok
	if ok {
		i, has := e.Identity(Protocol)
		noted = has && (i.ID == id.ID() || !i.StandIn)
	}
	if noted && registered {
		s.mu.Lock()
		s.ready[name] = now
		s.mu.Unlock()
	}
	return id, noted, nil
}

// name gives the directory name behind a stand-in's agent URI.
func (s *standIns) name(id string) (string, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	name, ok := s.byID[id]
	return name, ok
}

// of gives the identity of a stand-in in memory, or nil.
func (s *standIns) of(id string) *protocol.Identity {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[s.byID[id]]
}

// speaks reports whether an agent has a stand-in.
func (s *standIns) speaks(name string) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.byName[name] != nil
}

// speaker is the identity with which the hub sends the messages of an agent.
func (s *standIns) speaker(ctx context.Context, name string) (*protocol.Identity, error) {
	return s.ensure(ctx, s.speakerName(name))
}

// speakerName is the agent whose stand-in sends the messages of an agent: itself, or
// the hub for an agent that has its own key or is not in the directory.
func (s *standIns) speakerName(name string) string {
	e, ok := s.b.c.Hub.Directory().Agent(name)
	if !ok {
		return s.b.c.Root
	}
	if i, ok := e.Identity(Protocol); ok && !i.StandIn {
		return s.b.c.Root
	}
	return name
}

// withdraw unregisters the stand-in of a removed agent: it can no longer send or be
// invited. Its id stays reserved for an agent of that name.
func (s *standIns) withdraw(ctx context.Context, name string) error {
	s.mu.Lock()
	id := s.byName[name]
	delete(s.newest, name)
	delete(s.byName, name)
	delete(s.ready, name)
	if id != nil {
		delete(s.byID, id.ID())
	}
	s.mu.Unlock()
	if id == nil {
		return nil
	}
	if err := s.b.server.Unregister(ctx, id.ID()); err != nil {
		return fmt.Errorf("withdraw the stand-in for %s: %w", name, err)
	}
	return nil
}

// changed follows the directory. It must not change it, so the reconciler does the
// work.
func (s *standIns) changed(c directory.Change) {
	switch {
	case c.New == nil && s.speaks(c.Old.Name):
		s.b.reconciler.enqueueStandIn(c.Old.Name)
	case c.New != nil && (s.b.hosts(c.New) || s.speaks(c.New.Name)):
		s.b.reconciler.enqueueStandIn(c.New.Name)
	}
}
