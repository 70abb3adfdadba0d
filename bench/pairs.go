package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	secp "github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/pelletier/go-toml/v2"

	"github.com/parley-hub/parley/bench/floor"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/pairs"
)

// PairsConfig says what to measure.
type PairsConfig struct {
	Config
	Hub   []string // the command that runs a hub, to which --config, a file and --json are added
	Only  []string // pairs such as "samvad->agh"; none: all
	Peers int      // that ask at once, each another; default 4
}

// PairRow is what a request and its answer cost from one protocol to another.
type PairRow struct {
	From     string        `json:"from"`
	To       string        `json:"to"`
	Agents   int           `json:"agents"` // in the directory besides those that talk
	Messages int           `json:"messages"`
	CPU      time.Duration `json:"cpuPerMessage"`   // of the hub's process alone
	Floor    time.Duration `json:"floorPerMessage"` // of both ends
	Ratio    float64       `json:"ratio"`           // floor by Parley: 1 is nothing but what cannot be left out
}

// ends say what a hub cannot leave out at one end of a request and its answer,
// as counts of the things that [floors] measures.
type work struct{ http, nats, edSign, edVerify, secpSign, secpVerify, p256Sign, p256Verify int }

// The requests come in signed and are answered, and go out signed and are
// answered. A uAgents chat is four envelopes, each a POST of its own: message,
// acknowledgement, answer, acknowledgement. AGH work is a say, a receipt, the
// answer as a say, and a trace; a peer answers by receipt and trace. An ASP
// message is signed twice, by Ed25519 and by the proof of possession.
var (
	asking = map[string]work{
		"samvad": {http: 1, edVerify: 1}, "uagents": {http: 4, secpVerify: 2, secpSign: 2}, "a2e": {http: 1}, "agh": {nats: 4},
		"asp": {http: 1, edVerify: 1, p256Verify: 1, edSign: 1, p256Sign: 1}}
	asked = map[string]work{
		"samvad": {http: 1, edSign: 1}, "uagents": {http: 4, secpVerify: 2, secpSign: 2}, "a2e": {http: 1}, "agh": {nats: 3},
		"asp": {http: 1, edVerify: 1, p256Verify: 1, edSign: 1, p256Sign: 1}}
)

// floors are CPU times, each measured by itself in this run.
type floors struct {
	http, nats, append, edSign, edVerify, secpSign, secpVerify, p256Sign, p256Verify time.Duration
}

func (f floors) of(w work) time.Duration {
	return time.Duration(w.http)*f.http + time.Duration(w.nats)*f.nats + time.Duration(w.edSign)*f.edSign + time.Duration(w.edVerify)*f.edVerify +
		time.Duration(w.secpSign)*f.secpSign + time.Duration(w.secpVerify)*f.secpVerify + time.Duration(w.p256Sign)*f.p256Sign + time.Duration(w.p256Verify)*f.p256Verify
}

// Pairs measures, for every protocol to every other, the CPU time that a hub of
// its own process needs for a request and its answer, next to the sum of what
// its two ends and the two appends cannot do without.
func Pairs(ctx context.Context, c PairsConfig, each func(PairRow)) error {
	c.defaults()
	if c.Peers == 0 {
		c.Peers = 4
	}
	if runtime.GOOS != "linux" {
		return errors.New("the CPU time of the hub's process is read from /proc, which only Linux has")
	}
	f, err := c.floors(ctx)
	if err != nil {
		return err
	}
	for _, from := range pairs.Protocols {
		for _, to := range pairs.Protocols {
			if len(c.Only) > 0 && !contains(c.Only, from+"->"+to) {
				continue
			}
			row := PairRow{From: from, To: to, Agents: c.Agents, Floor: f.of(asking[from]) + f.of(asked[to]) + 2*f.append}
			if row.Messages, row.CPU, err = c.pair(ctx, from, to); err != nil {
				return fmt.Errorf("%s to %s: %w", from, to, err)
			}
			row.Ratio = float64(row.Floor) / float64(row.CPU)
			each(row)
		}
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}

// pair runs a hub with some peers of both protocols.
func (c *PairsConfig) pair(ctx context.Context, from, to string) (messages int, each time.Duration, err error) {
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	var all, ask, answer []pairs.Peer
	for i := range c.Peers {
		for name, list := range map[string]*[]pairs.Peer{from + "-from-": &ask, to + "-to-": &answer} {
			protocol := from
			if list == &answer {
				protocol = to
			}
			p, err := pairs.New(protocol, name+strconv.Itoa(i))
			if err != nil {
				return 0, 0, err
			}
			*list, all = append(*list, p), append(all, p)
		}
	}
	config := node.Config{Data: filepath.Join(dir, "data"), Durability: string(c.Storage[0]), Listen: node.Listen{HTTP: "127.0.0.1:0", AGH: "127.0.0.1:0"}, Agents: map[string]node.Agent{}}
	for i := range c.Agents {
		config.Agents[fmt.Sprintf("idle-%d", i)] = node.Agent{AGH: &node.AGHAgent{Workspace: "elsewhere", Peer: fmt.Sprintf("idle-%d", i)}}
	}
	if err := pairs.Configure(&config, dir, all...); err != nil {
		return 0, 0, err
	}
	b, err := toml.Marshal(config)
	if err != nil {
		return 0, 0, err
	}
	path := filepath.Join(dir, "parley.toml")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return 0, 0, err
	}
	hub, at, err := c.start(ctx, path)
	if err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = hub.Process.Signal(syscall.SIGKILL) // nothing of it is needed any more
		_ = hub.Wait()                          // it was killed
	}()
	defer func() {
		var leaving sync.WaitGroup
		for _, p := range all {
			leaving.Go(p.Leave)
		}
		leaving.Wait()
	}()
	for _, p := range all {
		if err := p.Join(ctx, pairs.Place{HTTP: at.HTTP, AGH: at.AGH}, false); err != nil {
			return 0, 0, fmt.Errorf("%s: %w", p.Name(), err)
		}
	}
	var n atomic.Int64
	run := func(until time.Time) error {
		failed := make(chan error, len(ask))
		for i := range ask {
			go func() {
				for time.Now().Before(until) {
					one, cancel := context.WithTimeout(ctx, 30*time.Second)
					_, err := ask[i].Ask(one, pairs.Question{To: answer[i], Text: "say hello"})
					cancel()
					if err != nil {
						failed <- err
						return
					}
					n.Add(1)
				}
				failed <- nil
			}()
		}
		var errs []error
		for range ask {
			errs = append(errs, <-failed)
		}
		return errors.Join(errs...)
	}
	if err := run(time.Now().Add(c.Duration / 4)); err != nil { // what is made at first use is made
		return 0, 0, err
	}
	n.Store(0)
	before, err := cpuOf(hub.Process.Pid)
	if err == nil {
		err = run(time.Now().Add(c.Duration))
	}
	if err != nil {
		return 0, 0, err
	}
	after, err := cpuOf(hub.Process.Pid)
	if err != nil || n.Load() == 0 {
		return 0, 0, errors.Join(err, ctx.Err())
	}
	return int(n.Load()), (after - before) / time.Duration(n.Load()), nil
}

// start runs a hub and waits until it is ready.
func (c *PairsConfig) start(ctx context.Context, config string) (*exec.Cmd, node.Addresses, error) {
	var at node.Addresses
	args := append(c.Hub[1:len(c.Hub):len(c.Hub)], "--config", config, "--json")
	hub := exec.CommandContext(ctx, c.Hub[0], args...)
	var errs bytes.Buffer
	hub.Stderr = &errs
	out, err := hub.StdoutPipe()
	if err != nil {
		return nil, at, err
	}
	if err := hub.Start(); err != nil {
		return nil, at, err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &at)
	}
	if err != nil {
		_ = hub.Process.Kill() // it may have ended by itself
		_ = hub.Wait()
		return nil, at, fmt.Errorf("the hub did not get ready: %w: %.2000s", err, errs.Bytes())
	}
	return hub, at, nil
}

// cpuOf is what a process has spent, user and system: to the hundredth of a
// second that /proc tells.
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

// timed gives the CPU time of this process for one call of f.
func timed(f func() error) (time.Duration, error) {
	n := 0
	begin := time.Now()
	before, err := cpuNow()
	if err != nil {
		return 0, err
	}
	for time.Since(begin) < 300*time.Millisecond {
		for range 16 {
			if err := f(); err != nil {
				return 0, err
			}
			n++
		}
	}
	after, err := cpuNow()
	return (after - before) / time.Duration(n), err
}

// cpuNow is what this process has spent.
func cpuNow() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

var errFloor = errors.New("a signature of the floor does not verify")

func valid(ok bool) error {
	if ok {
		return nil
	}
	return errFloor
}

// floors measures what both ends are made of.
func (c *PairsConfig) floors(ctx context.Context) (f floors, err error) {
	text := bytes.Repeat([]byte("x"), c.Payload)
	digest := sha256.Sum256(text)
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return f, err
	}
	edSig := ed25519.Sign(key, text)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return f, err
	}
	pSig, err := ecdsa.SignASN1(rand.Reader, p256, digest[:])
	if err != nil {
		return f, err
	}
	sk, err := secp256k1.GeneratePrivateKey()
	if err != nil {
		return f, err
	}
	sSig := secp.Sign(sk, digest[:])
	for _, m := range []struct {
		to *time.Duration
		f  func() error
	}{
		{&f.edSign, func() error { ed25519.Sign(key, text); return nil }},
		{&f.edVerify, func() error { return valid(ed25519.Verify(public, text, edSig)) }},
		{&f.p256Sign, func() error { _, err := ecdsa.SignASN1(rand.Reader, p256, digest[:]); return err }},
		{&f.p256Verify, func() error { return valid(ecdsa.VerifyASN1(&p256.PublicKey, digest[:], pSig)) }},
		{&f.secpSign, func() error { secp.Sign(sk, digest[:]); return nil }},
		{&f.secpVerify, func() error { return valid(sSig.Verify(digest[:], sk.PubKey())) }},
	} {
		if *m.to, err = timed(m.f); err != nil {
			return f, err
		}
	}
	if f.http, err = httpFloor(text); err != nil {
		return f, err
	}
	if f.nats, err = natsFloor(text); err != nil {
		return f, err
	}
	var both [2]floor.Result
	for i := range both { // one append more is what one append costs
		if both[i], err = floor.Samvad(ctx, floor.Config{Connections: 16, Payload: c.Payload, Storage: c.Storage[0], Appends: i + 1, Duration: c.Duration, Dir: c.Dir}); err != nil {
			return f, err
		}
	}
	f.append = max(0, both[1].CPUPerMessage-both[0].CPUPerMessage)
	return f, nil
}

// httpFloor is one side of a POST and its answer, on a connection that stays.
func httpFloor(text []byte) (time.Duration, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	s := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	})}
	go func() { _ = s.Serve(l) }() // ends with Close
	defer s.Close()
	web := &http.Client{Transport: &http.Transport{}}
	defer web.CloseIdleConnections()
	both, err := timed(func() error {
		r, err := web.Post("http://"+l.Addr().String(), "application/json", bytes.NewReader(text))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		_, err = io.Copy(io.Discard, r.Body)
		return err
	})
	return both / 2, err
}

// natsFloor is one message from a connection through a server into this
// process, or the way back.
func natsFloor(text []byte) (time.Duration, error) {
	s, err := server.NewServer(&server.Options{ServerName: "floor", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	if err != nil {
		return 0, err
	}
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(10 * time.Second) {
		return 0, errors.New("the NATS server does not get ready")
	}
	near, err := nats.Connect("", nats.InProcessServer(s))
	if err != nil {
		return 0, err
	}
	defer near.Close()
	far, err := nats.Connect(s.ClientURL())
	if err != nil {
		return 0, err
	}
	defer far.Close()
	if _, err := near.Subscribe("floor", func(m *nats.Msg) { _ = m.Respond(m.Data) }); err != nil { // who asked sees that nothing came
		return 0, err
	}
	if err := near.Flush(); err != nil {
		return 0, err
	}
	both, err := timed(func() error {
		_, err := far.Request("floor", text, 10*time.Second)
		return err
	})
	return both / 2, err
}
