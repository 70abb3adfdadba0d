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
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/fixedport"
	"github.com/parley-hub/parley/node"
)

// Protocols are the seven protocols, in the order of the tables.
var Protocols = []string{"samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp"}

// The domain of the hub's ASP stand-ins, and where AGH peers meet.
const (
	Workspace = "pairs"
	Channel   = "square"
	Domain    = "pairs.example"
)

// A Place is where a hub is found.
type Place struct {
	HTTP string // base URL of the protocols over HTTP
	AGH  string // URL of the NATS listener

	// Dial connects to the host of HTTP if that name stands for several nodes, of which
	// this place is one; nil: the usual dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// Token has the operator issue a token with which an agent calls the hub; nil: agents that need one cannot ask.
	Token func(ctx context.Context, agent string) (secret string, err error)

	Now func() time.Time // the clock of the peers, where the hub has one of its own; nil: time.Now
	Log *slog.Logger     // of the peers; nil: slog.Default()
}

// At is the place of a node of this process.
func At(n *node.Node) Place {
	a := n.Addresses()
	return Place{HTTP: a.HTTP, AGH: a.AGH, Token: func(ctx context.Context, agent string) (string, error) {
		t, err := n.Admin().IssueToken(ctx, admin.Actor{Name: "pairs", Role: admin.Administer}, newToken(agent))
		return t.Secret, err
	}}
}

// Announced gives the Token of a place whose hub is another process on this machine, with this data directory: the
// operator uses the admin API that the hub announces there.
func Announced(data string) func(ctx context.Context, agent string) (string, error) {
	return func(ctx context.Context, agent string) (string, error) {
		at, err := node.ReadAnnouncement(data)
		if err != nil {
			return "", err
		}
		return Operated(at.Admin, at.Token)(ctx, agent)
	}
}

// Operated gives the Token of a place whose admin API has a URL, where the operator shows a token.
func Operated(url, token string) func(ctx context.Context, agent string) (string, error) {
	return func(ctx context.Context, agent string) (string, error) {
		web := &http.Client{Transport: &http.Transport{}}
		defer web.CloseIdleConnections()
		t, err := (&admin.Client{Base: url, Token: token, HTTP: web}).IssueToken(ctx, newToken(agent))
		return t.Secret, err
	}
}

// newToken is a token with which an agent calls the hub, and which permits nothing else.
func newToken(agent string) admin.NewToken {
	return admin.NewToken{Name: "pairs " + agent, Agent: agent}
}

// A Peer is an agent of one protocol. Its methods may be called from several
// goroutines.
type Peer interface {
	Name() string     // in the directory
	Protocol() string // that it speaks
	// Agent is its entry in a hub's configuration. Files named in the entry are written
	// to dir.
	Agent(dir string) (node.Agent, error)
	// Join connects it to a hub: from then on it can ask and, unless away, is asked. It
	// may be called again, for another hub or after Leave.
	Join(ctx context.Context, at Place, away bool) error
	// Leave ends its activity at the hub, as if its process had ended.
	Leave()
	// Ask asks another agent and waits for the answer. A failure or refusal is an
	// [*Failure], with the text that arrived. When ctx ends, the peer withdraws the
	// question where its protocol can.
	Ask(ctx context.Context, q Question) (Answer, error)
	// Tell sends a message that expects no answer.
	Tell(ctx context.Context, to Peer, text string) error
	// Heard gives the notices and requests to the peer, in the order of arrival.
	Heard() <-chan Heard
}

// A Question to another agent.
type Question struct {
	To     Peer
	Text   string
	Events func(string) // is called with every piece ahead of the answer; may be nil

	// Patience is the time limit that the peer sends, where its protocol has one; 0:
	// until the end of the context.
	Patience time.Duration

	Taken func() // is called when the hub has accepted the question; may be nil
}

func (q Question) taken() {
	if q.Taken != nil {
		q.Taken()
	}
}

// An Answer to a question.
type Answer struct {
	Text string
	From string // the name of the sender in the answer
}

// Heard is something that reached a peer.
type Heard struct {
	ID         string // the id by which the peer would deduplicate; "" where there is none
	Text       string
	Cancel     bool   // it withdraws an earlier question
	Provenance string // the hub's statement of the origin, as it stands; "" where there is none
	Raw        []byte // the envelope as it arrived; nil where there is none
	Trace      string
	Deadline   time.Time
	Attempt    int // 0: not stated
}

// A Failure is an answer that reports a failure or a refusal.
type Failure struct {
	Text    string
	Refused bool // it is a refusal, and the protocol distinguishes the two
}

func (f *Failure) Error() string { return f.Text }

// New makes a peer with the given name, which is also its name in the directory. It has
// no connection before Join.
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
	case "a2a":
		return newA2A(name)
	case "mcp":
		return newMCP(name)
	}
	return nil, fmt.Errorf("pairs: there is no protocol %q", protocol)
}

// Configure adds the peers to c, as agents on this machine. They are exposed as c says
// for their names, else everywhere. Files are written to dir.
func Configure(c *node.Config, dir string, peers ...Peer) error {
	c.Listen.HTTP, c.Listen.AGH = cmp.Or(c.Listen.HTTP, "127.0.0.1:0"), cmp.Or(c.Listen.AGH, "127.0.0.1:0")
	c.Listen.Admin = cmp.Or(c.Listen.Admin, "127.0.0.1:0")     // issues the tokens of A2A and MCP agents
	c.Policy.Assurance = cmp.Or(c.Policy.Assurance, "session") // A2E, AGH, A2A and MCP prove connections, not messages
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

// common is the part that all peers share.
type common struct {
	name, protocol string
	heard          chan Heard

	mu   sync.Mutex
	at   Place
	ctx  context.Context // of its activity at the hub
	stop context.CancelFunc
	work sync.WaitGroup
	web  *http.Client
	gate chan struct{} // closed when the work of "later" may go on

	issued string // token of the hub at issuer; "": none
	issuer string // Place.HTTP

	around func(http.RoundTripper) http.RoundTripper // wraps its HTTP transport; nil: nothing does. Set before Join
	script func(text string) (string, bool)          // see Scripted; nil: none
	title  string                                    // see Titled; "": its name
}

// maxHeard is how many unread messages a peer keeps; further ones are lost.
const maxHeard = 1 << 16

func newCommon(protocol, name string) common {
	return common{name: name, protocol: protocol, heard: make(chan Heard, maxHeard), gate: make(chan struct{}),
		ctx: context.Background(), stop: func() {}, web: http.DefaultClient}
}

func (c *common) Name() string        { return c.name }
func (c *common) Protocol() string    { return c.protocol }
func (c *common) Heard() <-chan Heard { return c.heard }

// begin ends the activity at the last hub, and gives the context of the new one.
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

// hangUp ends connections that are not in use.
func (c *common) hangUp() {
	_, web := c.place()
	web.CloseIdleConnections()
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

// enlist gets a token of the hub. The peer keeps it over restarts of the hub.
func (c *common) enlist(ctx context.Context, at Place) error {
	c.mu.Lock()
	known := c.issuer == at.HTTP
	c.mu.Unlock()
	if known || at.Token == nil {
		return nil
	}
	token, err := at.Token(ctx, c.name)
	if err != nil {
		return fmt.Errorf("pairs: a token for %s: %w", c.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.issued, c.issuer = token, at.HTTP
	return nil
}

// credential is the token that the hub issued; "": none.
func (c *common) credential() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.issued
}

// newTraceParent begins a trace of W3C Trace Context.
func newTraceParent() string {
	return fmt.Sprintf("00-%016x%016x-%016x-01", rand.Uint64(), rand.Uint64(), rand.Uint64())
}

// until is when a requester stops waiting, by its own clock.
func (c *common) until(ctx context.Context, q Question) (time.Time, bool) {
	if q.Patience > 0 {
		return c.now().Add(q.Patience), true
	}
	d, ok := ctx.Deadline()
	return c.now().Add(time.Until(d)), ok
}

// begins gives what opens at the next Release. Taken before a request is heard, it is opened by a Release after that.
func (c *common) begins() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gate
}

// act does the work that a text asks for.
func (c *common) act(ctx context.Context, gate <-chan struct{}, text string, piece func(string) error) (string, error) {
	rest, ok := strings.CutPrefix(text, "later ")
	if !ok {
		if rest, ok = strings.CutPrefix(text, "begin "); ok {
			if err := piece("begun"); err != nil {
				return "", err
			}
		}
	}
	if ok {
		select {
		case <-gate:
			text = rest
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	if c.script != nil {
		if answer, ok := c.script(text); ok {
			return answer, nil
		}
	}
	return act(ctx, text, piece)
}

// Scripted gives a peer answers of its own, for the texts that the script knows. It is called before Join.
func Scripted(p Peer, script func(text string) (answer string, ok bool)) {
	p.(interface {
		follow(func(string) (string, bool))
	}).follow(script)
}

func (c *common) follow(script func(string) (string, bool)) { c.script = script }

// Titled gives a peer a text of its own for the names and descriptions in its card, its presence and its tools, as far
// as its protocol has them. It is called before Join.
func Titled(p Peer, title string) { p.(interface{ entitle(string) }).entitle(title) }

func (c *common) entitle(title string) { c.title = title }

// A responder sends a peer's reaction to a request in its protocol.
type responder struct {
	gate                  <-chan struct{} // see begins; nil: that of now
	piece, fail, complete func(text string) error
}

// respond does the work that a text asks for. A cancelled request gets no outcome.
func (c *common) respond(ctx context.Context, text string, r responder) error {
	if r.gate == nil {
		r.gate = c.begins()
	}
	answer, err := c.act(ctx, r.gate, text, r.piece)
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

// Said is the text that a peer put into a message of the hub, in any protocol's form;
// "" where the message is not a peer's.
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
	case "cry":
		if err := piece(rest); err != nil {
			return "", err
		}
		return "cried", nil
	case "note":
		return "noted", nil
	case "hold":
		<-ctx.Done()
		return "", context.Cause(ctx)
	}
	return "", &Failure{Text: "it knows say, fail, cry, count, hold, note, and each of them later, or begun now"}
}

// A door is a listener that can be shut and opened again at the same address.
type door struct {
	addr string

	mu     sync.Mutex
	server *http.Server
	done   chan struct{}
}

func newDoor() (*door, error) {
	port, err := fixedport.Take()
	return &door{addr: fmt.Sprintf("127.0.0.1:%d", port)}, err
}

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
		_ = s.Close() // exchanges in flight are cut off, as by the end of a process
		<-done
	}
}

// pause waits a little before the next attempt to reach the hub.
func pause(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}
