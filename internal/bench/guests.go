package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/parley-hub/parley/internal/attack"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/node"
)

// GuestsConfig says how to attack a hub.
type GuestsConfig struct {
	Hub []string // the command that runs a hub; --config, a file and --json are appended
	// Attackers is the command that runs [GuestAttackers]: it reads them as JSON and
	// writes their report.
	Attackers []string
	Duration  time.Duration // of the attack
	Dir       string        // where the hub keeps its records; default the temporary directory

	// Progress, when set, is called when a phase begins; of is the duration of the
	// phase, or 0 if it is not known.
	Progress func(phase string, of time.Duration)
}

// GuestsReport is the effect of an attack.
type GuestsReport struct {
	Attacks []GuestAttack `json:"attacks"`

	Memory  Span          `json:"memory"` // of the hub's process, bytes that are resident
	Disk    Span          `json:"disk"`   // of its data directory, bytes of all files
	Own     int64         `json:"own"`    // of Disk: the enrolled agents' messages, by the quiet phase's bytes per message
	Quiet   Talk          `json:"quiet"`  // of the enrolled agents without an attack
	Under   Talk          `json:"under"`  // and under attack
	Ratio   float64       `json:"ratio"`  // of the 99th percentiles, under attack and quiet
	Restart time.Duration `json:"restart"`

	Bounds []Bound `json:"bounds"`
}

// A GuestAttack is one attack with its result.
type GuestAttack struct {
	Name string `json:"name"`
	attack.Result
	Error string `json:"error,omitempty"` // why the attack stopped early
}

// A Span is a quantity over the attack.
type Span struct {
	Before int64 `json:"before"`
	Peak   int64 `json:"peak,omitempty"`
	After  int64 `json:"after"`
}

// A Talk counts the questions of enrolled agents to each other. Each question is a
// message, and so is its answer.
type Talk struct {
	Asked  int            `json:"asked"`
	Failed int            `json:"failed"`
	Errors map[string]int `json:"errors,omitempty"` // of those that failed, by pair of protocols and error
	P50    time.Duration  `json:"p50"`
	P99    time.Duration  `json:"p99"`
}

// A Bound is one requirement on the report.
type Bound struct {
	What  string `json:"what"`
	Was   string `json:"was"`
	Want  string `json:"want"`
	Holds bool   `json:"holds"`
}

// Holds reports whether every bound holds.
func (r *GuestsReport) Holds() bool {
	return !slices.ContainsFunc(r.Bounds, func(b Bound) bool { return !b.Holds })
}

// Bounds of the cost of an attack.
const (
	maxGuestMemory = 64 << 20
	maxGuestDisk   = 16 << 20
	maxGuestRatio  = 3
	maxRestart     = 2 * time.Second
)

// judge compares the measured values with the bounds.
func (r *GuestsReport) judge() {
	r.Ratio = float64(r.Under.P99) / float64(max(1, r.Quiet.P99))
	changed := 0
	for _, a := range r.Attacks {
		changed += a.Changed
	}
	memory, disk := r.Memory.Peak-r.Memory.Before, r.Disk.After-r.Disk.Before-r.Own
	failed := r.Quiet.Failed + r.Under.Failed
	r.Bounds = []Bound{
		{"memory growth", mib(memory), "below " + mib(maxGuestMemory), memory < maxGuestMemory},
		{"disk growth, less the enrolled agents' own", mib(disk), "below " + mib(maxGuestDisk), disk < maxGuestDisk},
		{"failed messages of enrolled agents", strconv.Itoa(failed), "0", failed == 0 && r.Under.Asked > 0},
		{"their p99, by the quiet one", fmt.Sprintf("%.2f", r.Ratio), fmt.Sprintf("below %d", maxGuestRatio),
			r.Ratio < maxGuestRatio && r.Under.P99 > 0},
		{"restart", r.Restart.Round(time.Millisecond).String(), "below " + maxRestart.String(),
			r.Restart < maxRestart && r.Restart > 0},
		{"answers and state of others changed", strconv.Itoa(changed), "0", changed == 0},
	}
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// quiet is how long the enrolled agents talk before an attack of a duration.
func quiet(attack time.Duration) time.Duration { return max(attack/4, min(attack, 5*time.Second)) }

// readyWithin and stoppedWithin bound a start and an end of the hub.
const (
	readyWithin   = 2 * time.Minute
	stoppedWithin = time.Minute
	askWithin     = 30 * time.Second
)

// askEvery is the pause of an enrolled agent between two questions.
const askEvery = 150 * time.Millisecond

// Guests runs a hub with ten enrolled agents, two of each protocol, lets them
// talk with each other, and then lets guests attack it in every way at once.
// It needs Linux.
func Guests(ctx context.Context, c GuestsConfig) (*GuestsReport, error) {
	if c.Progress == nil {
		c.Progress = func(string, time.Duration) {}
	}
	if runtime.GOOS != "linux" {
		return nil, errors.New("the memory of the hub's process is read from /proc, which only Linux has")
	}
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	g := &guests{GuestsConfig: c, data: filepath.Join(dir, "data")}
	if err := g.configure(dir); err != nil {
		return nil, err
	}
	c.Progress("starting a hub", 0)
	if err := g.start(ctx); err != nil {
		return nil, err
	}
	r := &GuestsReport{}
	err = g.talkUnderAttack(ctx, r)
	if err == nil {
		c.Progress("restarting the hub", 0)
		err = g.restart(ctx, r)
	}
	g.end()
	if g.hub != nil {
		_ = g.hub.Wait() // it was killed
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return nil, err
	}
	r.judge()
	return r, nil
}

// guests is one run.
type guests struct {
	GuestsConfig
	data   string
	config string // path
	at     node.Addresses
	hub    *exec.Cmd
	end    context.CancelFunc // kills the hub
	peers  []pairs.Peer
}

// configure writes the configuration of a hub with twelve agents: the defaults, and the
// settings that the agents and the attacks need.
func (g *guests) configure(dir string) error {
	for i := range 2 {
		for _, protocol := range pairs.Protocols {
			p, err := pairs.New(protocol, fmt.Sprintf("%s-%d", protocol, i+1))
			if err != nil {
				return err
			}
			g.peers = append(g.peers, p)
		}
	}
	c := node.Config{Data: g.data, Listen: node.Listen{HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", AGH: "127.0.0.1:0"}}
	c.ASP.Registration = "open"
	var err error
	g.config, err = writeConfig(dir, c, g.peers)
	return err
}

// start runs the hub and waits until it is ready. It ends with ctx.
func (g *guests) start(ctx context.Context) (err error) {
	ctx, g.end = context.WithCancel(ctx)
	late := time.AfterFunc(readyWithin, g.end)
	defer late.Stop()
	g.at = node.Addresses{}
	g.hub, err = start(ctx, append(slices.Clone(g.Hub), "--config", g.config, "--json"), nil, &g.at,
		&hubErrors{})
	return err
}

// restart ends the hub in order, and measures how long it takes to be ready
// again.
func (g *guests) restart(ctx context.Context, r *GuestsReport) error {
	if err := g.hub.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("the hub had ended: %w", err)
	}
	late := time.AfterFunc(stoppedWithin, g.end)
	err := g.hub.Wait()
	late.Stop()
	if err != nil {
		return fmt.Errorf("end the hub: %w", err)
	}
	g.end()
	began := time.Now()
	if err := g.start(ctx); err != nil {
		return fmt.Errorf("start the hub again: %w", err)
	}
	r.Restart = time.Since(began)
	return nil
}

// talkUnderAttack lets the agents join and talk, first without an attack.
func (g *guests) talkUnderAttack(ctx context.Context, r *GuestsReport) error {
	leave, err := join(ctx, g.peers, g.at, pairs.Announced(g.data))
	if err != nil {
		return err
	}
	defer leave()
	g.Progress("warming up: every agent asks every other", 0)
	for _, p := range g.peers {
		for _, to := range g.others(p) {
			if err := ask(ctx, p, to); err != nil {
				return fmt.Errorf("without an attack, %s to %s: %w", p.Name(), to.Name(), err)
			}
		}
	}
	pid, still := g.hub.Process.Pid, quiet(g.Duration)
	g.Progress("the agents talk without an attack", still)
	start, err := bytesIn(g.data)
	if err != nil {
		return err
	}
	r.Quiet = g.talk(ctx, still)
	if r.Disk.Before, err = bytesIn(g.data); err != nil {
		return err
	}
	each := float64(r.Disk.Before-start) / float64(max(1, r.Quiet.Asked))
	if r.Memory.Before, err = resetPeak(pid); err != nil {
		return err
	}
	g.Progress("the agents talk, and guests attack", g.Duration)
	var attacking sync.WaitGroup
	attacking.Go(func() { r.Attacks, err = g.attack(ctx) })
	r.Under = g.talk(ctx, g.Duration)
	attacking.Wait()
	if err != nil {
		return err
	}
	r.Own = int64(each * float64(r.Under.Asked))
	if r.Disk.After, err = bytesIn(g.data); err != nil {
		return err
	}
	r.Memory.After, r.Memory.Peak, err = memoryOf(pid)
	return err
}

// others are the agents that p asks.
func (g *guests) others(p pairs.Peer) []pairs.Peer {
	return slices.DeleteFunc(slices.Clone(g.peers), func(o pairs.Peer) bool { return o == p })
}

// question is asked by the agents, and said is the answer.
const (
	said     = "hello"
	question = "say " + said
)

func ask(ctx context.Context, from, to pairs.Peer) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	a, err := from.Ask(ctx, pairs.Question{To: to, Text: question})
	if err == nil && a.Text != said {
		err = fmt.Errorf("it answers %.100q", a.Text)
	}
	return err
}

// talk lets every agent ask the others in turn for a while.
func (g *guests) talk(ctx context.Context, d time.Duration) Talk {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	t := Talk{Errors: map[string]int{}}
	var mu sync.Mutex
	var took []time.Duration
	var talking sync.WaitGroup
	for _, p := range g.peers {
		talking.Go(func() {
			others := g.others(p)
			for i := 0; ctx.Err() == nil; i++ {
				to := others[i%len(others)]
				began := time.Now()
				err := ask(context.WithoutCancel(ctx), p, to)
				elapsed := time.Since(began)
				mu.Lock()
				t.Asked++
				took = append(took, elapsed)
				if err != nil {
					t.Failed++
					t.Errors[fmt.Sprintf("%s to %s: %.200s", p.Protocol(), to.Protocol(), err)]++
				}
				mu.Unlock()
				select {
				case <-time.After(askEvery):
				case <-ctx.Done():
				}
			}
		})
	}
	talking.Wait()
	slices.Sort(took)
	if len(took) > 0 {
		t.P50, t.P99 = load.Quantile(took, 0.5), load.Quantile(took, 0.99)
	}
	return t
}

// bytesIn is how many bytes the files of a directory have.
func bytesIn(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || e.IsDir() {
			return err
		}
		i, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			n += i.Size()
		}
		return err
	})
	return n, err
}

// memoryOf is how much memory of a process is resident, and its peak.
func memoryOf(pid int) (now, peak int64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		for name, to := range map[string]*int64{"VmRSS:": &now, "VmHWM:": &peak} {
			if rest, ok := strings.CutPrefix(line, name); ok {
				n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
				if err != nil {
					return 0, 0, fmt.Errorf("/proc/%d/status: %q: %w", pid, line, err)
				}
				*to = n << 10
			}
		}
	}
	if now == 0 || peak == 0 {
		return 0, 0, fmt.Errorf("/proc/%d/status tells no memory", pid)
	}
	return now, peak, nil
}

// resetPeak resets the memory peak of a process, and gives its resident memory.
func resetPeak(pid int) (now int64, err error) {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return 0, fmt.Errorf("the peak of a process cannot be measured here: %w", err)
	}
	now, _, err = memoryOf(pid)
	return now, err
}
