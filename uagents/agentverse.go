package uagents

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
)

// An IdentityServer lets users prove that agents are theirs: GET
// /v2/identity/{address}/challenge, POST /v2/identity, POST /v2/agents, DELETE
// /v2/agents/{address}, and POST /v2/agents/interactions, which is taken and
// forgotten. Without User nobody is authorised.
type IdentityServer struct {
	// User gives the name of the user that a bearer token stands for. The
	// error is answered; ErrUnauthorized fits.
	User func(ctx context.Context, bearer, team string) (string, error)
	// Proved hears that a user proved an agent to be theirs.
	Proved func(ctx context.Context, user, address string) error
	// Register takes the description of an agent that the user proved; the
	// body is the registration request's JSON.
	Register func(ctx context.Context, user, address string, body []byte) error
	// Unregister takes it away again. It has to know whose the agent is: no
	// fresh proof is asked for here.
	Unregister func(ctx context.Context, user, address string) error

	Now      func() time.Time // nil: time.Now
	Lifetime time.Duration    // of a challenge; default 5 min
	Max      int              // open challenges and proofs; default 4096
	MaxUser  int              // of them, of one user; default 64

	once       sync.Once
	mux        *http.ServeMux
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
		s.mux.HandleFunc("GET /v2/identity/{address}/challenge", s.challenge)
		s.mux.HandleFunc("POST /v2/identity", s.prove)
		s.mux.HandleFunc("POST "+agentsAPI, s.register)
		s.mux.HandleFunc("DELETE "+agentsAPI+"/{address}", s.unregister)
		s.mux.HandleFunc("POST "+agentsAPI+"/interactions", func(w http.ResponseWriter, _ *http.Request) {
			writeBody(w, http.StatusOK, []byte("{}"))
		})
		s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { writeDetail(w, ErrNotFound) })
	})
}

// ServeHTTP implements http.Handler.
func (s *IdentityServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.start()
	onlyJSON(s.mux).ServeHTTP(w, r)
}

func (s *IdentityServer) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func (s *IdentityServer) user(r *http.Request) (string, error) {
	const bearer = "Bearer "
	h := r.Header.Get("Authorization")
	if s.User == nil || len(h) <= len(bearer) || h[:len(bearer)] != bearer {
		return "", ErrUnauthorized
	}
	return s.User(r.Context(), h[len(bearer):], r.Header.Get("X-Team"))
}

// purge drops what is past its time. The caller holds the lock.
func (s *IdentityServer) purge() {
	now := s.now()
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
	if s.perUser[user]--; s.perUser[user] <= 0 {
		delete(s.perUser, user)
	}
}

func (s *IdentityServer) challenge(w http.ResponseWriter, r *http.Request) {
	user, err := s.user(r)
	address := r.PathValue("address")
	if err == nil {
		_, err = ParseAddress(address)
	}
	if err != nil {
		writeDetail(w, err)
		return
	}
	text := uuid.NewString() + uuid.NewString()
	s.mu.Lock()
	s.purge()
	full := len(s.challenges)+len(s.proofs) >= orDefault(s.Max, 4096) || s.perUser[user] >= orDefault(s.MaxUser, 64)
	if !full {
		s.challenges[text] = challenge{user, address, s.now().Add(orDefault(s.Lifetime, 5*time.Minute))}
		s.perUser[user]++
	}
	s.mu.Unlock()
	if full {
		writeDetail(w, ErrBusy)
		return
	}
	writeJSON(w, http.StatusOK, object("challenge", text))
}

// prove checks a response. The challenge is used up by the attempt. UAG-080.
func (s *IdentityServer) prove(w http.ResponseWriter, r *http.Request) {
	user, err := s.user(r)
	var n *node
	if err == nil {
		n, err = readNodeBody(w, r, 64<<10)
	}
	if err != nil {
		writeDetail(w, err)
		return
	}
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
		writeDetail(w, ErrChallenge)
		return
	}
	if s.Proved != nil {
		if err := s.Proved(r.Context(), user, address); err != nil {
			writeDetail(w, err)
			return
		}
	}
	s.mu.Lock()
	if _, again := s.proofs[[2]string{user, address}]; !again {
		s.perUser[user]++
	}
	s.proofs[[2]string{user, address}] = s.now().Add(orDefault(s.Lifetime, 5*time.Minute))
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, object("address", address))
}

// proved reports whether the user proved the agent just now.
func (s *IdentityServer) proved(user, address string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	until, ok := s.proofs[[2]string{user, address}]
	return ok && until.After(s.now())
}

func (s *IdentityServer) register(w http.ResponseWriter, r *http.Request) {
	user, err := s.user(r)
	var body []byte
	if err == nil {
		body, err = readBody(w, r, 256<<10)
	}
	var address string
	if err == nil {
		address, err = registrationAddress(body)
	}
	if err == nil && !s.proved(user, address) {
		err = ErrOtherAgent
	}
	if err == nil && s.Register != nil {
		err = s.Register(r.Context(), user, address, body)
	}
	if err != nil {
		writeDetail(w, err)
		return
	}
	n := &node{kind: '{'}
	n.set("success", boolean(true))
	writeJSON(w, http.StatusOK, n)
}

// registrationAddress checks the shape of a RegistrationRequest.
func registrationAddress(body []byte) (string, error) {
	n, err := parse(body)
	if err != nil {
		return "", ErrMalformed.Because(err)
	}
	bad := func(text string) (string, error) { return "", ErrAttestation.Because(errors.New(text)) }
	address := n.get("address").str()
	if _, err := ParseAddress(address); err != nil {
		return "", err
	}
	for _, f := range []struct {
		in       *node
		name     string
		min, max int
	}{
		{n, "name", 1, 32}, {n, "handle", 0, 40}, {n, "url", 0, 4000},
		{n.get("profile"), "description", 0, 300}, {n.get("profile"), "readme", 0, 80000},
		{n.get("profile"), "avatar_url", 0, 4000}, {n.get("profile"), "banner_url", 0, 4000},
	} {
		v := f.in.get(f.name)
		if v != nil && v.kind != '"' && v.kind != 'n' {
			return bad(f.name + " is not a text")
		}
		if l := len([]rune(v.str())); l < f.min || l > f.max {
			return bad(f.name + " has a wrong length")
		}
	}
	return address, nil
}

func (s *IdentityServer) unregister(w http.ResponseWriter, r *http.Request) {
	user, err := s.user(r)
	address := r.PathValue("address")
	if err == nil {
		_, err = ParseAddress(address)
	}
	switch {
	case err != nil:
	case s.Unregister == nil:
		err = ErrNotFound
	default:
		err = s.Unregister(r.Context(), user, address)
	}
	if err != nil {
		writeDetail(w, err)
		return
	}
	n := &node{kind: '{'}
	n.set("success", boolean(true))
	writeJSON(w, http.StatusOK, n)
}
