package bench

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/internal/pairs"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/jetstream"
	"github.com/parley-hub/parley/node"
)

// The figures of docs/scale.md:
//
//	go test ./internal/bench -run '^$' -bench Scale -benchtime 1x

// BenchmarkScaleRecords counts the bytes that a request of 1 KiB and its answer leave
// on disk when the hub has stopped, for each pair of protocols. It spreads the peers'
// set-up over all exchanges.
func BenchmarkScaleRecords(b *testing.B) {
	for _, from := range pairs.Protocols {
		for _, to := range pairs.Protocols {
			b.Run(from+"-"+to, func(b *testing.B) {
				for b.Loop() {
					records, sizes := exchange(b, from, to, 1000)
					b.ReportMetric(float64(records)/1000, "records/op")
					b.ReportMetric(float64(sizes["journal"])/1000, "journal-B/op")
					b.ReportMetric(float64(sizes["index"])/1000, "index-B/op")
				}
			})
		}
	}
}

// exchange has a peer ask another n times, and gives the number of records and the
// sizes of the hub's data directories.
func exchange(b *testing.B, from, to string, n int) (records int, sizes map[string]int64) {
	ask, answer := peer(b, from, "ask"), peer(b, to, "answer")
	c := node.Config{Data: filepath.Join(b.TempDir(), "data"), Listen: node.Listen{Admin: "127.0.0.1:0"}}
	if err := pairs.Configure(&c, b.TempDir(), ask, answer); err != nil {
		b.Fatal(err)
	}
	hub := open(b, c)
	counted := make(chan *journal.Record, 1024)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range counted {
			records++
		}
	}()
	hub.Hub().Journal().Watch(func(r *journal.Record) { counted <- r })
	for _, p := range []pairs.Peer{answer, ask} {
		if err := p.Join(b.Context(), pairs.At(hub), false); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n {
		if _, err := ask.Ask(b.Context(), pairs.Question{To: answer, Text: "say " +
			string(words(i, 1024))}); err != nil {
			b.Fatal(err)
		}
	}
	ask.Leave()
	answer.Leave()
	shut(b, hub)
	close(counted)
	<-done
	return records, sizesIn(b, c.Data)
}

func peer(b *testing.B, protocol, name string) pairs.Peer {
	p, err := pairs.New(protocol, name)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

func open(b *testing.B, c node.Config) *node.Node {
	n, err := node.Open(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	if err := n.Start(b.Context()); err != nil {
		b.Fatal(err)
	}
	return n
}

func shut(b *testing.B, n *node.Node) {
	if err := n.Close(context.WithoutCancel(b.Context())); err != nil {
		b.Fatal(err)
	}
}

// sizesIn adds up the files of each directory in a hub's data.
func sizesIn(b *testing.B, data string) map[string]int64 {
	sizes := map[string]int64{}
	err := filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := d.Info()
		if err != nil {
			return err
		}
		kind := "journal"
		if strings.Contains(d.Name(), "index") || strings.Contains(path, "/index") {
			kind = "index"
		}
		sizes[kind] += i.Size()
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return sizes
}

// BenchmarkScaleAgents reports the cost of an enrolled agent: memory, bytes in the
// state, and time at the next start.
func BenchmarkScaleAgents(b *testing.B) {
	for _, agents := range []int{10_000, 100_000} {
		b.Run(strconv.Itoa(agents), func(b *testing.B) {
			for b.Loop() {
				c := node.Config{Data: filepath.Join(b.TempDir(), "data"), Listen: node.Listen{HTTP: "127.0.0.1:0"}}
				n := open(b, c)
				empty, files := inUse(), sizesIn(b, c.Data)["journal"]
				inParallel(b, agents, func(i int) error {
					key, _, err := ed25519.GenerateKey(nil)
					if err != nil {
						return err
					}
					return enrol(b.Context(), n, fmt.Sprintf("agent-%d", i), fmt.Sprintf("agent://agent-%d.example", i),
						key)
				})
				b.ReportMetric(float64(inUse()-empty)/float64(agents), "heap-B/agent")
				shut(b, n)
				b.ReportMetric(float64(sizesIn(b, c.Data)["journal"]-files)/float64(agents), "disk-B/agent")
				restarted(b, c)
			}
		})
	}
}

// BenchmarkScaleOpen reports the cost of an open delivery: a message of 1 KiB to an
// agent that is away.
func BenchmarkScaleOpen(b *testing.B) {
	for _, messages := range []int{10_000, 100_000} {
		b.Run(strconv.Itoa(messages), func(b *testing.B) {
			for b.Loop() {
				c := node.Config{Data: filepath.Join(b.TempDir(), "data"), Listen: node.Listen{HTTP: "127.0.0.1:0"},
					Limits: node.Limits{SenderRate: -1}}
				n := open(b, c)
				dir := n.Hub().Directory()
				const agents = 100
				for i := range agents {
					if _, err := dir.Put(b.Context(), parley.Agent{Name: fmt.Sprintf("away-%d", i),
						Exposed: parley.Everywhere}, directory.FromOperator); err != nil {
						b.Fatal(err)
					}
					if err := n.Hub().Pause(b.Context(), fmt.Sprintf("away-%d", i), true); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := dir.Put(b.Context(), parley.Agent{Name: "sender"}, directory.FromOperator); err != nil {
					b.Fatal(err)
				}
				empty := inUse()
				inParallel(b, messages, func(i int) error {
					_, err := n.Hub().Accept(b.Context(), hub.Submission{Scope: "bench", Admitted: true,
						Message: &parley.Message{
							From: "sender", To: fmt.Sprintf("away-%d", i%agents), Kind: parley.Notice,
							Expires: time.Now().Add(24 * time.Hour),
							Parts:   []parley.Part{{MediaType: "text/plain", Data: words(i, 1024)}},
						}})
					return err
				})
				b.ReportMetric(float64(inUse()-empty)/float64(messages), "heap-B/delivery")
				shut(b, n)
				restarted(b, c)
			}
		})
	}
}

// BenchmarkScaleCluster appends messages of 1 KiB to a journal on three servers of this
// machine, each a process, with NATS's default of a sync every two minutes.
func BenchmarkScaleCluster(b *testing.B) {
	cluster := testcluster.StartProcesses(b, 3)
	for _, partitions := range []int{1, 8} {
		s, err := jetstream.Open(b.Context(), jetstream.Config{URL: strings.Join(cluster.URLs, ","),
			Prefix: fmt.Sprintf("SCALE%d", partitions)})
		if err != nil {
			b.Fatal(err)
		}
		j, err := journal.Open(b.Context(), journal.Config{Store: s, Partitions: partitions})
		if err != nil {
			b.Fatal(err)
		}
		for _, callers := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("partitions=%d/callers=%d", partitions, callers), func(b *testing.B) {
				for b.Loop() {
					r := load.Do(b.Context(), callers, time.Second, 5*time.Second,
						func(ctx context.Context, lane, _ int) error {
							_, err := j.Append(ctx, journal.Entry{Scope: fmt.Sprintf("scope-%d", lane),
								Message: &parley.Message{
									ID: newID(b), From: "sender", To: "away", Kind: parley.Notice,
									Parts: []parley.Part{{MediaType: "text/plain", Data: words(lane, 1024)}},
								}})
							return err
						})
					if r.Failed > 0 {
						b.Fatal(r.FirstError)
					}
					b.ReportMetric(r.Throughput, "appends/s")
					b.ReportMetric(float64(r.P50.Microseconds())/1000, "p50-ms")
					b.ReportMetric(float64(r.P99.Microseconds())/1000, "p99-ms")
				}
			})
		}
		if err := j.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func newID(b *testing.B) parley.ID {
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		b.Error(err)
	}
	return id
}

// restarted reports how long a hub takes to be ready on existing data.
func restarted(b *testing.B, c node.Config) {
	begin := time.Now()
	n := open(b, c)
	b.ReportMetric(time.Since(begin).Seconds(), "s/start")
	shut(b, n)
}

// inParallel calls do n times, some calls at once, so that they share fsyncs.
func inParallel(b *testing.B, n int, do func(i int) error) {
	const callers = 64
	errs := make(chan error, callers)
	for at := range callers {
		go func() {
			for i := at; i < n; i += callers {
				if err := do(i); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			b.Fatal(err)
		}
	}
}

func inUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // pool entries survive the first collection
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// BenchmarkScaleSessions reports the cost of a connected agent that has sent one
// message: resident memory of a hub in a process of its own.
func BenchmarkScaleSessions(b *testing.B) {
	program := filepath.Join(b.TempDir(), "parley")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/parley").CombinedOutput(); err != nil {
		b.Fatal(err, string(out))
	}
	for _, protocol := range pairs.Protocols {
		b.Run(protocol, func(b *testing.B) {
			for b.Loop() {
				const few, many = 50, 550
				asked := peer(b, "samvad", "asked")
				peers := make([]pairs.Peer, many)
				for i := range peers {
					peers[i] = peer(b, protocol, fmt.Sprintf("peer-%d", i))
				}
				dir := b.TempDir()
				c := node.Config{Data: filepath.Join(dir, "data"), Agents: map[string]node.Agent{}}
				if err := pairs.Configure(&c, dir, append(peers, asked)...); err != nil {
					b.Fatal(err)
				}
				text, err := toml.Marshal(c)
				if err != nil {
					b.Fatal(err)
				}
				path := filepath.Join(dir, "parley.toml")
				if err := os.WriteFile(path, text, 0o600); err != nil {
					b.Fatal(err)
				}
				var at node.Addresses
				hub, err := start(b.Context(), []string{"env", "GOGC=10", program, "serve", "--log", "error",
					"--config", path, "--json"}, nil, &at, &hubErrors{})
				if err != nil {
					b.Fatal(err)
				}
				defer kill(hub)
				place := pairs.Place{HTTP: at.HTTP, AGH: at.AGH, Token: pairs.Announced(c.Data)}
				if err := asked.Join(b.Context(), place, false); err != nil {
					b.Fatal(err)
				}
				defer asked.Leave()
				join := func(list []pairs.Peer) int64 {
					for _, p := range list {
						if err := p.Join(b.Context(), place, false); err != nil {
							b.Fatal(err)
						}
						b.Cleanup(p.Leave)
						if _, err := p.Ask(b.Context(), pairs.Question{To: asked, Text: "say hello"}); err != nil {
							b.Fatal(err)
						}
					}
					return resident(b, hub.Process.Pid)
				}
				before := join(peers[:few])
				after := join(peers[few:])
				b.ReportMetric(float64(after-before)/(many-few), "resident-B/agent")
			}
		})
	}
}

// resident is the memory of a process, in bytes.
func resident(b *testing.B, pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		b.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}
