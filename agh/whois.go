package agh

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// asked records a whois request with its reply subject, so that answers are
// expected, and answers for the hosted peers that match. A directed request is
// answered for any query. The requester never answers itself.
func (r *Router) asked(res *Result, e *Envelope, q *Whois, reply string, now time.Time) {
	_, filtered, _ := extStrings(e, ExtFilter)
	r.asks.note(e, filtered, reply, now)
	res.Relay = r.Relay && (e.To == "" || r.local(e.WorkspaceID, e.Channel, e.To) == nil)
	for _, l := range r.channel(e.WorkspaceID, e.Channel) {
		switch id := l.Card.PeerID; {
		case id == e.From, e.To != "" && e.To != id, e.To == "" && !l.Card.matches(q.Query):
			continue
		}
		if out, err := r.answer(l, e); err == nil {
			res.Published = append(res.Published, out)
		}
	}
}

// answer makes the response of one hosted peer. It has the catalogue only if the
// request asks for it (RFC 003 §8.3): all of it, or the filtered capabilities in
// catalogue order; a filter that is no list of strings selects none. With a
// filter the card lists the selected capabilities.
func (r *Router) answer(l *Local, q *Envelope) (Outgoing, error) {
	e := &Envelope{To: q.From, ReplyTo: q.ID, TraceID: q.TraceID}
	card := l.Card
	include, _, ok := extStrings(q, ExtInclude)
	if ok && slices.Contains(include, IncludeValue) {
		ids, present, _ := extStrings(q, ExtFilter)
		chosen := []Capability{}
		for _, c := range l.Catalog {
			if !present || slices.Contains(ids, c.ID) {
				chosen = append(chosen, c)
			}
		}
		docs := make([]jsonx.Value, len(chosen))
		for i := range chosen {
			var err error
			docs[i], err = chosen[i].encode()
			if err != nil {
				return Outgoing{}, err
			}
		}
		if err := e.SetExt(ExtCatalog, map[string]any{"capabilities": docs}); err != nil {
			return Outgoing{}, err
		}
		if present {
			narrow, err := NewCard(card.PeerID, card.DisplayName, chosen)
			if err != nil {
				return Outgoing{}, err
			}
			card = narrow
		}
	}
	if err := e.SetContent(&Whois{Type: WhoisResponse, Card: card}); err != nil {
		return Outgoing{}, err
	}
	return r.emit(l, e)
}

// asks remembers whois requests: an answer without a request could replace a card.
// It is bounded: the oldest request is dropped, and each requester has a share.
type asks struct {
	mu    sync.Mutex
	byKey map[askKey]ask
	order []askKey
	count map[peerKey]int
}

type askKey struct {
	peerKey          // the requester
	id      [16]byte // hash of the request's id, which may be long
}

type ask struct {
	to       string // the addressed peer, "" for all
	filtered bool
	reply    string // see [Inbound.Reply]
	until    time.Time
}

func askKeyOf(e *Envelope, asker, id string) askKey {
	sum := sha256.Sum256([]byte(id))
	return askKey{peerKey{channelKey{e.WorkspaceID, e.Channel}, asker}, [16]byte(sum[:16])}
}

// Bounds of asks: how long an answer may take, how many requests are open.
const (
	askTime     = time.Minute
	maxAsks     = 1 << 16
	maxAsksEach = 1 << 10
)

func (a *asks) note(e *Envelope, filtered bool, reply string, now time.Time) {
	k := askKeyOf(e, e.From, e.ID)
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.order) > 0 {
		old := a.order[0]
		if len(a.order) < maxAsks && now.Before(a.byKey[old].until) {
			break
		}
		a.order = a.order[1:]
		delete(a.byKey, old)
		a.count[old.peerKey]--
		if a.count[old.peerKey] == 0 {
			delete(a.count, old.peerKey)
		}
	}
	if a.byKey == nil {
		a.byKey, a.count = map[askKey]ask{}, map[peerKey]int{}
	}
	if _, ok := a.byKey[k]; ok || a.count[k.peerKey] >= maxAsksEach {
		return
	}
	a.byKey[k] = ask{to: e.To, filtered: filtered, reply: reply, until: now.Add(askTime)}
	a.order = append(a.order, k)
	a.count[k.peerKey]++
}

// find gives an open request of the workspace and channel of e.
func (a *asks) find(e *Envelope, asker, id string, now time.Time) (ask, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	q, ok := a.byKey[askKeyOf(e, asker, id)]
	if !ok || !now.Before(q.until) {
		return ask{}, false
	}
	return q, true
}

// match finds the request that a response answers.
func (a *asks) match(e *Envelope, now time.Time) (ask, bool) {
	q, ok := a.find(e, e.To, e.ReplyTo, now)
	return q, ok && (q.to == "" || q.to == e.From)
}
