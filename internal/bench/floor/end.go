package floor

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	secp "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
)

// A Step is one thing that a program at one end of an exchange, which talks only with
// the peers of that end, cannot leave out.
type Step struct {
	Do   Act      `json:"do"`
	With []Scheme `json:"with,omitempty"` // verified on incoming messages, made for outgoing ones
}

// An Act is the work of a step.
type Act string

// The acts. In and Out are a POST of the peer and one of the program, on
// connections that stay open; incoming messages are decoded, outgoing ones encoded.
const (
	In      Act = "in"     // a POST that is answered at once
	Call    Act = "call"   // a POST that Answer answers
	Answer  Act = "answer" // the answer of Call
	Out     Act = "out"    // a POST of the program
	Push    Act = "push"   // an event on the peer's event stream, which stays open
	FromBus Act = "frombus"
	ToBus   Act = "tobus"  // a message on NATS, by a server in the program's process
	Append  Act = "append" // a record is durable
)

// A Scheme is a way to sign.
type Scheme string

// The schemes; each also takes the digest of the signed bytes.
const (
	Ed25519   Scheme = "ed25519"
	P256      Scheme = "p256"
	Secp256k1 Scheme = "secp256k1"
)

// A Plan is one end's part of an exchange, in the order of its steps.
type Plan struct {
	Steps   []Step  `json:"steps"`
	Peers   int     `json:"peers"` // each with one exchange at a time
	Payload int     `json:"payload"`
	Storage Storage `json:"storage"`
	Dir     string  `json:"dir,omitempty"`
}

// Place is the address of a plan's program.
type Place struct {
	HTTP string `json:"http"`
	NATS string `json:"nats"`
}

// said is a message from a peer or the program.
type said struct {
	ID   string `json:"id"`
	Text string `json:"text"`
}

func endPayload(size int) []byte {
	return []byte(`{"id":"` + strings.Repeat("0", 32) + `","text":"` + strings.Repeat("x", max(1, size-60)) + `"}`)
}

// signers have a key of each scheme; they verify their own signatures of one payload,
// and sign the program's messages.
type signers map[Scheme]struct {
	verify func(body, digest []byte) bool
	sign   func(body, digest []byte) error
}

func newSigners(payload []byte) (signers, error) {
	digest := sha256.Sum256(payload)
	public, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	p256Sig, err := ecdsa.SignASN1(rand.Reader, p256, digest[:])
	if err != nil {
		return nil, err
	}
	k1, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		return nil, err
	}
	edSig, k1Sig, k1Public := ed25519.Sign(ed, payload), secp.Sign(k1, digest[:]), k1.PubKey()
	return signers{
		Ed25519: {
			func(body, _ []byte) bool { return ed25519.Verify(public, body, edSig) },
			func(body, _ []byte) error { ed25519.Sign(ed, body); return nil },
		},
		P256: {
			func(_, digest []byte) bool { return ecdsa.VerifyASN1(&p256.PublicKey, digest, p256Sig) },
			func(_, digest []byte) error { _, err := ecdsa.SignASN1(rand.Reader, p256, digest); return err },
		},
		Secp256k1: {
			func(_, digest []byte) bool { return k1Sig.Verify(digest, k1Public) },
			func(_, digest []byte) error { secp.Sign(k1, digest); return nil },
		},
	}, nil
}

func (s signers) verify(body []byte, with []Scheme) error {
	for _, w := range with {
		if digest := sha256.Sum256(body); !s[w].verify(body, digest[:]) {
			return fmt.Errorf("floor: a signature by %s does not verify", w)
		}
	}
	return nil
}

func (s signers) sign(body []byte, with []Scheme) error {
	for _, w := range with {
		digest := sha256.Sum256(body)
		if err := s[w].sign(body, digest[:]); err != nil {
			return err
		}
	}
	return nil
}

// lane is the sequence of exchanges with one peer, in the program.
type lane struct {
	name   string
	in     chan arrival
	stream chan *pusher // capacity 1: where Push writes
	peer   string       // URL of the peer's listener
}

type arrival struct {
	body []byte
	done chan []byte // gets the answer of Answer; nil if the request is answered at once
}

type pusher struct {
	w   io.Writer
	ctl *http.ResponseController
}

// bare is the program at an end.
type bare struct {
	plan    Plan
	keys    signers
	payload []byte
	a       *Appender
	bus     *nats.Conn
	web     *http.Client
	lanes   []*lane
}

// Serve runs the program of a plan until ctx ends. It passes its place to ready, and
// posts to the peers' listener, whose URL the request to /begin brings.
func Serve(ctx context.Context, plan Plan, ready func(Place) error) (err error) {
	dir, err := os.MkdirTemp(plan.Dir, "parley-floor-")
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	a, err := NewAppender(plan.Storage, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	payload := endPayload(plan.Payload)
	keys, err := newSigners(payload)
	if err != nil {
		return err
	}
	front, bus, stopNATS, err := startNATS("floor-bus")
	if err != nil {
		return err
	}
	defer stopNATS()
	r := &bare{plan: plan, keys: keys, payload: payload, a: a, bus: bus,
		web: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	defer r.web.CloseIdleConnections()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var work sync.WaitGroup
	failed := make(chan error, plan.Peers+1)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /begin", func(w http.ResponseWriter, q *http.Request) {
		peer, err := io.ReadAll(io.LimitReader(q.Body, 1000))
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		for _, l := range r.lanes {
			l.peer = string(peer)
			work.Go(func() { failed <- r.run(ctx, l) })
		}
	})
	for i := range plan.Peers {
		l := &lane{name: strconv.Itoa(i), in: make(chan arrival, 4), stream: make(chan *pusher, 1)}
		r.lanes = append(r.lanes, l)
		mux.HandleFunc("POST /in/"+l.name, func(w http.ResponseWriter, q *http.Request) { r.take(ctx, l, w, q) })
		mux.HandleFunc("GET /events/"+l.name, func(w http.ResponseWriter, q *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			p := &pusher{w, http.NewResponseController(w)}
			if p.ctl.Flush() != nil {
				return // the peer is gone
			}
			l.stream <- p
			select {
			case <-q.Context().Done():
			case <-ctx.Done():
			}
		})
		if _, err := bus.Subscribe("floor.in."+l.name,
			func(m *nats.Msg) { l.in <- arrival{body: m.Data} }); err != nil {
			return fmt.Errorf("floor: %w", err)
		}
	}
	if err := bus.Flush(); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	s, host, err := serve(mux)
	if err != nil {
		return err
	}
	err = ready(Place{HTTP: "http://" + host, NATS: front.ClientURL()})
	if err == nil {
		select {
		case err = <-failed:
		case <-ctx.Done():
		}
	}
	stop()
	_ = s.Close() // the run is over
	work.Wait()
	return err
}

// take handles a POST of a peer.
func (r *bare) take(ctx context.Context, l *lane, w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, 1<<20))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	a := arrival{body: body}
	if q.Header.Get("Floor-Call") != "" {
		a.done = make(chan []byte, 1)
	}
	l.in <- a
	answer := []byte(`{"ok":true}`)
	if a.done != nil {
		select {
		case answer = <-a.done:
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(answer) // if this fails, the peer times out
}

// run repeats the plan in one lane.
func (r *bare) run(ctx context.Context, l *lane) error {
	var events *pusher
	var call chan []byte
	for n := 0; ctx.Err() == nil; n++ {
		var m said
		body := r.payload
		for _, s := range r.plan.Steps {
			switch s.Do {
			case In, Call, FromBus:
				select {
				case a := <-l.in:
					if err := r.keys.verify(a.body, s.With); err != nil {
						return err
					}
					if err := json.Unmarshal(a.body, &m); err != nil {
						return err
					}
					body = a.body
					if s.Do == Call {
						call = a.done
					}
				case <-ctx.Done():
					return nil
				}
				continue
			case Append:
				if err := r.a.Append(ctx, body); err != nil {
					return quiet(ctx, err)
				}
				continue
			}
			out, err := json.Marshal(m)
			if err == nil {
				err = r.keys.sign(out, s.With)
			}
			if err != nil {
				return err
			}
			switch s.Do {
			case Answer:
				call <- out
			case Out:
				err = post(ctx, r.web, l.peer+"/out/"+l.name, out, "")
			case ToBus:
				err = r.bus.Publish("floor.out."+l.name, out)
			case Push:
				if events == nil {
					select {
					case events = <-l.stream:
					case <-ctx.Done():
						return nil
					}
				}
				if _, err = events.w.Write(append(append([]byte("event: message\ndata: "), out...),
					"\n\n"...)); err == nil {
					err = events.ctl.Flush()
				}
			}
			if err != nil {
				return quiet(ctx, err)
			}
		}
		if n == 0 {
			runtime.GC() // the set-up's garbage is no part of an exchange
		}
	}
	return nil
}

// quiet drops an error that the end of ctx caused.
func quiet(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func post(ctx context.Context, web *http.Client, url string, body []byte, header string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	q.Header.Set("Content-Type", "application/json")
	if header != "" {
		q.Header.Set(header, "1")
	}
	a, err := web.Do(q)
	if err != nil {
		return err
	}
	defer a.Body.Close()
	if _, err := io.Copy(io.Discard, a.Body); err != nil {
		return err
	}
	if a.StatusCode != http.StatusOK {
		return fmt.Errorf("floor: HTTP %d", a.StatusCode)
	}
	return nil
}

// Peers are the far ends of a plan's exchanges.
type Peers struct {
	plan    Plan
	place   Place
	payload []byte
	web     *http.Client
	server  *http.Server
	bus     *nats.Conn
	lanes   []*peerLane
	work    sync.WaitGroup
	stop    context.CancelFunc
}

type peerLane struct {
	name    string
	arrived chan struct{}
	called  chan error
}

// Connect connects the peers of a plan to its program, and starts the plan.
func Connect(ctx context.Context, plan Plan, at Place) (_ *Peers, err error) {
	p := &Peers{plan: plan, place: at, payload: endPayload(plan.Payload),
		web: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256}}}
	ctx, p.stop = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if p.bus, err = nats.Connect(at.NATS); err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	pushes := slices.ContainsFunc(plan.Steps, func(s Step) bool { return s.Do == Push })
	mux := http.NewServeMux()
	for i := range plan.Peers {
		l := &peerLane{name: strconv.Itoa(i), arrived: make(chan struct{}, 16), called: make(chan error, 1)}
		p.lanes = append(p.lanes, l)
		mux.HandleFunc("POST /out/"+l.name, func(w http.ResponseWriter, q *http.Request) {
			if _, err := io.Copy(io.Discard, q.Body); err != nil {
				panic(http.ErrAbortHandler)
			}
			_, _ = w.Write(p.payload) // if this fails, the program times out
			l.arrived <- struct{}{}
		})
		if _, err := p.bus.Subscribe("floor.out."+l.name, func(*nats.Msg) { l.arrived <- struct{}{} }); err != nil {
			return nil, fmt.Errorf("floor: %w", err)
		}
		if pushes {
			if err := p.listen(ctx, at.HTTP+"/events/"+l.name, l.arrived); err != nil {
				return nil, err
			}
		}
	}
	if err := p.bus.Flush(); err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	var host string
	if p.server, host, err = serve(mux); err != nil {
		return nil, err
	}
	return p, post(ctx, p.web, at.HTTP+"/begin", []byte("http://"+host), "")
}

// listen reads an event stream.
func (p *Peers) listen(ctx context.Context, url string, arrived chan<- struct{}) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	a, err := p.web.Do(q)
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	p.work.Go(func() {
		defer a.Body.Close()
		lines := bufio.NewScanner(a.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), "data:") {
				arrived <- struct{}{}
			}
		}
	})
	return nil
}

// Exchange does the peers' part of one exchange of lane i.
func (p *Peers) Exchange(ctx context.Context, i int) error {
	l := p.lanes[i]
	for _, s := range p.plan.Steps {
		var err error
		switch s.Do {
		case In:
			err = post(ctx, p.web, p.place.HTTP+"/in/"+l.name, p.payload, "")
		case Call:
			go func() { l.called <- post(ctx, p.web, p.place.HTTP+"/in/"+l.name, p.payload, "Floor-Call") }()
		case Answer:
			select {
			case err = <-l.called:
			case <-ctx.Done():
				err = ctx.Err()
			}
		case FromBus:
			err = p.bus.Publish("floor.in."+l.name, p.payload)
		case Out, Push, ToBus:
			select {
			case <-l.arrived:
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		if err != nil {
			return fmt.Errorf("floor: %s: %w", s.Do, err)
		}
	}
	return nil
}

// Close ends the peers.
func (p *Peers) Close() {
	p.stop()
	if p.bus != nil {
		p.bus.Close()
	}
	if p.server != nil {
		_ = p.server.Close() // the run is over
	}
	p.work.Wait()
	p.web.CloseIdleConnections()
}
