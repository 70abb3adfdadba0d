package admin

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
)

// Config of an [Admin]. Every field must be set, unless its comment names a default.
type Config struct {
	Hub    *hub.Hub
	Keys   *keyring.Ring
	Tokens *Tokens
	Index  *index.Index // of the hub's journal
	Info   func() Info  // without the time

	Ready   func() error                            // nil while the hub takes messages
	Reload  func(context.Context) (Reloaded, error) // reads the configuration again
	Metrics http.Handler                            // of /metrics, without a token

	// Backup and Forget do the work of [Admin.Backup] and [Admin.Forget], which
	// check the caller and write the audit trail.
	Backup func(context.Context, io.Writer) (*journal.BackupSummary, error)
	Forget func(ctx context.Context, what, name, by, reason string, dry bool) (Forgotten, error)

	// Line gives the place of a key in the configuration file, as "agents.weather"; 0: it is not there. nil: there is no
	// file.
	Line func(key string) (file string, line int)
	// Losses says what callers of a protocol lose at the stand-in of an agent, to which the hub sends by another one
	// with that identity. nil: it is not known.
	Losses func(callers, native string, id parley.Identity) []string

	// Protocols are those of the hub's bindings, and what each does for operators.
	Protocols []Protocol

	Workbench Workbench // what needs the protocols

	Hosts   []string // names, besides localhost and IP addresses, that requests may be made to; without port
	MaxBody int64    // bytes of a request; 0: 8 MiB
	Waiters int      // callers that may wait or stream at once; 0: 256
	Audit   int      // entries of the audit trail that are kept; 0: 10,000

	Now    func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: nothing is logged
}

// A Protocol is what the binding of a protocol does for operators. All but Name may be unset.
type Protocol struct {
	Name string

	// SenderKeys gives the public keys that the binding keeps; besides the keyring's, they prove signed
	// messages.
	SenderKeys func(ctx context.Context, m *parley.Message) ([]ExportKey, error)
	// Transcript gives the session of a message, "" if it has none, and a function that writes the session's evidence
	// in the protocol's own form. Own reports whether the conversation holds nothing but that session.
	Transcript func(m *parley.Message) (session string, own bool, write func(context.Context, io.Writer) error)
	// Masked removes the sender's secrets from a recorded message, for operators and exports.
	Masked func(m *parley.Message) *parley.Message
	// EnrollCard registers the card of an agent.
	EnrollCard func(ctx context.Context, id NewIdentity) error
	// Credentials checks what the hub shows to an agent elsewhere, and gives the function that keeps it sealed, or
	// forgets what was kept if it is empty. Errors quote nothing of it.
	Credentials func(Secret) (store func(ctx context.Context, agent string) error, err error)
	// Tools gives the tools of an attached server, and ApproveTools takes those that it offers, if their digest is this
	// one.
	Tools        func(ctx context.Context, agent string) (AgentTools, error)
	ApproveTools func(ctx context.Context, agent, digest string) error
}

// protocol finds a Protocol by its name; only Name is set for an unknown one.
func (a *Admin) protocol(name string) Protocol {
	for _, p := range a.c.Protocols {
		if p.Name == name {
			return p
		}
	}
	return Protocol{Name: name}
}

// Admin is the operator's interface to a hub. It is safe for concurrent use.
type Admin struct {
	c        Config
	audit    *audit
	begun    time.Time
	sessions *Sessions
	waiters  chan struct{}
	mux      *http.ServeMux
	console  http.Handler // nil: there is none

	jobs    jobs
	status  statusCache
	open    openCache
	ended   chan struct{} // closed by EndStreams
	endOnce sync.Once

	mu          sync.Mutex
	seen        map[string]Seen // by agent of the directory
	proofs      map[string]proofs
	seenChanged chan struct{} // closed and replaced when an agent is seen
	unread      map[string]*unread

	checks checklists
}

// maxWait is how long a caller may wait for an inbox or an agent, at most.
const maxWait = 5 * time.Minute

// New makes the interface of a hub that has not started yet, and opens the inboxes of its
// directory. It watches the hub's journal and directory until they close.
func New(c Config) (*Admin, error) {
	c.MaxBody = cmp.Or(c.MaxBody, 8<<20)
	c.Waiters = cmp.Or(c.Waiters, 256)
	c.Audit = cmp.Or(c.Audit, 10_000)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Line == nil {
		c.Line = func(string) (string, int) { return "", 0 }
	}
	a := &Admin{c: c, waiters: make(chan struct{}, c.Waiters), ended: make(chan struct{}), seen: map[string]Seen{},
		proofs: map[string]proofs{}, begun: c.Now(),
		seenChanged: make(chan struct{}), unread: map[string]*unread{}, checks: checklists{every: checklistEvery,
			of: map[string]*checklist{}, changed: make(chan struct{})}}
	var err error
	if a.audit, err = openAudit(context.Background(), c.Hub.Journal().State("audit"), c.Audit); err != nil {
		return nil, err
	}
	c.Hub.Journal().Watch(a.recorded)
	c.Hub.Directory().Watch(a.changed)
	for _, e := range c.Hub.Directory().All() {
		a.changed(directory.Change{New: e})
	}
	a.sessions = newSessions(c.Tokens, c.Now)
	a.mux = a.routes()
	return a, nil
}

// masked gives a message as it is shown and exported.
func (a *Admin) masked(m *parley.Message) *parley.Message {
	if m == nil {
		return nil
	}
	if p := a.protocol(m.Origin.Protocol); p.Masked != nil {
		return p.Masked(m)
	}
	return m
}

// show gives the form in which the API shows a message to an actor.
// show is a message with its content, as far as the actor may see it.
func (a *Admin) show(by Actor, m *parley.Message) *Message {
	v := viewMessage(by, a.masked(m))
	a.advise(v.Error, m.From, m.To) // of a request to the sender of this failure
	return v
}

// recorded notes when an agent was seen last; it is called for every record.
func (a *Admin) recorded(r *journal.Record) {
	m := r.Message
	if m == nil || r.Refused != nil || m.Origin.Protocol == "go" {
		return
	}
	if _, ok := a.c.Hub.Directory().Agent(m.From); !ok {
		return
	}
	a.note(r)
	a.checks.recorded(r)
}

// note keeps the last message of an agent.
func (a *Admin) note(r *journal.Record) {
	m := r.Message
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen[m.From] = Seen{Time: r.Time, Message: m.ID, Protocol: m.Origin.Protocol,
		Assurance: m.Origin.Verdict.Assurance, Count: a.seen[m.From].Count + 1}
	a.noteProof(m, r.Time)
	close(a.seenChanged)
	a.seenChanged = make(chan struct{})
}

// changed follows the directory.
func (a *Admin) changed(c directory.Change) {
	if c.New != nil && hasInbox(c.New) {
		a.c.Hub.Inbox(c.New.Name)
		return
	}
	if c.Old == nil {
		return
	}
	if c.New == nil {
		a.checks.removed(c.Old.Name)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if hasInbox(c.Old) {
		a.c.Hub.CloseInbox(c.Old.Name)
		delete(a.unread, c.Old.Name)
	}
	if c.New == nil {
		delete(a.seen, c.Old.Name)
		delete(a.proofs, c.Old.Name)
	}
}

// Info describes the hub and its addresses.
func (a *Admin) Info(by Actor) (Info, error) {
	if err := by.may(Observe); err != nil {
		return Info{}, err
	}
	i := a.c.Info()
	i.Now = a.c.Now()
	return i, nil
}

// HubID is the id of the hub, which no caller needs a role to know: it names the console's cookie.
func (a *Admin) HubID() string { return a.c.Hub.ID() }

// Ready is nil while the hub takes messages.
func (a *Admin) Ready() error { return a.c.Ready() }

// Reload makes the hub read its configuration again.
func (a *Admin) Reload(ctx context.Context, by Actor) (Reloaded, error) {
	return actFor(a, ctx, by, Administer, "config.reload", "", "", a.c.Reload)
}

// Agent gives one agent. With a wait it first waits, at most that long, for the
// agent to send something.
func (a *Admin) Agent(ctx context.Context, by Actor, name string, wait time.Duration) (Agent, error) {
	if err := cmp.Or(by.may(Observe), a.resolveNames(&name)); err != nil {
		return Agent{}, err
	}
	if wait > 0 {
		if err := a.wait(ctx, name, min(wait, maxWait)); err != nil {
			return Agent{}, err
		}
	}
	e, err := a.entry(by, name)
	if err != nil {
		return Agent{}, err
	}
	v := a.view(by, e)
	v.Addresses, v.Profile = a.c.Hub.Addresses(e), a.c.Hub.Profile(e)
	v.Waiting = viewBacklog(a.c.Hub.Journal().Backlogs([]string{name})[name])
	a.detail(&v, e)
	return v, nil
}

// maxWays bounds how long bindings may ask an agent for [Admin.Ways].
const maxWays = 10 * time.Second

// Ways says how messages get to an agent, and what the hub sees of that at the moment.
func (a *Admin) Ways(ctx context.Context, by Actor, name string) ([]hub.Way, error) {
	if err := cmp.Or(by.may(Observe), a.resolveNames(&name)); err != nil {
		return nil, err
	}
	e, err := a.entry(by, name)
	if err != nil {
		return nil, err
	}
	leave, err := a.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, maxWays)
	defer cancel()
	return a.c.Hub.Ways(ctx, e), nil
}

func (a *Admin) wait(ctx context.Context, name string, d time.Duration) error {
	leave, err := a.enter()
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	a.mu.Lock()
	before := a.seen[name].Count
	for a.seen[name].Count == before && ctx.Err() == nil {
		changed := a.seenChanged
		a.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		a.mu.Lock()
	}
	a.mu.Unlock()
	return nil
}

// enter counts a waiting caller, up to [Config.Waiters].
func (a *Admin) enter() (leave func(), err error) {
	select {
	case a.waiters <- struct{}{}:
		return func() { <-a.waiters }, nil
	default:
		return nil, parley.Fail(parley.Unavailable, nil, "%d callers wait already, the limit; try again later",
			cap(a.waiters))
	}
}

func (a *Admin) entry(by Actor, name string) (*directory.Entry, error) {
	e, ok := a.c.Hub.Directory().Agent(name)
	if !ok {
		return nil, a.unknownAgent(by, name)
	}
	return e, nil
}

// resolveNames replaces each protocol identity among the names by its agent's directory
// name. Other names stay: they may be of removed agents.
func (a *Admin) resolveNames(names ...*string) error {
	for _, name := range names {
		e, err := a.c.Hub.Directory().Resolve(*name)
		switch {
		case err == nil:
			*name = e.Name
		case errors.Is(err, directory.ErrAmbiguous):
			return fromDirectory(err)
		}
	}
	return nil
}

// fromDirectory turns an error of the directory into one of the API.
func fromDirectory(err error) error {
	var code parley.Code
	switch {
	case err == nil:
		return nil
	case errors.Is(err, directory.ErrUnknown):
		code = parley.UnknownAgent
	case errors.Is(err, directory.ErrTaken), errors.Is(err, directory.ErrIdentity),
		errors.Is(err, directory.ErrAmbiguous):
		code = parley.Conflict
	case errors.Is(err, directory.ErrReadOnly):
		code = parley.Forbidden
	case errors.Is(err, directory.ErrFull):
		code = parley.Unavailable
	default:
		return err
	}
	return parley.Refuse(code, "%s", err)
}

// AddAgent adds an agent, or replaces the agent that an operator added under that name,
// and enrols the keys of its identities.
func (a *Admin) AddAgent(ctx context.Context, by Actor, n NewAgent) (Agent, error) {
	return a.addAgent(ctx, by, n, "agent.add")
}

// addAgent is AddAgent with the action of its entry in the audit trail.
func (a *Admin) addAgent(ctx context.Context, by Actor, n NewAgent, action string) (Agent, error) {
	if err := by.may(Administer); err != nil {
		return Agent{}, err
	}
	e, keys, err := a.newAgent(n)
	if err != nil {
		return Agent{}, err
	}
	credentials, err := a.credentials(n.Identities, e.Identities)
	if err != nil {
		return Agent{}, err
	}
	return actFor(a, ctx, by, Administer, action, n.Name, describe(e), func(ctx context.Context) (Agent, error) {
		// Keys come first: bindings look at them when the directory changes.
		var enrolled []NewIdentity
		for i, v := range n.Identities {
			if keys[i] == nil {
				continue
			}
			e.Identities[i].Key = a.fingerprintIfShared(n.Name, v, keys[i])
			undo, err := a.enroll(n.Name, v, keys[i], by.Name)
			if err != nil {
				return Agent{}, errors.Join(err, a.unenrollAll(n.Name, enrolled))
			}
			enrolled = append(enrolled, undo...)
		}
		if old, ok := a.c.Hub.Directory().Agent(n.Name); ok && old.Source == directory.FromOperator {
			if err := a.forgetMoved(ctx, old, e.Identities); err != nil {
				return Agent{}, errors.Join(err, a.unenrollAll(n.Name, enrolled))
			}
		}
		entry, err := a.c.Hub.Directory().Put(ctx, e, directory.FromOperator)
		if err != nil {
			return Agent{}, errors.Join(a.notChanged(n.Name, err), a.unenrollAll(n.Name, enrolled))
		}
		for _, store := range credentials {
			if err := store(ctx, n.Name); err != nil {
				return Agent{}, errors.Join(err, a.c.Hub.Directory().Remove(ctx, n.Name),
					a.unenrollAll(n.Name, enrolled))
			}
		}
		for _, v := range n.Identities {
			if v.Card == nil {
				continue
			}
			if err := a.protocol(v.Protocol).EnrollCard(ctx, v); err != nil {
				err = parley.Fail(parley.Malformed, err, "the card of %s: %s", v.ID, err)
				return Agent{}, errors.Join(err, a.c.Hub.Directory().Remove(ctx, n.Name),
					a.unenrollAll(n.Name, enrolled))
			}
		}
		return a.view(by, entry), nil
	})
}

// credentials checks the credentials of identities, and gives the functions that store them. all are the identities
// of the agent: in each protocol the hub calls it at one address, and has credentials for that address only.
func (a *Admin) credentials(list []NewIdentity, all []parley.Identity) (store []func(context.Context, string) error,
	err error) {
	for _, v := range list {
		p := a.protocol(v.Protocol)
		elsewhere := slices.ContainsFunc(all, func(i parley.Identity) bool {
			return i.Protocol == v.Protocol && i.ID != v.ID && i.URL != "" && !i.StandIn
		})
		switch {
		case v.URL == "" && v.Credentials == nil && elsewhere: // those for the address stay
		case v.Credentials != nil && v.URL == "":
			return nil, parley.Refuse(parley.Malformed, "credentials for %.140s: the hub shows them to an agent elsewhere, "+
				"and this one has no URL", v.ID)
		case v.Credentials != nil && elsewhere:
			return nil, parley.Refuse(parley.Conflict, "credentials for %.140s: the agent has another address in %s, to which "+
				"the hub would show them", v.ID, v.Protocol)
		case p.Credentials != nil:
			f, err := p.Credentials(v.Credentials)
			if err != nil {
				return nil, parley.Refuse(parley.Malformed, "credentials for %.140s: %s", v.ID, err)
			}
			store = append(store, f)
		case v.Credentials != nil:
			return nil, parley.Refuse(parley.Unsupported, "this hub takes no credentials for agents of %.40q", v.Protocol)
		}
	}
	return store, nil
}

// forgetMoved forgets the credentials for an agent whose address changes: they must not go to the new one.
func (a *Admin) forgetMoved(ctx context.Context, old *directory.Entry, now []parley.Identity) error {
	for _, i := range old.Identities {
		p := a.protocol(i.Protocol)
		if p.Credentials == nil || i.StandIn || slices.ContainsFunc(now, func(n parley.Identity) bool {
			return n.Protocol == i.Protocol && n.URL == i.URL
		}) {
			continue
		}
		forget, err := p.Credentials(nil)
		if err == nil {
			err = forget(ctx, old.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// newAgent validates the request. It gives the directory's entry and, for
// each identity of n, its decoded public key, or nil.
func (a *Admin) newAgent(n NewAgent) (e parley.Agent, keys [][]byte, err error) {
	e = parley.Agent{Name: n.Name, Title: n.Title, Description: n.Description, Exposed: n.Expose, Record: n.Record}
	if old, ok := a.c.Hub.Directory().Agent(n.Name); ok {
		e.Retries = old.Retries
	}
	if e.Retries, err = n.Delivery.change(e.Retries); err != nil {
		return e, nil, err
	}
	if err := cmp.Or(parley.CheckName(n.Name), n.Record.Check()); err != nil {
		return e, nil, err
	}
	if len(n.Identities) > 32 || len(n.Skills) > 1000 {
		return e, nil, parley.Refuse(parley.TooLarge, "an agent has at most 32 identities and 1,000 skills")
	}
	if len(n.Identities) == 0 && !n.Inbox {
		return e, nil, parley.Refuse(parley.Malformed,
			"agent %q has no identity: say in which protocol it is reached, or give it an inbox", n.Name)
	}
	if err := a.checkProtocols(n.Expose); err != nil {
		return e, nil, err
	}
	for i, v := range n.Identities {
		key, err := v.check()
		if err != nil {
			return e, nil, parley.Refuse(parley.Malformed, "identity %d: %s", i+1, parley.AsError(err).Text)
		}
		if v.Card != nil && a.protocol(v.Protocol).EnrollCard == nil {
			return e, nil, parley.Refuse(parley.Unsupported, "this hub takes no cards of agents of %.40q", v.Protocol)
		}
		keys = append(keys, key)
		e.Identities = append(e.Identities, parley.Identity{Protocol: v.Protocol, ID: v.ID, URL: v.URL})
	}
	for i, s := range n.Skills {
		if s.ID == "" || len(s.ID) > 64 {
			return e, nil, parley.Refuse(parley.Malformed, "skill %d: want an id of 1 to 64 characters", i+1)
		}
		e.Skills = append(e.Skills, s.spec())
	}
	if n.Inbox {
		e.Identities = append(e.Identities, Inbox(n.Name))
	}
	return e, keys, nil
}

// check validates an identity and gives its decoded public key; nil without one.
func (v NewIdentity) check() (key []byte, err error) {
	if v.Protocol == "" || v.ID == "" || len(v.ID) > 512 || v.Protocol == apiProtocol || v.Protocol == "go" {
		return nil, parley.Refuse(parley.Malformed, "want the protocol and the id that the agent has in it")
	}
	if v.PublicKey == "" {
		return nil, nil
	}
	return decodeKey(v.PublicKey)
}

func describe(e parley.Agent) string {
	var ids []string
	for _, i := range e.Identities {
		ids = append(ids, i.Protocol+" "+i.ID)
	}
	return strings.Join(ids, ", ")
}

// checkProtocols validates a list of exposures.
func (a *Admin) checkProtocols(list []string) error {
	for _, name := range list {
		if name != "all" && !slices.ContainsFunc(a.c.Protocols, func(p Protocol) bool { return p.Name == name }) {
			var known []string
			for _, p := range a.c.Protocols {
				known = append(known, p.Name)
			}
			return parley.Refuse(parley.Malformed, "%.40q is no protocol: want all, or one of %s", name,
				strings.Join(known, ", "))
		}
	}
	return nil
}

// decodeKey reads a public key: base64, standard or URL alphabet, padded or
// not.
func decodeKey(s string) ([]byte, error) {
	s = strings.TrimRight(strings.NewReplacer("-", "+", "_", "/").Replace(s), "=")
	b, err := base64.RawStdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) == 0 || len(b) > 128 {
		return nil, parley.Refuse(parley.Malformed, "the public key is not base64")
	}
	return b, nil
}

// RemoveAgent removes an agent, its keys and its tokens.
func (a *Admin) RemoveAgent(ctx context.Context, by Actor, name string) error {
	if err := a.resolveNames(&name); err != nil {
		return err
	}
	return a.act(ctx, by, Administer, "agent.remove", name, "", func(ctx context.Context) error {
		if _, err := a.entry(by, name); err != nil {
			return err
		}
		if err := a.c.Hub.Directory().Remove(ctx, name); err != nil {
			return a.notChanged(name, err)
		}
		if _, err := a.c.Keys.Forget(name); err != nil {
			return fmt.Errorf("agent %q is gone, but its keys could not be erased: %w", name, err)
		}
		return a.revokeTokens(ctx, name)
	})
}

// Pause holds deliveries to an agent back, or lets them go on.
func (a *Admin) Pause(ctx context.Context, by Actor, name string, paused bool) (Agent, error) {
	if paused {
		return a.PauseFor(ctx, by, name, "")
	}
	return a.edit(ctx, by, Operate, "agent.resume", name, "", func(ctx context.Context, name string) error {
		return a.c.Hub.Pause(ctx, name, false)
	})
}

// Expose sets the protocols in which the hub stands in for an agent.
func (a *Admin) Expose(ctx context.Context, by Actor, name string, protocols []string) (Agent, error) {
	if err := a.checkProtocols(protocols); err != nil {
		return Agent{}, err
	}
	list := strings.Join(protocols, ", ")
	return a.edit(ctx, by, Administer, "agent.expose", name, list, func(ctx context.Context, name string) error {
		return a.c.Hub.Directory().Expose(ctx, name, protocols)
	})
}

// Record sets what the journal keeps of the content of an agent's messages.
func (a *Admin) Record(ctx context.Context, by Actor, name string, r parley.Recording) (Agent, error) {
	return a.edit(ctx, by, Administer, "agent.record", name, string(r), func(ctx context.Context, name string) error {
		return a.c.Hub.Directory().Record(ctx, name, r)
	})
}

// Link gives an agent a further native identity, and enrols its key.
func (a *Admin) Link(ctx context.Context, by Actor, name string, id NewIdentity) (Agent, error) {
	key, err := id.check()
	if err != nil {
		return Agent{}, err
	}
	detail := id.Protocol + " " + id.ID
	return a.edit(ctx, by, Administer, "agent.link", name, detail, func(ctx context.Context, name string) error {
		link := parley.Identity{Protocol: id.Protocol, ID: id.ID, URL: id.URL}
		e, err := a.entry(by, name)
		if err != nil {
			return err
		}
		credentials, err := a.credentials([]NewIdentity{id}, e.Identities)
		if err != nil {
			return err
		}
		var enrolled []NewIdentity
		if key != nil {
			var err error
			link.Key = a.fingerprintIfShared(name, id, key)
			if enrolled, err = a.enroll(name, id, key, by.Name); err != nil {
				return err
			}
		}
		now := append(slices.DeleteFunc(slices.Clone(e.Identities), func(i parley.Identity) bool {
			return i.Protocol == link.Protocol && i.ID == link.ID
		}), link)
		err = a.forgetMoved(ctx, e, now)
		if err == nil {
			err = a.c.Hub.Directory().Link(ctx, name, link)
		}
		if err != nil {
			return errors.Join(a.notChanged(name, err), a.unenrollAll(name, enrolled))
		}
		for _, store := range credentials {
			if err := store(ctx, name); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *Admin) edit(ctx context.Context, by Actor, role Role, action, name, detail string,
	f func(ctx context.Context, name string) error) (Agent, error) {
	if err := a.resolveNames(&name); err != nil {
		return Agent{}, err
	}
	return actFor(a, ctx, by, role, action, name, detail, func(ctx context.Context) (Agent, error) {
		if _, err := a.entry(by, name); err != nil {
			return Agent{}, err
		}
		if err := f(ctx, name); err != nil {
			return Agent{}, a.notChanged(name, err)
		}
		e, err := a.entry(by, name)
		if err != nil {
			return Agent{}, err
		}
		return a.view(by, e), nil
	})
}

// Refused lists refusals, the newest first, at most n; all for n <= 0.
func (a *Admin) Refused(by Actor, n int) ([]Refusal, error) {
	if err := by.may(Observe); err != nil {
		return nil, err
	}
	return viewAll(by, a.c.Hub.Refused(n), a.viewRefusal), nil
}

// Refusal finds a refusal by the reference that the sender got.
func (a *Admin) Refusal(by Actor, ref string) (Refusal, error) {
	if err := by.may(Observe); err != nil {
		return Refusal{}, err
	}
	r, ok := a.c.Hub.Explain(ref)
	if !ok {
		return Refusal{}, parley.Refuse(notFound, "no refusal %.40q is kept; the hub keeps the latest in memory only",
			ref)
	}
	return a.viewRefusal(by, r), nil
}

// Stats counts agents, records and deliveries.
func (a *Admin) Stats(by Actor) (Stats, error) {
	if err := by.may(Observe); err != nil {
		return Stats{}, err
	}
	h, j := a.c.Hub.Stats(), a.c.Hub.Journal().Stats()
	s := Stats{Now: a.c.Now(), Agents: h.Agents, Waiting: h.Waiting, Refused: h.Refused, Lanes: h.Delivery.Lanes,
		Active: h.Delivery.Active, HeldBytes: h.Delivery.Held, Free: j.Free, Healthy: true,
		Partitions: []PartitionStats{}}
	for _, p := range j.Partitions {
		s.Records += p.Records
		s.Bytes += p.Bytes
		s.Open += p.Open
		s.Dead += p.Dead
		s.Partitions = append(s.Partitions, PartitionStats{p.Partition, p.Records, p.Bytes, p.Open, p.Dead, p.Keys,
			p.LongKeys, p.Queued, p.Appended, p.Replays, p.Owned})
	}
	x := a.c.Index.Stats()
	s.Index = &x
	if err := a.Ready(); err != nil {
		s.Healthy, s.Reason = false, err.Error()
	}
	return s, nil
}
