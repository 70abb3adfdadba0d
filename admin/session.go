package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley"
)

// This file lets browsers in: a link that works once begins a session, which a cookie continues. Links and sessions
// are in memory; only hashes of their secrets are kept.

const (
	linkLife     = 10 * time.Minute
	sessionLife  = 12 * time.Hour
	sessionIdle  = time.Hour
	maxLinks     = 100 // at once; the oldest goes first
	maxSessions  = 1000
	viaConsole   = "console"
	enterAddress = "/console/enter?once="
)

// A Link lets a browser into the console, once, with the role of the token that made it.
type Link struct {
	Path    string    `json:"path"` // below the base URL of the admin API
	Name    string    `json:"name"` // of the token
	Role    Role      `json:"role"`
	Expires time.Time `json:"expires"`
}

// A Session is that of a browser in the console.
type Session struct {
	By      Actor
	Form    string    // a form that changes something returns this, so that no other site can send it
	Expires time.Time // however busy the session is
	Memory  *sync.Map // what the console remembers for the session; it is gone with it

	last time.Time
}

// Sessions are the links and the sessions of a hub's console. They are safe for concurrent use.
type Sessions struct {
	tokens *Tokens
	now    func() time.Time
	rnd    io.Reader

	mu       sync.Mutex
	links    map[[sha256.Size]byte]Session
	sessions map[[sha256.Size]byte]Session
}

func newSessions(t *Tokens, now func() time.Time) *Sessions {
	return &Sessions{tokens: t, now: now, rnd: rand.Reader, links: map[[sha256.Size]byte]Session{},
		sessions: map[[sha256.Size]byte]Session{}}
}

// errEntered is for a link that was used, is too old, or never was: the hub does not say which.
var errEntered = parley.Refuse(parley.Unauthenticated, "this link was used already, is older than 10 minutes, or is "+
	"incomplete; `parley console` prints another")

var errNoSession = parley.Refuse(parley.Unauthenticated, "there is no session; `parley console` prints a link that "+
	"begins one")

// ConsoleLink makes a link for a browser of the actor.
func (a *Admin) ConsoleLink(_ context.Context, by Actor) (Link, error) {
	if err := by.may(Observe); err != nil {
		return Link{}, err
	}
	return a.sessions.link(by)
}

// LocalLink makes a link with the role of the hub's own token for its machine; see [Tokens.AddLocal].
func (a *Admin) LocalLink() (Link, error) {
	by, ok := a.c.Tokens.local()
	if !ok {
		return Link{}, errNoSession
	}
	return a.sessions.link(by)
}

// Sessions are those of the hub's console.
func (a *Admin) Sessions() *Sessions { return a.sessions }

func (s *Sessions) link(by Actor) (Link, error) {
	secret, err := s.secret()
	if err != nil {
		return Link{}, err
	}
	by.Via = viaConsole
	v := Session{By: by, Expires: s.now().Add(linkLife)}
	s.mu.Lock()
	defer s.mu.Unlock()
	put(s.links, hashed(secret), v, maxLinks)
	return Link{Path: enterAddress + secret, Name: by.Name, Role: by.Role, Expires: v.Expires}, nil
}

// secret gives 256 random bits in base64url.
func (s *Sessions) secret() (string, error) {
	var b [32]byte
	if _, err := io.ReadFull(s.rnd, b[:]); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(b[:]), nil
}

func hashed(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// put adds a value to a bounded table; the one that expires first makes room.
func put(table map[[sha256.Size]byte]Session, key [sha256.Size]byte, v Session, limit int) {
	if len(table) >= limit {
		first := slices.MinFunc(slices.Collect(maps.Keys(table)), func(x, y [sha256.Size]byte) int {
			return table[x].Expires.Compare(table[y].Expires)
		})
		delete(table, first)
	}
	table[key] = v
}

// Invited gives the actor that a link lets in, and uses nothing up.
func (s *Sessions) Invited(secret string) (Actor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.links[hashed(secret)]
	if !ok || !s.now().Before(v.Expires) || s.tokens.still(v.By) != nil {
		return Actor{}, errEntered
	}
	return v.By, nil
}

// Enter uses a link up, and begins a session for a browser at that network address. It gives the secret of the cookie.
func (s *Sessions) Enter(secret, address string) (cookie string, v Session, err error) {
	if _, err := s.Invited(secret); err != nil {
		return "", v, err
	}
	if cookie, err = s.secret(); err != nil {
		return "", v, err
	}
	form, err := s.secret()
	if err != nil {
		return "", v, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	link, ok := s.links[hashed(secret)]
	if !ok {
		return "", v, errEntered
	}
	delete(s.links, hashed(secret))
	now := s.now()
	v = Session{By: link.By, Form: form, Expires: now.Add(sessionLife), Memory: new(sync.Map), last: now}
	v.By.Address = address
	maps.DeleteFunc(s.sessions, func(_ [sha256.Size]byte, old Session) bool { return !old.lasts(now) })
	put(s.sessions, hashed(cookie), v, maxSessions)
	return cookie, v, nil
}

// Find gives the session of a cookie. With active it counts as used: an unused session ends after an hour.
func (s *Sessions) Find(cookie string, active bool) (Session, error) {
	key := hashed(cookie)
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.sessions[key]
	now := s.now()
	if !ok || !v.lasts(now) {
		delete(s.sessions, key)
		return Session{}, errNoSession
	}
	if err := s.tokens.still(v.By); err != nil {
		delete(s.sessions, key)
		return Session{}, err
	}
	if active {
		v.last = now
		s.sessions[key] = v
	}
	return v, nil
}

// lasts reports whether the session is neither too old nor unused for too long.
func (v *Session) lasts(now time.Time) bool {
	return now.Before(v.Expires) && now.Sub(v.last) < sessionIdle
}

// End ends the session of a cookie.
func (s *Sessions) End(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, hashed(cookie))
}

// During gives a context that ends when the session's token no longer permits all that it did; see [Tokens.During].
func (s *Sessions) During(ctx context.Context, v Session) (context.Context, func()) {
	return s.tokens.During(ctx, v.By)
}

func postConsoleLink(a *Admin, c *call) (any, error) {
	c.status = http.StatusCreated
	return a.ConsoleLink(c.r.Context(), c.by)
}
