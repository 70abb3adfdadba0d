package uagents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/keyring"
	protocol "github.com/parley-hub/parley/uagents"
)

// standIns are the identities that the hub keeps for agents of other protocols, and the
// hub's own identity.
type standIns struct {
	b *Binding

	mu        sync.RWMutex
	byName    map[string]*protocol.Identity
	byAddress map[string]standIn
	published map[string]*publication    // by agent
	byDigest  map[string]map[string]bool // digest of a manifest → agents that have it

	queueMu sync.Mutex
	names   map[string]bool // agents whose stand-in may have to change
	records map[string]bool // registered addresses whose entry may have to change
	wake    chan struct{}
}

type standIn struct {
	name     string
	identity *protocol.Identity
}

// publication is the manifest and the models of a stand-in.
type publication struct {
	entry    *directory.Entry
	manifest *protocol.Manifest // nil: no models besides those of the chat
	skills   map[string]string  // digest of a request → skill
	answers  map[string]*protocol.Model
}

func newStandIns(b *Binding) *standIns {
	return &standIns{b: b, byName: map[string]*protocol.Identity{}, byAddress: map[string]standIn{},
		published: map[string]*publication{},
		byDigest:  map[string]map[string]bool{},
		names:     map[string]bool{}, records: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// owner is the owner of an agent's key in the keyring.
func (s *standIns) owner(name string) string {
	if name == s.b.c.Root {
		return keyring.Hub
	}
	return name
}

// start makes the stand-ins of all exposed agents, with one write of keys, and indexes
// agents that have keys already.
func (s *standIns) start(ctx context.Context) error {
	want := []string{s.b.c.Root}
	for _, e := range s.b.c.Hub.Directory().All() {
		if s.b.hosts(e) && e.Name != s.b.c.Root {
			want = append(want, e.Name)
		}
	}
	// Agents that are no longer exposed: answers to their requests may still come.
	for _, k := range s.b.c.Keys.List() {
		if k.Purpose != Protocol || k.Owner == keyring.Hub || k.State != keyring.Active {
			continue
		}
		if e, ok := s.b.c.Hub.Directory().Agent(k.Owner); ok && !s.b.hosts(e) {
			want = append(want, k.Owner)
		}
	}
	return s.ensureAll(ctx, want, func(done int) {
		s.b.c.Hub.Progress("stand-ins in uagents", done, len(want))
	})
}

// makeKeys makes the missing keys of agents, in one write. Another hub with the same
// keyring may start at the same time, and make them too.
func (s *standIns) makeKeys(names []string) error {
	keys := make([]keyring.New, 0, len(names))
	for _, name := range names {
		keys = append(keys, s.newKey(name))
	}
	return s.b.c.Keys.EnsureAll(keys...)
}

// ensureAll makes the stand-ins of agents: their keys in one write, and their entries in the directory some at once.
func (s *standIns) ensureAll(ctx context.Context, names []string, progress func(done int)) error {
	if err := s.makeKeys(names); err != nil {
		return fmt.Errorf("make keys of stand-ins: %w", err)
	}
	var errs []error
	unnoted := map[string]parley.Identity{}
	for i, name := range names {
		progress(i)
		id, err := s.identity(name)
		if err != nil {
			errs = append(errs, err)
		} else if note, ok := s.unnoted(name, id); ok {
			unnoted[name] = note
		}
	}
	errs = append(errs, s.b.c.Hub.Directory().StandIns(ctx, unnoted))
	progress(len(names))
	return errors.Join(errs...)
}

// newKey is the key to make for an agent.
func (s *standIns) newKey(name string) keyring.New {
	return keyring.New{Owner: s.owner(name), Purpose: Protocol, Algorithm: keyring.Secp256k1, By: "parley"}
}

// ensure gives the identity of an agent's stand-in, which it makes at first use and adds
// to the directory.
func (s *standIns) ensure(ctx context.Context, name string) (*protocol.Identity, error) {
	id, err := s.identity(name)
	if err != nil {
		return nil, err
	}
	if note, ok := s.unnoted(name, id); ok {
		err = s.b.c.Hub.Directory().StandIn(ctx, name, note)
		if err != nil && !errors.Is(err, directory.ErrUnknown) {
			return nil, fmt.Errorf("note the stand-in for %s: %w", name, err)
		}
	}
	return id, nil
}

// unnoted gives the identity that the directory's entry of an agent lacks.
func (s *standIns) unnoted(name string, id *protocol.Identity) (note parley.Identity, ok bool) {
	e, ok := s.b.c.Hub.Directory().Agent(name)
	if !ok {
		return note, false
	}
	_, noted := identityOf(e, id.Address())
	return parley.Identity{Protocol: Protocol, ID: id.Address(), URL: s.b.public.String() + pathSubmit}, !noted
}

// identity gives the identity of an agent's stand-in, with the key that the keyring has or makes.
func (s *standIns) identity(name string) (*protocol.Identity, error) {
	key := s.newKey(name)
	signer, err := s.b.c.Keys.Ensure(key)
	if err != nil {
		return nil, fmt.Errorf("the key of the stand-in for %s: %w", name, err)
	}
	s.mu.RLock()
	id := s.byName[name]
	s.mu.RUnlock()
	if id != nil && bytes.Equal(id.Public(), signer.Public()) {
		return id, nil
	}
	if id, err = protocol.IdentityFromKey(signer.Seed()); err != nil {
		return nil, fmt.Errorf("the key of the stand-in for %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[name] = id
	s.byAddress[id.Address()] = standIn{name, id}
	// Envelopes to the addresses of retiring keys may be in flight.
	for _, k := range s.b.c.Keys.Keys(key.Owner, Protocol) {
		old, err := s.b.c.Keys.SignerByID(k.ID)
		if err != nil || k.Algorithm != keyring.Secp256k1 || k.ID == signer.ID() {
			continue
		}
		if oldID, err := protocol.IdentityFromKey(old.Seed()); err == nil {
			s.byAddress[oldID.Address()] = standIn{name, oldID}
		}
	}
	return id, nil
}

// at gives the agent of a stand-in's address, while the directory has the agent.
func (s *standIns) at(address string) (name string, id *protocol.Identity, ok bool) {
	s.mu.RLock()
	found, ok := s.byAddress[address]
	s.mu.RUnlock()
	if !ok {
		return "", nil, false
	}
	if _, here := s.b.c.Hub.Directory().Agent(found.name); !here && found.name != s.b.c.Root {
		return "", nil, false
	}
	return found.name, found.identity, true
}

// speaker is the identity with which the hub sends the messages of an agent: its
// stand-in, or the hub's own for an agent that has its own key or is not in the directory.
func (s *standIns) speaker(ctx context.Context, name string) (*protocol.Identity, error) {
	e, ok := s.b.c.Hub.Directory().Agent(name)
	if !ok {
		return s.ensure(ctx, s.b.c.Root)
	}
	if i, ok := e.Identity(Protocol); ok && !i.StandIn {
		return s.ensure(ctx, s.b.c.Root)
	}
	return s.ensure(ctx, name)
}

// changed follows the directory. It must not change the directory, so run does the work.
func (s *standIns) changed(c directory.Change) {
	if c.New == nil {
		// The addresses end with the agent: a later agent of that name is another agent.
		s.mu.Lock()
		delete(s.published, c.Old.Name)
		delete(s.byName, c.Old.Name)
		maps.DeleteFunc(s.byAddress, func(_ string, in standIn) bool { return in.name == c.Old.Name })
		s.mu.Unlock()
		return
	}
	if s.b.hosts(c.New) {
		s.queueMu.Lock()
		s.names[c.New.Name] = true
		s.queueMu.Unlock()
		s.signal()
	}
}

// enqueueRecord tells run to update the entry of a registered address.
func (s *standIns) enqueueRecord(address string) {
	s.queueMu.Lock()
	s.records[address] = true
	s.queueMu.Unlock()
	s.signal()
}

func (s *standIns) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *standIns) run() {
	for {
		select {
		case <-s.wake:
		case <-s.b.ctx.Done():
			return
		}
		s.queueMu.Lock()
		names, records := s.names, s.records
		s.names, s.records = map[string]bool{}, map[string]bool{}
		s.queueMu.Unlock()
		var here []string
		for name := range names {
			if e, ok := s.b.c.Hub.Directory().Agent(name); ok && s.b.hosts(e) {
				here = append(here, name)
			}
		}
		if err := s.ensureAll(s.b.ctx, here, func(int) {}); err != nil && s.b.ctx.Err() == nil {
			s.b.c.Logger.Error("cannot make stand-ins", "agents", len(here), "error", err)
		}
		for _, name := range here {
			if e, ok := s.b.c.Hub.Directory().Agent(name); ok {
				s.of(e)
			}
		}
		for address := range records {
			if r := s.b.almanac.registered(address); r != nil {
				s.b.enter(s.b.ctx, r)
			}
		}
	}
}

// of gives the publication of an agent.
func (s *standIns) of(e *directory.Entry) *publication {
	s.mu.RLock()
	p := s.published[e.Name]
	s.mu.RUnlock()
	if p != nil && p.entry == e {
		return p
	}
	p = &publication{entry: e, skills: map[string]string{}, answers: map[string]*protocol.Model{}}
	var interactions []protocol.Interaction
	failure := protocol.ModelOf[protocol.ErrorMessage]()
	for _, k := range e.Skills {
		answer := derived(k, k.Output, "Response")
		if answer != nil {
			p.answers[k.ID] = answer
		}
		request := derived(k, k.Input, "Request")
		if request == nil || classOf(request.Digest()) != other || p.skills[request.Digest()] != "" {
			continue
		}
		p.skills[request.Digest()] = k.ID
		i := protocol.Interaction{Request: request, Responses: []*protocol.Model{failure}}
		if answer != nil {
			i.Responses = append(i.Responses, answer)
		}
		interactions = append(interactions, i)
	}
	if len(interactions) > 0 {
		m, err := (&protocol.Protocol{Name: className(e.Name),
			Version: "1.0.0", Interactions: interactions}).Manifest("")
		if err != nil {
			s.b.c.Logger.Warn("the skills of an agent make no protocol", "agent", e.Name, "error", err)
		} else {
			p.manifest = m
		}
	}
	s.mu.Lock()
	s.published[e.Name] = p
	if p.manifest != nil {
		digest := p.manifest.Digest()
		if s.byDigest[digest] == nil {
			s.byDigest[digest] = map[string]bool{}
		}
		s.byDigest[digest][e.Name] = true
	}
	s.mu.Unlock()
	return p
}

// protocols gives the digests of the protocols of an agent's stand-in.
func (s *standIns) protocols(e *directory.Entry) []string {
	out := []string{protocol.ChatProtocolDigest}
	if m := s.of(e).manifest; m != nil {
		out = append(out, m.Digest())
	}
	return out
}

// manifest finds a manifest of a stand-in.
func (s *standIns) manifest(digest string) *protocol.Manifest {
	s.mu.RLock()
	names := slices.Collect(maps.Keys(s.byDigest[digest]))
	s.mu.RUnlock()
	for _, name := range names {
		if e, here := s.b.c.Hub.Directory().Agent(name); here && s.b.hosts(e) {
			if m := s.of(e).manifest; m != nil && m.Digest() == digest {
				return m
			}
		}
		s.mu.Lock() // the agent has a new manifest now
		delete(s.byDigest[digest], name)
		if len(s.byDigest[digest]) == 0 {
			delete(s.byDigest, digest)
		}
		s.mu.Unlock()
	}
	return nil
}
