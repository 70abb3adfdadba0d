package node

import (
	"cmp"
	"container/list"
	"io"
	"net/http"
	"time"

	"github.com/parley-hub/parley/policy"
)

// door is the first handler of every request. It finds the caller, refuses pages of
// foreign origins, bounds the time and memory of the body, answers a refused request
// before its body has arrived, and delays answers to guests that ask too often.
type door struct {
	http.Handler
	protocols *Node         // the node of a protocol listener; nil: the admin API, which checks origins itself
	within    time.Duration // for a body to arrive
	guests    *policy.Guests
	all       *bodies       // of enrolled agents
	near      *bodies       // of guests at sources of enrolled agents
	few       *bodies       // of other guests
	hurry     chan struct{} // closed when the node stops
}

// smallBody is how many bytes of a body are not counted, so that large bodies
// of others never keep a small message waiting.
const smallBody = 32 << 10

// ServeHTTP implements http.Handler.
func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if n := d.protocols; n != nil {
		n.behindProxy(r)
		if n.foreign(r) {
			n.refuseForeign(w, r)
			return
		}
	}
	c, caller := callerOf(r)
	// One context for all requests of a connection.
	if c == nil || c.proxy {
		r = r.WithContext(policy.WithCaller(r.Context(), caller))
	}
	if r.ContentLength != 0 {
		d.serveBody(w, r, c, caller)
		return
	}
	c.count(+1, 0)
	defer c.count(-1, 0)
	d.Handler.ServeHTTP(w, r)
	d.pace(r, c, caller, 0)
}

// callerOf finds the connection of a request, nil if it is unknown, and the caller. A
// trusted proxy's connection has many callers.
func callerOf(r *http.Request) (*conn, *policy.Caller) {
	c, _ := r.Context().Value(connKey{}).(*conn)
	if c != nil && !c.proxy {
		return c, c.caller
	}
	return c, policy.NewCaller(policy.Source(r.RemoteAddr), nil)
}

// serveBody serves a request that has a body.
func (d *door) serveBody(w http.ResponseWriter, r *http.Request, c *conn, caller *policy.Caller) {
	b := &body{ReadCloser: r.Body, c: c, from: d.few, began: time.Now(), within: d.within,
		rc: http.NewResponseController(w)}
	switch {
	case caller.Vouched():
		b.from = d.all
	case c != nil && c.isNeighbor():
		b.from = d.near
	}
	// If the transport has no deadlines, the server's own bounds remain.
	_ = b.rc.SetReadDeadline(b.began.Add(d.within))
	r.Body = b
	c.count(+1, +1)
	defer b.end()
	d.Handler.ServeHTTP(&earlyWriter{w, b}, r)
	d.pace(r, c, caller, b.n)
	if !b.here {
		b.linger()
	}
}

// pace delays the answer to a guest that asks too often.
func (d *door) pace(r *http.Request, c *conn, caller *policy.Caller, size int64) {
	if caller.Vouched() {
		return
	}
	wait := d.guests.Pace(caller.Source, size)
	if wait == 0 {
		return
	}
	var gone chan struct{}
	if c != nil {
		gone = c.gone
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
	case <-gone: // the server notices only once the body has arrived
	case <-r.Context().Done():
	case <-d.hurry:
	}
}

// body is the body of a request. It has to arrive in time; http.Server's
// ReadTimeout would go on after that and end long answers.
type body struct {
	io.ReadCloser
	c      *conn // nil: unknown
	rc     *http.ResponseController
	from   *bodies
	began  time.Time
	within time.Duration
	here   bool  // the whole body has arrived
	n      int64 // bytes that arrived

	// Under from.mu.
	held int64         // bytes that are counted
	at   *list.Element // in from.reading; nil: not in it
	cut  bool
	// waits: the body is not slow, but waits for room.
	waits bool
}

func (b *body) end() {
	reads := 0
	if !b.here {
		reads = -1
	}
	b.c.count(-1, reads)
	b.from.release(b)
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	if b.n > smallBody && n > 0 && !b.from.hold(b, int64(n)) {
		return n, errCut
	}
	if err == io.EOF && !b.here {
		b.here = true
		b.from.arrived(b)
		b.c.count(0, -1)
		_ = b.rc.SetReadDeadline(time.Time{}) // an error means that the connection is gone; nothing reads it any more
	}
	return n, err
}

// The time and the bytes for the rest of a refused body.
const (
	lingerFor   = 500 * time.Millisecond
	lingerBytes = 8 << 20
)

// linger sends the answer and discards the rest of the body: a client that is cut off
// while it writes may never see the answer.
func (b *body) linger() {
	_ = b.rc.SetReadDeadline(b.began) // where nothing was written yet, the server waits for the body before it flushes
	if b.rc.Flush() != nil || b.rc.SetReadDeadline(time.Now().Add(lingerFor)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, b.ReadCloser, lingerBytes) // the connection ends in any case
}

// earlyWriter answers at once although the body has not been read to its end. Without it
// the server would wait for the rest of the body. The connection ends.
type earlyWriter struct {
	http.ResponseWriter
	b *body
}

func (w *earlyWriter) hasten() {
	if !w.b.here {
		_ = w.b.rc.SetReadDeadline(w.b.began) // the server skips received bytes, and waits for no more
	}
}

// WriteHeader implements http.ResponseWriter.
func (w *earlyWriter) WriteHeader(status int) {
	w.hasten()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *earlyWriter) Write(p []byte) (int, error) {
	w.hasten()
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *earlyWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// door puts the door before a handler.
func (n *Node) door(h http.Handler, protocols bool) http.Handler {
	d := &door{Handler: h, within: cmp.Or(n.c.BodyTimeout, time.Minute), guests: n.guests,
		all: n.bodies[0], near: n.bodies[1], few: n.bodies[2], hurry: n.hurry}
	if protocols {
		d.protocols = n
	}
	return d
}
