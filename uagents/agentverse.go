package uagents

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

// An IdentityServer serves accounts as Agentverse does: they prove that agents
// are theirs (/v2/identity), describe them (/v2/agents) and find others
// (POST /v1/search/agents). It takes the reports of agents (POST
// /v2/agents/interactions and /v1/events) and drops them, because the library
// sends a refused report again, or reports the refusal. Without User there are no
// accounts.
//
// An account may change only agents whose key it proved to hold, until another
// account proves the same key, or the agent is removed.
type IdentityServer struct {
	// User gives the name of the account of a bearer token. Its error is sent to the
	// client; ErrUnauthorized fits.
	User func(ctx context.Context, bearer, team string) (string, error)
	// Proved is called when an account proved an agent to be its own, and may refuse.
	Proved func(ctx context.Context, user, address string) error
	// Store keeps the profiles; it must be set. [MemoryProfiles] is one.
	Store ProfileStore

	Now      func() time.Time // nil: time.Now
	Lifetime time.Duration    // of a challenge; default 5 min
	Max      int              // open challenges and proofs; default 4096
	MaxUser  int              // open challenges and proofs of one user; default 64

	once       sync.Once
	mux        *http.ServeMux
	searching  sync.Mutex
	mu         sync.Mutex
	challenges map[string]challenge // by text
	proofs     map[[2]string]time.Time
	perUser    map[string]int
}

type challenge struct {
	user, address string
	until         time.Time
}

func (s *IdentityServer) start() {
	s.once.Do(func() {
		s.challenges, s.proofs, s.perUser = map[string]challenge{}, map[[2]string]time.Time{}, map[string]int{}
		s.mux = http.NewServeMux()
		s.mux.Handle("GET /v2/identity/{address}/challenge", s.forAccount(s.challenge))
		s.mux.Handle("POST /v2/identity", s.withBody(64<<10, s.prove))
		s.mux.Handle("GET "+agentsAPI, s.forAccount(s.agents))
		s.mux.Handle("POST "+agentsAPI, s.withBody(maxProfile, s.register))
		s.mux.Handle("POST "+agentsAPI+"/batch", s.withBody(1<<20, s.batch))
		s.mux.Handle("GET "+agentsAPI+"/{address}", answerer(s.agent))
		s.mux.Handle("PUT "+agentsAPI+"/{address}", s.withBody(maxProfile, s.update))
		s.mux.Handle("DELETE "+agentsAPI+"/{address}", s.forAccount(s.unregister))
		s.mux.Handle("POST /v1/search/agents", withBody(16<<10, s.search))
		s.mux.Handle("POST "+agentsAPI+"/interactions", answerer(takeReport))
		s.mux.Handle("POST /v1/events", answerer(takeReport))
		s.mux.Handle("/", answerer(noSuchPath))
	})
}

// ServeHTTP implements http.Handler.
func (s *IdentityServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.start()
	onlyJSON(s.mux).ServeHTTP(w, r)
}

func (s *IdentityServer) user(r *http.Request) (string, error) {
	const bearer = "Bearer "
	h := r.Header.Get("Authorization")
	if s.User == nil || len(h) <= len(bearer) || h[:len(bearer)] != bearer {
		return "", ErrUnauthorized
	}
	return s.User(r.Context(), h[len(bearer):], r.Header.Get("X-Team"))
}

// forAccount makes an [answerer] of a function that gets the name of the account
// that sent the request.
func (s *IdentityServer) forAccount(f func(r *http.Request, user string) (*node, error)) answerer {
	return func(_ http.ResponseWriter, r *http.Request) (*node, error) {
		user, err := s.user(r)
		if err != nil {
			return nil, err
		}
		return f(r, user)
	}
}

// withBody is forAccount of a function that gets the parsed body too. The body of a
// request without an account is not read.
func (s *IdentityServer) withBody(max int, f func(r *http.Request, user string, body *node) (*node, error)) answerer {
	return func(w http.ResponseWriter, r *http.Request) (*node, error) {
		user, err := s.user(r)
		if err != nil {
			return nil, err
		}
		read := withBody(max, func(r *http.Request, body *node) (*node, error) { return f(r, user, body) })
		return read(w, r)
	}
}

// purge drops expired entries. The caller holds the lock.
func (s *IdentityServer) purge() {
	now := clock(s.Now)
	for text, c := range s.challenges {
		if !c.until.After(now) {
			delete(s.challenges, text)
			s.forget(c.user)
		}
	}
	for key, until := range s.proofs {
		if !until.After(now) {
			delete(s.proofs, key)
			s.forget(key[0])
		}
	}
}

func (s *IdentityServer) forget(user string) {
	s.perUser[user]--
	if s.perUser[user] <= 0 {
		delete(s.perUser, user)
	}
}

func (s *IdentityServer) challenge(r *http.Request, user string) (*node, error) {
	address := r.PathValue("address")
	if _, err := ParseAddress(address); err != nil {
		return nil, err
	}
	text := uuid.NewString() + uuid.NewString()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.purge()
	if len(s.challenges)+len(s.proofs) >= cmp.Or(s.Max, 4096) || s.perUser[user] >= cmp.Or(s.MaxUser, 64) {
		return nil, ErrBusy
	}
	s.challenges[text] = challenge{user, address, clock(s.Now).Add(cmp.Or(s.Lifetime, 5*time.Minute))}
	s.perUser[user]++
	return object("challenge", text), nil
}

// takeReport accepts a report of an agent and drops it.
func takeReport(http.ResponseWriter, *http.Request) (*node, error) { return nothing(), nil }

// prove checks the response to a challenge. One attempt uses the challenge up. UAG-080.
func (s *IdentityServer) prove(r *http.Request, user string, n *node) (*node, error) {
	address, text := n.get("address").str(), n.get("challenge").str()
	s.mu.Lock()
	s.purge()
	c, ok := s.challenges[text]
	ok = ok && c.user == user && c.address == address
	if ok {
		delete(s.challenges, text)
		s.forget(user)
	}
	s.mu.Unlock()
	if !ok || VerifyText(address, []byte(text), n.get("challenge_response").str()) != nil {
		return nil, ErrChallenge
	}
	if s.Proved != nil {
		if err := s.Proved(r.Context(), user, address); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.proofs { // the last proof counts
		if key[1] == address {
			delete(s.proofs, key)
			s.forget(key[0])
		}
	}
	s.perUser[user]++
	s.proofs[[2]string{user, address}] = clock(s.Now).Add(cmp.Or(s.Lifetime, 5*time.Minute))
	return object("address", address), nil
}

// put stores a profile and uses up the proof that allowed it: from now on the agent
// is the account's.
func (s *IdentityServer) put(ctx context.Context, p *Profile) error {
	if err := s.Store.PutProfile(ctx, p); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]string{p.Account, p.Address}
	if _, ok := s.proofs[key]; ok {
		delete(s.proofs, key)
		s.forget(p.Account)
	}
	return nil
}

// proved reports whether the user proved the agent just now.
func (s *IdentityServer) proved(user, address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.proofs[[2]string{user, address}]
	return ok && until.After(clock(s.Now))
}

// own finds an agent that the account may change: its own, or one whose key it
// proved just now. old is nil for an unregistered agent.
func (s *IdentityServer) own(ctx context.Context, user, address string) (old *Profile, err error) {
	old, err = s.Store.Profile(ctx, address)
	switch {
	case err != nil:
		return nil, err
	case old != nil && old.Account == user, s.proved(user, address):
		return old, nil
	}
	return nil, ErrOtherAgent.Saying(
		"Prove first that you hold the agent's key: GET /v2/identity/" + address + "/challenge")
}

// ownRegistered is own for registered agents; others are ErrNotFound.
func (s *IdentityServer) ownRegistered(ctx context.Context, user, address string) (*Profile, error) {
	p, err := s.own(ctx, user, address)
	if err == nil && p == nil {
		err = ErrNotFound
	}
	return p, err
}

// accept checks that the account may register the profile, and sets its account and
// times.
func (s *IdentityServer) accept(ctx context.Context, user string, p *Profile) error {
	old, err := s.own(ctx, user, p.Address)
	if err != nil {
		return err
	}
	p.Account, p.Created = user, clock(s.Now)
	if old != nil && old.Account == user {
		p.Created = old.Created
	}
	p.Updated = clock(s.Now)
	return nil
}

func (s *IdentityServer) register(r *http.Request, user string, n *node) (*node, error) {
	p, err := profileOf(n)
	if err == nil {
		err = s.accept(r.Context(), user, p)
	}
	if err != nil {
		return nil, err
	}
	return success(), s.put(r.Context(), p)
}

func success() *node {
	n := nothing()
	n.set("success", boolean(true))
	return n
}

// batch registers several agents. All are checked first; if one is refused, none
// changes.
func (s *IdentityServer) batch(r *http.Request, user string, n *node) (*node, error) {
	all := n.get("agents")
	if all == nil || all.kind != '[' || len(all.vals) > maxBatch {
		return nil, ErrProfile.Saying("agents is not a list of at most 100 registrations")
	}
	profiles := make([]*Profile, len(all.vals))
	for i, one := range all.vals {
		var err error
		profiles[i], err = profileOf(one)
		if err == nil {
			err = s.accept(r.Context(), user, profiles[i])
		}
		if err != nil {
			return nil, AsError(err).Saying("agents[" + strconv.Itoa(i) + "]: " + AsError(err).Text)
		}
	}
	for i, p := range profiles {
		if err := s.put(r.Context(), p); err != nil {
			e := AsError(err)
			return nil, e.Saying("agents[" + strconv.Itoa(i) + "], after those before it were registered: " + e.Text)
		}
	}
	return success(), nil
}

// agents lists the agents of the account.
func (s *IdentityServer) agents(r *http.Request, user string) (*node, error) {
	own, err := s.Store.Profiles(r.Context(), user)
	out := list()
	for _, p := range own {
		out.vals = append(out.vals, p.node())
	}
	return out, err
}

// agent gives the profile of an agent to its account and to the agent itself:
// the library asks with the agent's attestation whether the agent is registered.
func (s *IdentityServer) agent(_ http.ResponseWriter, r *http.Request) (*node, error) {
	address := r.PathValue("address")
	user, err := "", error(nil)
	if h := r.Header.Get("Authorization"); strings.HasPrefix(h, "Agent ") {
		_, err = TokenVerifier{Now: s.Now}.VerifyHeader(h, address)
	} else {
		user, err = s.user(r)
	}
	if err != nil {
		return nil, err
	}
	p, err := s.Store.Profile(r.Context(), address)
	switch {
	case err != nil:
		return nil, err
	case p == nil || user != "" && p.Account != user:
		return nil, ErrNotFound
	}
	return p.node(), nil
}

// update changes members of a profile: PUT with AgentUpdates of uagents-core.
func (s *IdentityServer) update(r *http.Request, user string, n *node) (*node, error) {
	p, err := s.ownRegistered(r.Context(), user, r.PathValue("address"))
	if err == nil {
		p, err = p.update(n)
	}
	if err != nil {
		return nil, err
	}
	p.Account, p.Updated = user, clock(s.Now)
	return success(), s.put(r.Context(), p)
}

func (s *IdentityServer) unregister(r *http.Request, user string) (*node, error) {
	p, err := s.ownRegistered(r.Context(), user, r.PathValue("address"))
	if err != nil {
		return nil, err
	}
	return success(), s.Store.RemoveProfile(r.Context(), p.Address)
}

// search finds agents by words, an address or a protocol. It needs no account,
// as at Agentverse.
func (s *IdentityServer) search(r *http.Request, n *node) (*node, error) {
	q, err := queryOf(n)
	if err != nil {
		return nil, err
	}
	s.searching.Lock() // one at a time: they are expensive and need no account
	found, total := q.find(s.Store.Listings(r.Context()))
	s.searching.Unlock()
	agents := list()
	for _, l := range found {
		agents.vals = append(agents.vals, l.node())
	}
	out := nothing()
	out.set("agents", agents)
	out.set("offset", number(int64(q.offset)))
	out.set("limit", number(int64(q.limit)))
	out.set("num_hits", number(int64(len(found))))
	out.set("total", number(int64(total)))
	out.set("search_id", str(uuid.NewString()))
	return out, nil
}
