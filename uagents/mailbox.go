package uagents

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A MailboxItem is an envelope that waits for its agent.
type MailboxItem struct {
	UUID       string // v4
	Envelope   []byte // JSON text of the envelope, as received
	ReceivedAt time.Time
	ExpiresAt  time.Time
}

// A MailboxStore keeps mailboxes. An item must survive a restart once Put returned.
type MailboxStore interface {
	// Has reports whether the agent has a mailbox; Create makes one, if there
	// is none.
	Has(ctx context.Context, address string) (bool, error)
	Create(ctx context.Context, address string) error
	// Put appends an item, once for each key: prior reports that the key is known.
	// The store remembers the key until the given time, even when the item is deleted
	// before. The error is ErrFull when there is no room.
	Put(ctx context.Context, address, key string, until time.Time, item MailboxItem) (prior bool, err error)
	// List gives items in order of arrival, without those past now.
	List(ctx context.Context, address string, offset, limit int, now time.Time) ([]MailboxItem, error)
	// Get gives an item, or nil. Delete reports whether there was one.
	Get(ctx context.Context, address, uuid string, now time.Time) (*MailboxItem, error)
	Delete(ctx context.Context, address, uuid string) (bool, error)
}

// A MailboxServer is the HTTP API of mailboxes: POST
// /v2/agents/mailbox/submit and GET, DELETE under
// /v2/agents/{address}/mailbox. Envelopes are verified before they are stored,
// because agents never delete an item that fails their own verification. Agents show
// an attestation token; the first token makes the mailbox.
type MailboxServer struct {
	Store    MailboxStore // must be set; [MemoryMailbox] is one
	Verifier *Verifier    // as in [Server]
	Now      func() time.Time
	// Allow may refuse to make a mailbox for an agent that proved its key.
	Allow func(ctx context.Context, address string) error
	// Proved is called for every request by which an agent proved its key.
	Proved func(ctx context.Context, address string)
	// Accept is that of [Server], for an embedder that stores envelopes itself. When
	// Accept is set, the server does not call Store.Put, Models and Unsigned.
	Accept func(ctx context.Context, r *Request) (prior bool, err error)
	// Refused is that of [Server].
	Refused func(ctx context.Context, r *Refusal) (ref string)
	// Models is that of [Agent]: a message that does not fit would stop the agent.
	Models func(digest string) *Model
	// Unsigned is that of [Agent]; nil: unsigned senders reach no mailbox.
	Unsigned func(digest string) bool

	Retention time.Duration // of an envelope without expiry; default 24 h
	MaxList   int           // items of one answer; default 100
	MaxBytes  int           // of an answer with several items; default 8 MiB, half of what [MailboxClient] takes

	once   sync.Once
	server *Server
	mux    *http.ServeMux
}

// ErrMailboxSync refuses a sync request to a mailbox, before it is stored: the agent
// cannot answer at once.
var ErrMailboxSync = newError("sync", "mailbox_sync", http.StatusBadRequest,
	"A mailbox cannot answer a synchronous request")

func (s *MailboxServer) start() {
	s.once.Do(func() {
		s.server = &Server{Verifier: s.Verifier, Now: s.Now, Accept: s.Accept, Refused: s.Refused}
		if s.Accept == nil {
			s.server.Accept = s.accept
		}
		s.server.start()
		s.mux = http.NewServeMux()
		s.mux.HandleFunc("POST "+agentsAPI+"/mailbox/submit", s.submit)
		s.mux.Handle("GET "+agentsAPI+"/{address}/mailbox", s.forOwner(s.list))
		s.mux.Handle("GET "+agentsAPI+"/{address}/mailbox/{uuid}", s.forOwner(s.get))
		s.mux.Handle("DELETE "+agentsAPI+"/{address}/mailbox/{uuid}", s.forOwner(s.delete))
		s.mux.Handle("/", answerer(noSuchPath))
	})
}

// ServeHTTP implements http.Handler.
func (s *MailboxServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.start()
	onlyJSON(s.mux).ServeHTTP(w, r)
}

func (s *MailboxServer) submit(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get(headerConnection) == "sync" {
		s.server.refuse(w, r, &Refusal{Err: ErrMailboxSync})
		return
	}
	s.server.post(w, r)
}

// accept delivers an envelope: it puts the envelope into the mailbox of the target.
func (s *MailboxServer) accept(ctx context.Context, r *Request) (bool, error) {
	if r.Refusal != nil {
		return false, nil
	}
	var agent *Agent
	has, err := s.Store.Has(ctx, r.Target)
	if has {
		agent = &Agent{Address: r.Target, Models: s.Models, Unsigned: s.Unsigned}
	}
	if err == nil {
		err = r.Admit(agent)
	}
	if err != nil || r.Refusal != nil {
		return false, err
	}
	return s.Store.Put(ctx, r.Target, r.ReplayKey(), r.Until, s.Item(r.Verified))
}

// Item makes the mailbox item of an envelope. It expires with the envelope.
func (s *MailboxServer) Item(v *Verified) MailboxItem {
	s.start()
	now := s.server.now()
	item := MailboxItem{
		UUID: uuid.NewString(), Envelope: v.Raw(), ReceivedAt: now,
		ExpiresAt: now.Add(cmp.Or(s.Retention, 24*time.Hour)),
	}
	if at, ok := v.ExpiresAt(); ok {
		item.ExpiresAt = at
	}
	return item
}

// forOwner makes an [answerer] of a function that gets the address in the path, after
// the agent's token is verified.
func (s *MailboxServer) forOwner(f func(r *http.Request, address string) (*node, error)) answerer {
	return func(_ http.ResponseWriter, r *http.Request) (*node, error) {
		address := r.PathValue("address")
		if _, err := ParseAddress(address); err != nil {
			return nil, ErrNotFound
		}
		if _, err := (TokenVerifier{Now: s.server.now}).VerifyHeader(r.Header.Get("Authorization"), address); err != nil {
			return nil, err
		}
		if s.Proved != nil {
			s.Proved(r.Context(), address)
		}
		return f(r, address)
	}
}

func (s *MailboxServer) list(r *http.Request, address string) (*node, error) {
	ctx := r.Context()
	has, err := s.Store.Has(ctx, address)
	if err == nil && !has {
		if s.Allow != nil {
			err = s.Allow(ctx, address)
		}
		if err == nil {
			err = s.Store.Create(ctx, address)
		}
	}
	if err != nil {
		return nil, err
	}
	most := cmp.Or(s.MaxList, 100)
	limit := queryInt(r, "limit", most)
	items, err := s.Store.List(ctx, address, queryInt(r, "offset", 0), min(limit, most), s.server.now())
	if err != nil {
		return nil, err
	}
	out, size := list(), 0
	for _, item := range items {
		size += len(item.Envelope) + 256
		if size > cmp.Or(s.MaxBytes, 8<<20) && len(out.vals) > 0 {
			break // the next poll gets the rest, after the agent deleted these
		}
		n, err := itemNode(item)
		if err != nil {
			return nil, err
		}
		out.vals = append(out.vals, n)
	}
	return out, nil
}

func queryInt(r *http.Request, name string, otherwise int) int {
	n, err := strconv.Atoi(r.URL.Query().Get(name))
	if err != nil || n < 0 {
		return otherwise
	}
	return n
}

// itemNode is an item as agents read it. The envelope is encoded anew; the texts that
// the signature covers stay the same.
func itemNode(item MailboxItem) (*node, error) {
	e, err := Decode(item.Envelope)
	if err != nil {
		return nil, err
	}
	b, err := e.Encode()
	if err != nil {
		return nil, err
	}
	envelope, err := parse(b)
	if err != nil {
		return nil, err
	}
	n := object("uuid", item.UUID)
	n.set("envelope", envelope)
	n.set("received_at", dateNode(item.ReceivedAt))
	n.set("expires_at", dateNode(item.ExpiresAt))
	return n, nil
}

func (s *MailboxServer) get(r *http.Request, address string) (*node, error) {
	item, err := s.Store.Get(r.Context(), address, r.PathValue("uuid"), s.server.now())
	switch {
	case err != nil:
		return nil, err
	case item == nil:
		return nil, ErrNotFound
	}
	return itemNode(*item)
}

func (s *MailboxServer) delete(r *http.Request, address string) (*node, error) {
	was, err := s.Store.Delete(r.Context(), address, r.PathValue("uuid"))
	if err == nil && !was {
		err = ErrNotFound
	}
	return nothing(), err
}
