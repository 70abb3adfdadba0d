// Package attack sends the requests by which a guest can fill, stop or mislead a hub:
// floods of registrations, manifests, mailboxes, connections and messages,
// and the requests that a web page makes without the consent of its reader.
// The fault tests run each attack alone, `parley bench guests` runs all of
// them at once.
//
// An attack needs no secret of the hub. It makes its own keys: a uAgents key or
// an ASP card costs nothing. It works in a closed loop with few connections,
// leaves the processor to others at least half of the time, and ends after a
// number of requests or with its context. It sends to loopback addresses only.
package attack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/uagents"
)

// Config names the attacked hub and the addresses of the attackers.
type Config struct {
	Hub    string // base URL of the protocols
	Admin  string // base URL of the admin API; "": not attacked
	Target string // uAgents address of an agent for which the hub stands in; some attacks need it

	Clients int           // of each flood; 0: 2
	Pause   time.Duration // of a client after each request; at least as long as the request took
	Reopen  time.Duration // delay before a connection that the hub closed is opened again; 0: 1 s
}

// timeout bounds a request.
const timeout = 15 * time.Second

// An Attack is a guest with several addresses.
type Attack struct {
	c    Config
	from []string       // the attackers' addresses
	webs []*http.Client // one for each address
}

// ErrNotLoopback refuses to attack anything but this machine.
var ErrNotLoopback = errors.New("attack: only a hub at a loopback address is attacked")

// sources gives the addresses from which this system can dial a loopback listener, one
// for each guest.
func sources() []string {
	if runtime.GOOS != "linux" {
		return []string{"127.0.0.1"}
	}
	return []string{"127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"}
}

// New makes an attack. Close ends its connections.
func New(c Config) (*Attack, error) {
	a := &Attack{c: c, from: sources()}
	for _, base := range []string{c.Hub, cmp.Or(c.Admin, c.Hub)} {
		u, err := url.Parse(base)
		if err != nil {
			return nil, fmt.Errorf("attack: %w", err)
		}
		if at, err := netip.ParseAddrPort(u.Host); err != nil || !at.Addr().IsLoopback() || u.Scheme != "http" {
			return nil, fmt.Errorf("%w: %q", ErrNotLoopback, base)
		}
	}
	a.c.Clients, a.c.Reopen = cmp.Or(c.Clients, 2), cmp.Or(c.Reopen, time.Second)
	for _, from := range a.from {
		t := &http.Transport{DialContext: dialer(from).DialContext, MaxIdleConnsPerHost: a.c.Clients,
			DisableCompression: true}
		a.webs = append(a.webs, &http.Client{Timeout: timeout, Transport: t})
	}
	return a, nil
}

func dialer(from string) *net.Dialer {
	return &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: timeout}
}

// Close closes idle connections.
func (a *Attack) Close() {
	for _, web := range a.webs {
		web.CloseIdleConnections()
	}
}

// A Result counts the answers to an attack.
type Result struct {
	Sent    int `json:"sent"`    // requests or connections
	Taken   int `json:"taken"`   // answered 2xx; connections: held to the end
	Refused int `json:"refused"` // other answers, without Later
	Later   int `json:"later"`   // answered "try later": 429, 503 or 507
	Broken  int `json:"broken"`  // without an answer
	Changed int `json:"changed"` // answers or state of other agents that the attack changed

	Status map[int]int `json:"status,omitempty"` // answers by HTTP status
	Bytes  int64       `json:"bytes"`            // of bodies sent

	Err error `json:"-"` // the error that ended the attack early
}

// Add adds the counts of another attack.
func (r *Result) Add(other Result) {
	r.Sent += other.Sent
	r.Taken += other.Taken
	r.Refused += other.Refused
	r.Later += other.Later
	r.Broken += other.Broken
	r.Changed += other.Changed
	r.Bytes += other.Bytes
	for status, n := range other.Status {
		r.status(status, n)
	}
	r.Err = errors.Join(r.Err, other.Err)
}

func (r *Result) status(status, n int) {
	if r.Status == nil {
		r.Status = map[int]int{}
	}
	r.Status[status] += n
}

// answered counts an answer.
func (r *Result) answered(status int) {
	r.status(status, 1)
	switch {
	case status >= 200 && status <= 299:
		r.Taken++
	case isLater(status):
		r.Later++
	default:
		r.Refused++
	}
}

// isLater reports whether an answer asks to try later.
func isLater(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInsufficientStorage:
		return true
	}
	return false
}

func (r Result) String() string {
	s := fmt.Sprintf("sent %d (%.1f MiB), taken %d, refused %d, try later %d, broken %d, changed %d, by status %v",
		r.Sent, float64(r.Bytes)/(1<<20), r.Taken, r.Refused, r.Later, r.Broken, r.Changed, r.Status)
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// tally is a Result that several clients add to.
type tally struct {
	mu sync.Mutex
	r  Result
}

func (t *tally) add(f func(*Result)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f(&t.r)
}

// count counts a request, the bytes of its body, and its answer.
func (t *tally) count(bytes, status int, err error) {
	t.add(func(r *Result) {
		r.Sent++
		r.Bytes += int64(bytes)
		if err != nil {
			r.Broken++
			return
		}
		r.answered(status)
	})
}

// each lets the clients call work in a closed loop: n times together, or, if n is 0,
// until the context ends.
func (a *Attack) each(ctx context.Context, n int, work func(web *http.Client, i int, t *tally) error) Result {
	var t tally
	var next atomic.Int64
	var clients sync.WaitGroup
	for w := range a.c.Clients {
		clients.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if n > 0 && i >= n {
					return
				}
				began := time.Now()
				if err := work(a.webs[(w+i)%len(a.webs)], i, &t); err != nil {
					if ctx.Err() == nil {
						t.add(func(r *Result) { r.Err = errors.Join(r.Err, err) })
					}
					return
				}
				wait(ctx, max(a.c.Pause, time.Since(began)))
			}
		})
	}
	clients.Wait()
	return t.r
}

// flood sends requests; make renders request number i.
func (a *Attack) flood(ctx context.Context, n int, make func(i int) (*request, error)) Result {
	return a.each(ctx, n, func(web *http.Client, i int, t *tally) error {
		r, err := make(i)
		if err == nil {
			a.send(ctx, web, r, t)
		}
		return err
	})
}

// usesOfKey is the number of messages that one self-made key signs.
const usesOfKey = 16

// floodBy is a flood by self-made keys; each key makes uses requests.
func (a *Attack) floodBy(ctx context.Context, n, uses int,
	make func(i int, id *uagents.Identity) (*request, error)) Result {
	var mu sync.Mutex
	var id *uagents.Identity
	var made int
	next := func() (_ *uagents.Identity, err error) {
		mu.Lock()
		defer mu.Unlock()
		if made%uses == 0 {
			id, err = uagents.NewIdentity()
		}
		made++
		return id, err
	}
	return a.flood(ctx, n, func(i int) (*request, error) {
		id, err := next()
		if err != nil {
			return nil, err
		}
		return make(i, id)
	})
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// A request of an attack.
type request struct {
	method, path string
	contentType  string
	header       http.Header
	host         string // "": the hub's
	body         []byte
}

const jsonType = "application/json"

func post(path string, body []byte) *request {
	return &request{method: http.MethodPost, path: path, contentType: jsonType, body: body}
}

// send sends a request, counts its answer and gives it; status 0: no answer.
func (a *Attack) send(ctx context.Context, web *http.Client, r *request, t *tally) (status int, body []byte) {
	status, body, err := a.do(ctx, web, r)
	if ctx.Err() != nil && err != nil {
		return 0, nil // the attack is over
	}
	t.count(len(r.body), status, err)
	return status, body
}

// maxAnswer bounds the bytes of an answer that are read.
const maxAnswer = 4 << 20

// do sends a request.
func (a *Attack) do(ctx context.Context, web *http.Client, r *request) (status int, body []byte, err error) {
	var content io.Reader
	if r.body != nil {
		content = bytes.NewReader(r.body)
	}
	h, err := http.NewRequestWithContext(ctx, r.method, strings.TrimSuffix(a.c.Hub, "/")+r.path, content)
	if err != nil {
		return 0, nil, err
	}
	maps.Copy(h.Header, r.header)
	if r.contentType != "" {
		h.Header.Set("Content-Type", r.contentType)
	}
	h.Host = r.host
	answer, err := web.Do(h)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	return answer.StatusCode, body, err
}

func page(path string) *request { return &request{method: http.MethodGet, path: path} }

// get reads a public page of the hub.
func (a *Attack) get(ctx context.Context, path string) (status int, body []byte, err error) {
	return a.do(ctx, a.webs[0], page(path))
}

// ask sends a request that must be answered with 200, and gives the answer's body.
func (a *Attack) ask(ctx context.Context, r *request) ([]byte, error) {
	status, body, err := a.do(ctx, a.webs[0], r)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("HTTP %d %.200s", status, body)
	}
	return body, err
}
