package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/node"
)

// PairsConfig configures [Pairs].
type PairsConfig struct {
	Config
	Hub   []string // the command that runs a hub; --config, a file and --json are appended
	Floor []string // the command that runs [Floor] between its standard input and output
	Only  []string // pairs such as "samvad->agh"; none: all
	Peers int      // requesters at once, each with a responder of its own
}

// PairRow is the cost of a request and its answer from one protocol to another.
type PairRow struct {
	From     string        `json:"from"`
	To       string        `json:"to"`
	Storage  floor.Storage `json:"storage"`
	Agents   int           `json:"agents"` // idle ones in the directory
	Messages int           `json:"messages"`
	CPU      time.Duration `json:"cpuPerMessage"`   // of the hub's process alone
	Floor    time.Duration `json:"floorPerMessage"` // of the bare programs at both ends, added
	Ratio    float64       `json:"ratio"`           // floor by Parley: at 1 Parley has no overhead
}

// An end is one side of a pair.
//
// The floor of a pair is the sum of the floors of its two ends. The floor of an end
// is the CPU time of a bare program, [floor.Serve], in a process of its own, that
// serves as many peers at that end and does only the necessary work, with the same
// HTTP, NATS and cryptography:
//
//   - SAMVAD: one POST, signed by Ed25519, whose answer is the answer.
//   - uAgents: a chat is four envelopes, each a POST of its own signed by
//     secp256k1: message and answer, and an acknowledgement of each.
//   - A2E over HTTP: an agent sends by POST and receives events of its stream. A call
//     is one POST and one event. An agent that is asked receives an event, replies by
//     a call, and receives the outcome of that call.
//   - AGH: work is a say, a receipt, the answer as a say, and a trace; a peer
//     answers by receipt and trace. Nothing is signed.
//   - ASP: an agent sends by POST. The access token is proved by a P-256 signature,
//     and the message is signed by Ed25519 and has a second P-256 proof. It receives
//     events of its stream, which their sender signed in both ways. Question and
//     answer are one message each: their session is opened before the clock starts.
//   - A2A and MCP: one POST, whose answer is the answer. Nothing is signed.
//
// Like every floor of this package, the floor of an end records request and answer by
// one append each: incoming messages before they are acted upon, outgoing ones as an
// attempt before they are sent. Some protocols have a word that a request was
// accepted: it is recorded too. It goes on to the requester, as an event of A2E or a
// message of ASP, unless the hub has sent it itself. Between two agents of uAgents,
// AGH or ASP the envelopes go on unchanged: each is verified, and nothing is signed.
// Handshakes, discovery, card look-ups, heartbeats and replay memory do not count.
type end struct {
	protocol string
	asked    bool
	native   bool // the envelopes pass unchanged
	told     bool // the requester gets the word that its request was accepted
}

// endsOf gives the ends of a pair.
func endsOf(from, to string) [2]end {
	words := map[string]bool{"uagents": true, "agh": true} // have a word that a request was accepted
	hears := map[string]bool{"a2e": true, "asp": true}     // as requesters, get that word
	// Between SAMVAD, A2E, A2A or MCP agents the hub is a party.
	native := from == to && !slices.Contains([]string{"samvad", "a2e", "a2a", "mcp"}, from)
	return [2]end{{from, false, native, words[to] && hears[from]}, {to, true, native, false}}
}

// ways are the steps by which an end gets a message of its peer, and sends one to it.
func (e end) ways() (in, out floor.Step) {
	switch e.protocol {
	case "samvad":
		in, out = step(floor.Call, floor.Ed25519), step(floor.Out, floor.Ed25519)
	case "a2a", "mcp":
		in, out = step(floor.Call), step(floor.Out)
	case "uagents":
		in, out = step(floor.In, floor.Secp256k1), step(floor.Out, floor.Secp256k1)
	case "agh":
		in, out = step(floor.FromBus), step(floor.ToBus)
	case "a2e":
		in, out = step(floor.In), step(floor.Push)
	case "asp":
		in = step(floor.In, floor.P256, floor.Ed25519, floor.P256)
		out = step(floor.Push, floor.Ed25519, floor.P256)
	}
	if e.native {
		out.With = nil // the sender has signed it
	}
	return in, out
}

func step(do floor.Act, with ...floor.Scheme) floor.Step { return floor.Step{Do: do, With: with} }

// steps are the work that an end cannot avoid.
func (e end) steps() []floor.Step {
	in, out := e.ways()
	record := step(floor.Append)
	post := slices.Contains([]string{"samvad", "a2a", "mcp"}, e.protocol) // one POST, whose answer is the answer
	switch {
	case post && e.asked:
		return []floor.Step{record, out, record}
	case post:
		return []floor.Step{in, record, record, step(floor.Answer)}
	case e.protocol == "uagents" && e.asked:
		return []floor.Step{record, out, in, record, in, out, record}
	case e.protocol == "uagents":
		return []floor.Step{in, record, out, record, out, in}
	case e.protocol == "agh" && e.asked:
		return []floor.Step{record, out, in, record, in, record}
	case e.protocol == "agh":
		return []floor.Step{in, record, out, record, out, out}
	case e.protocol == "a2e" && e.asked:
		return []floor.Step{record, out, in, out, record}
	case e.asked:
		return []floor.Step{record, out, in, record}
	case e.told:
		return []floor.Step{in, record, record, out, record, out}
	}
	return []floor.Step{in, record, record, out}
}

// Pairs measures, from every protocol to every other, the CPU time of a hub in a
// process of its own for a request and its answer, next to that of two bare programs,
// one at each end. The peers run in this process.
func Pairs(ctx context.Context, c PairsConfig, each func(PairRow)) error {
	c.defaults()
	if runtime.GOOS != "linux" {
		return errors.New("the CPU time of the hub's process is read from /proc, which only Linux has")
	}
	for _, storage := range c.Storage {
		if err := c.pairs(ctx, storage, each); err != nil {
			return fmt.Errorf("%s: %w", storage, err)
		}
	}
	return nil
}

func (c *PairsConfig) pairs(ctx context.Context, storage floor.Storage, each func(PairRow)) error {
	floors := map[end]time.Duration{}
	for _, from := range pairs.Protocols {
		for _, to := range pairs.Protocols {
			if len(c.Only) > 0 && !slices.Contains(c.Only, from+"->"+to) {
				continue
			}
			row, err := PairRow{From: from, To: to, Storage: storage, Agents: c.Agents}, error(nil)
			for _, e := range endsOf(from, to) {
				if floors[e] == 0 && err == nil {
					floors[e], err = c.floor(ctx, storage, e.steps())
				}
				row.Floor += floors[e]
			}
			if err == nil {
				row.Messages, row.CPU, err = c.pair(ctx, storage, from, to)
			}
			if err != nil {
				return fmt.Errorf("%s to %s: %w", from, to, err)
			}
			row.Ratio = float64(row.Floor) / float64(row.CPU)
			each(row)
		}
	}
	return nil
}

// pair runs a hub with some peers of both protocols.
func (c *PairsConfig) pair(ctx context.Context, storage floor.Storage, from, to string) (messages int,
	each time.Duration, err error) {
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	ask, answer := make([]pairs.Peer, c.Peers), make([]pairs.Peer, c.Peers)
	for i := range c.Peers {
		var failed error
		ask[i], err = pairs.New(from, fmt.Sprintf("%s-from-%d", from, i))
		answer[i], failed = pairs.New(to, fmt.Sprintf("%s-to-%d", to, i))
		if err = errors.Join(err, failed); err != nil {
			return 0, 0, err
		}
	}
	all := slices.Concat(ask, answer)
	config := node.Config{Data: filepath.Join(dir, "data"), Durability: string(storage),
		Listen: node.Listen{HTTP: "127.0.0.1:0", AGH: "127.0.0.1:0"}, Agents: map[string]node.Agent{}}
	for i := range c.Agents {
		config.Agents[fmt.Sprintf("idle-%d", i)] = node.Agent{AGH: &node.AGHAgent{Workspace: "elsewhere",
			Peer: fmt.Sprintf("idle-%d", i)}}
	}
	path, err := writeConfig(dir, config, all)
	if err != nil {
		return 0, 0, err
	}
	var at node.Addresses
	var errs hubErrors
	hub, err := start(ctx, append(slices.Clone(c.Hub), "--config", path, "--json"), nil, &at, &errs)
	if err != nil {
		return 0, 0, err
	}
	defer kill(hub)
	token := pairs.Announced(config.Data)
	if storage == floor.Memory { // such a hub announces nothing
		token = errs.operated(at.Admin)
	}
	leave, err := join(ctx, all, at, token)
	if err != nil {
		return 0, 0, err
	}
	defer leave()
	return c.load(ctx, hub.Process.Pid, func(ctx context.Context, i int) error {
		_, err := ask[i].Ask(ctx, pairs.Question{To: answer[i], Text: c.text()})
		return err
	})
}

// joinWithin bounds the time in which one peer joins a hub.
const joinWithin = time.Minute

// join connects peers to a hub, until leave is called. token is as in pairs.Place.
func join(ctx context.Context, peers []pairs.Peer, at node.Addresses,
	token func(ctx context.Context, agent string) (string, error)) (leave func(), err error) {
	measured, over := context.WithCancel(ctx)
	leave = func() {
		over()
		var leaving sync.WaitGroup
		for _, p := range peers {
			leaving.Go(p.Leave)
		}
		leaving.Wait()
	}
	place := pairs.Place{HTTP: at.HTTP, AGH: at.AGH, Token: token,
		Log: slog.New(until{slog.Default().Handler(), measured})}
	for _, p := range peers {
		joining, cancel := context.WithTimeout(ctx, joinWithin)
		err := p.Join(joining, place, false)
		cancel()
		if err != nil {
			leave()
			return nil, fmt.Errorf("%s joins: %w", p.Name(), err)
		}
	}
	return leave, nil
}

// until is a log handler that ends with ctx: at the end of a measurement its peers are
// cut off amid acknowledgements, and their errors need no log.
type until struct {
	slog.Handler
	ctx context.Context
}

func (u until) Enabled(ctx context.Context, l slog.Level) bool {
	return u.ctx.Err() == nil && u.Handler.Enabled(ctx, l)
}

// text is the text of question and answer.
func (c *PairsConfig) text() string { return "say " + strings.Repeat("x", max(1, c.Payload-500)) }

// load repeats an exchange in each lane for a duration, and gives the CPU time that a
// process spends on one.
func (c *PairsConfig) load(ctx context.Context, pid int, exchange func(ctx context.Context,
	lane int) error) (messages int, each time.Duration, err error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var before time.Duration
	var r load.Result
	for _, d := range []time.Duration{c.Duration / 4, c.Duration} { // the first is the warm-up
		if before, err = cpuOf(pid); err != nil {
			return 0, 0, err
		}
		r = load.Loop(ctx, c.Peers, d, func(ctx context.Context, lane int) error {
			one, cancel := context.WithTimeout(ctx, 30*time.Second)
			defer cancel()
			err := exchange(one, lane)
			if err != nil {
				stop(err) // one failure ends the measurement
			}
			return err
		})
		if err := context.Cause(ctx); err != nil {
			return 0, 0, err
		}
	}
	after, err := cpuOf(pid)
	if err != nil || r.Requests == 0 {
		return 0, 0, err
	}
	return r.Requests, (after - before) / time.Duration(r.Requests), nil
}

// Floor runs the floor of an end for [PairsConfig.Floor]: it reads its plan from in as
// JSON, and writes its place to out. It ends with ctx.
func Floor(ctx context.Context, in io.Reader, out io.Writer) error {
	var plan floor.Plan
	if err := json.NewDecoder(in).Decode(&plan); err != nil {
		return err
	}
	return floor.Serve(ctx, plan, func(at floor.Place) error { return json.NewEncoder(out).Encode(at) })
}

// floor measures a plan.
func (c *PairsConfig) floor(ctx context.Context, storage floor.Storage, steps []floor.Step) (time.Duration, error) {
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	plan := floor.Plan{Steps: steps, Peers: c.Peers, Payload: c.Payload, Storage: storage, Dir: dir}
	in, err := json.Marshal(plan)
	if err != nil {
		return 0, err
	}
	var at floor.Place
	bare, err := start(ctx, c.Floor, in, &at, &hubErrors{})
	if err != nil {
		return 0, err
	}
	defer kill(bare)
	peers, err := floor.Connect(ctx, plan, at)
	if err != nil {
		return 0, err
	}
	defer peers.Close()
	_, each, err := c.load(ctx, bare.Process.Pid, peers.Exchange)
	return each, err
}

// kill ends a process.
func kill(p *exec.Cmd) {
	_ = p.Process.Signal(syscall.SIGKILL)
	_ = p.Wait() // it was killed
}

// hubErrors is what a hub's process writes to standard error.
type hubErrors struct {
	mu   sync.Mutex
	text []byte
	more chan struct{} // closed when there is more; nil: nobody waits
}

// maxHubErrors bounds what is kept: the beginning.
const maxHubErrors = 64 << 10

func (e *hubErrors) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text = append(e.text, b[:min(len(b), maxHubErrors-len(e.text))]...)
	if e.more != nil {
		close(e.more)
		e.more = nil
	}
	return len(b), nil
}

func (e *hubErrors) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return string(e.text)
}

// firstToken matches the words in which a hub shows its first token of the admin API.
var firstToken = regexp.MustCompile(`(?m)^admin token  (\S+)$`)

// operated gives the Token of a place whose hub shows its first token.
func (e *hubErrors) operated(admin string) func(ctx context.Context, agent string) (string, error) {
	return func(ctx context.Context, agent string) (string, error) {
		for {
			e.mu.Lock()
			found := firstToken.FindSubmatch(e.text)
			if e.more == nil {
				e.more = make(chan struct{})
			}
			more := e.more
			e.mu.Unlock()
			if found != nil {
				return pairs.Operated(admin, string(found[1]))(ctx, agent)
			}
			select {
			case <-more:
			case <-ctx.Done():
				return "", fmt.Errorf("the hub showed no token of its admin API: %w", context.Cause(ctx))
			}
		}
	}
}

// start runs a command, and reads the line that it writes when it is ready.
func start(ctx context.Context, command []string, in []byte, ready any, errs *hubErrors) (*exec.Cmd, error) {
	p := exec.CommandContext(ctx, command[0], command[1:]...)
	p.Stdin, p.Stderr = bytes.NewReader(in), errs
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, ready)
	}
	if err != nil {
		kill(p)
		return nil, fmt.Errorf("%s did not get ready: %w: %.2000s", command[0], err, errs)
	}
	return p, nil
}

// cpuOf is the CPU time of a process, user and system, in the resolution of /proc:
// a hundredth of a second.
func cpuOf(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat: %q", pid, b)
	}
	var ticks int64
	for _, f := range fields[11:13] {
		v, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += v
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
