package pairs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

// Protocols are the five, in the order of the tables.
var Protocols = []string{"samvad", "uagents", "a2e", "agh", "asp"}

// Where the peers of AGH meet, and the domain of the hub's ASP stand-ins.
const (
	Workspace = "pairs"
	Channel   = "square"
	Domain    = "pairs.example"
)

// A Place is where a hub is found.
type Place struct {
	HTTP string // base URL of the protocols over HTTP
	AGH  string // URL of the NATS listener

	// Dial connects to the host of HTTP, where that is a name which stands for
	// several nodes, of which this place is one; nil: as usual.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	Now func() time.Time // the clock of the peers, where the hub has one of its own; nil: time.Now
	Log *slog.Logger     // of the peers; nil: slog.Default()
}

// At is the place of a node of this process.
func At(n *node.Node) Place {
	a := n.Addresses()
	return Place{HTTP: a.HTTP, AGH: a.AGH}
}

// A Peer is an agent of one protocol. Its methods may be called from several
// goroutines.
type Peer interface {
	Name() string     // in the directory
	Protocol() string // which it speaks
	// Agent is what the configuration of a hub says of it. Files that are
	// named there are written to dir.
	Agent(dir string) (node.Agent, error)
	// Join brings it to a hub: from then on it can ask and, unless away, is
	// asked. It may be called again, for another hub or after Leave.
	Join(ctx context.Context, at Place, away bool) error
	// Leave ends what it does at the hub, as if its process had ended.
	Leave()
	// Ask asks another agent and waits for the answer. A failure or a refusal
	// is an [*Failure], in the words in which it arrived. When ctx ends, the
	// peer says so where its protocol has words for it.
	Ask(ctx context.Context, q Question) (Answer, error)
	// Tell says something to which no answer is expected.
	Tell(ctx context.Context, to Peer, text string) error
	// Heard gives what the peer is told and asked, in the order of arrival.
	Heard() <-chan Heard
}

// A Question to another agent.
type Question struct {
	To     Peer
	Text   string
	Events func(string) // is called with every piece ahead of the answer; may be nil

	// Patience is how long the peer says that it waits, where its protocol has
	// words for it; 0: until the end of the context.
	Patience time.Duration

	Taken func() // is called when the hub has taken the question; may be nil
}

func (q Question) taken() {
	if q.Taken != nil {
		q.Taken()
	}
}

// An Answer to a question.
type Answer struct {
	Text string
	From string // how the answer named its sender
}

// Heard is something that reached a peer.
type Heard struct {
	ID         string // by which the peer would recognise it, should it come again; "" where there is none
	Text       string
	Cancel     bool   // it takes back what was asked before
	Provenance string // what the hub states about the origin, as it stands; "" where it states nothing
	Raw        []byte // the envelope as it arrived; nil where there is none
	Trace      string
	Deadline   time.Time
	Attempt    int // 0: it is not said
}

// A Failure is an answer that says that there is none.
type Failure struct {
	Text    string
	Refused bool // the protocol tells refusals from failures, and it was one
}

func (f *Failure) Error() string { return f.Text }

// New makes a peer with the given name, which is its name in the directory,
// too. Away or not, it has no connection before Join.
func New(protocol, name string) (Peer, error) {
	switch protocol {
	case "samvad":
		return newSamvad(name)
	case "uagents":
		return newUAgents(name)
	case "a2e":
		return newA2E(name), nil
	case "agh":
		return newAGH(name), nil
	case "asp":
		return newASP(name)
	}
	return nil, fmt.Errorf("pairs: there is no protocol %q", protocol)
}

// Configure adds to c what a hub needs to know of the peers: who they are, and
// that they are on this machine. They are exposed as c says of an agent of their
// name, else everywhere. Files are written to dir.
func Configure(c *node.Config, dir string, peers ...Peer) error {
	c.Listen.HTTP, c.Listen.AGH = cmp.Or(c.Listen.HTTP, "127.0.0.1:0"), cmp.Or(c.Listen.AGH, "127.0.0.1:0")
	c.Policy.Assurance = cmp.Or(c.Policy.Assurance, "session") // A2E and AGH prove connections, not messages
	c.Network.Allow = append(c.Network.Allow, "loopback")
	c.Limits.SenderRate = -1
	c.A2E.Sessions = 1 << 20
	c.ASP.Domain = cmp.Or(c.ASP.Domain, Domain)
	if c.AGH.Users == nil {
		c.AGH.Users = map[string]node.AGHUser{}
	}
	c.AGH.Users["pairs"] = node.AGHUser{Token: aghToken, Peers: []string{"*"}, Workspaces: []string{Workspace}}
	if c.AGH.Workspaces == nil {
		c.AGH.Workspaces = map[string]node.AGHWorkspace{}
	}
	c.AGH.Workspaces[Workspace] = node.AGHWorkspace{Channels: []string{Channel}}
	if c.Agents == nil {
		c.Agents = map[string]node.Agent{}
	}
	for _, p := range peers {
		a, err := p.Agent(dir)
		if err != nil {
			return fmt.Errorf("pairs: %s: %w", p.Name(), err)
		}
		a.Expose = []string{"all"}
		if known, ok := c.Agents[p.Name()]; ok {
			a.Expose = known.Expose
		}
		c.Agents[p.Name()] = a
	}
	return nil
}

// common is what all peers are made of.
type common struct {
	name, protocol string
	heard          chan Heard

	mu   sync.Mutex
	at   Place
	ctx  context.Context // of what it does at the hub
	stop context.CancelFunc
	work sync.WaitGroup
	web  *http.Client
	gate chan struct{} // closed when what is to come later may come

	around func(http.RoundTripper) http.RoundTripper // what it sends by HTTP; nil: nothing. Set before Join
}

// maxHeard is how much a peer hears before somebody reads it; the rest is lost.
const maxHeard = 1 << 16

func newCommon(protocol, name string) common {
	return common{name: name, protocol: protocol, heard: make(chan Heard, maxHeard), gate: make(chan struct{}),
		ctx: context.Background(), stop: func() {}, web: http.DefaultClient}
}

func (c *common) Name() string        { return c.name }
func (c *common) Protocol() string    { return c.protocol }
func (c *common) Heard() <-chan Heard { return c.heard }

// begin ends what was before, and gives the context of what begins.
func (c *common) begin(at Place) context.Context {
	c.end()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = at
	c.ctx, c.stop = context.WithCancel(context.Background())
	var transport http.RoundTripper = &http.Transport{MaxIdleConnsPerHost: 256, DialContext: at.Dial}
	if c.around != nil {
		transport = c.around(transport)
	}
	c.web = &http.Client{Transport: transport}
	return c.ctx
}

func (c *common) end() {
	c.mu.Lock()
	c.stop()
	web := c.web
	c.mu.Unlock()
	c.work.Wait()
	if web != http.DefaultClient {
		web.CloseIdleConnections()
	}
}

func (c *common) place() (Place, *http.Client) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at, c.web
}

func (c *common) now() time.Time {
	if at, _ := c.place(); at.Now != nil {
		return at.Now()
	}
	return time.Now()
}

// until is when a peer that asks stops waiting, by its own clock.
func (c *common) until(ctx context.Context, q Question) (time.Time, bool) {
	if q.Patience > 0 {
		return c.now().Add(q.Patience), true
	}
	d, ok := ctx.Deadline()
	return c.now().Add(time.Until(d)), ok
}

// act does what a text asks for.
func (c *common) act(ctx context.Context, text string, piece func(string) error) (string, error) {
	rest, ok := strings.CutPrefix(text, "later ")
	if !ok {
		if rest, ok = strings.CutPrefix(text, "begin "); ok {
			if err := piece("begun"); err != nil {
				return "", err
			}
		}
	}
	if ok {
		c.mu.Lock()
		gate := c.gate
		c.mu.Unlock()
		select {
		case <-gate:
			text = rest
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	return act(ctx, text, piece)
}

// A responder says in a protocol what a peer does about a request.
type responder struct{ piece, fail, complete func(text string) error }

// respond does what a text asks for. A request that was cancelled gets no outcome.
func (c *common) respond(ctx context.Context, text string, r responder) error {
	answer, err := c.act(ctx, text, r.piece)
	var f *Failure
	switch {
	case errors.As(err, &f):
		return r.fail(f.Text)
	case err != nil:
		return nil
	}
	return r.complete(answer)
}

func (c *common) hear(h Heard) {
	select {
	case c.heard <- h:
	default:
	}
}

// Said is the text that a peer put into a message of the hub, in whichever
// form its protocol gave it; "" where it is none of a peer's.
func Said(m *parley.Message) string {
	for _, p := range m.Parts {
		if p.IsText() {
			return string(p.Data)
		}
		if s, err := textOf(p.Data); err == nil {
			return s
		}
		var whole struct{ Parameters, Data json.RawMessage } // of an ASP body
		if json.Unmarshal(p.Data, &whole) == nil {
			for _, v := range []json.RawMessage{whole.Parameters, whole.Data} {
				if s, err := textOf(v); err == nil {
					return s
				}
			}
		}
	}
	return ""
}

func act(ctx context.Context, text string, piece func(string) error) (string, error) {
	verb, rest, _ := strings.Cut(text, " ")
	switch verb {
	case "say":
		return rest, nil
	case "fail":
		return "", &Failure{Text: rest}
	case "count":
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 || n > 1000 {
			return "", &Failure{Text: "count how far?"}
		}
		for i := range n {
			if err := piece("piece " + strconv.Itoa(i+1)); err != nil {
				return "", err
			}
		}
		return "counted " + rest, nil
	case "note":
		return "noted", nil
	case "hold":
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	return "", &Failure{Text: "it knows say, fail, count, hold, note, and each of them later, or begun now"}
}

// A door is a listener that can be shut and opened again at the same address.
// Its port lies below those from which systems take ports for others.
type door struct {
	addr string

	mu     sync.Mutex
	server *http.Server
	done   chan struct{}
}

func newDoor() (*door, error) {
	for range 500 {
		addr := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(16000))
		if _, taken := doors.LoadOrStore(addr, true); taken {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			continue
		}
		return &door{addr: addr}, l.Close()
	}
	return nil, errors.New("pairs: there is no free port")
}

// doors are the addresses that peers of this process have had.
var doors sync.Map

func (d *door) open(h http.Handler) error {
	d.shut()
	l, err := net.Listen("tcp", d.addr)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s, done := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}, make(chan struct{})
	d.server, d.done = s, done
	go func() {
		defer close(done)
		_ = s.Serve(l) // ends with shut
	}()
	return nil
}

func (d *door) shut() {
	d.mu.Lock()
	s, done := d.server, d.done
	d.server = nil
	d.mu.Unlock()
	if s != nil {
		_ = s.Close() // what is under way is cut off, as by the end of a process
		<-done
	}
}

// pause waits a little, before the hub is looked for again.
func pause(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}
