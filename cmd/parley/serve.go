package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/parley-hub/parley/node"
)

func (a *app) serveCommand() *cobra.Command {
	var listen, admin, nats, durability, level string
	var allow []string
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the hub",
		Long: `Run the hub until it is interrupted; then it finishes running work and closes the
journal. SIGHUP makes it reload its configuration. With --json it writes one line with its
addresses when it is ready. The first start makes an admin token, unless ` + "`parley init`" + `
has made one, and shows it once on the standard error.`,
		Example: `  parley serve --data ./data --listen :8080
  parley serve --config parley.toml
  parley serve --network-allow 10.0.0.0/8,loopback
  parley serve --nats nats://n1:4222,nats://n2:4222 --listen :8080`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The command line overrides the file, at each reload too.
			read := func() (node.Config, error) {
				c, err := a.load()
				set := func(flag, value string, to *string, otherwise string) {
					if cmd.Flags().Changed(flag) {
						*to = value
					} else if *to == "" && a.config == "" {
						*to = otherwise
					}
				}
				set("listen", listen, &c.Listen.HTTP, "127.0.0.1:8080")
				set("admin-listen", admin, &c.Listen.Admin, "127.0.0.1:9090")
				set("nats", nats, &c.Engine.URL, "")
				set("durability", durability, &c.Durability, "")
				set("log", level, &c.LogLevel, "info")
				c.Network.Allow = append(c.Network.Allow, allow...)
				return c, err
			}
			c, err := read()
			if err != nil {
				return err
			}
			if _, err := c.Allowed(); err != nil {
				return usage("--network-allow: %s", err)
			}
			steadyHeap()
			c.Read, c.Level, c.Version = read, new(slog.LevelVar), version
			if c.Log, err = a.logger(c.LogLevel, c.Level); err != nil {
				return err
			}
			c.Progress = a.progress()
			c.FirstToken = func(secret string) { fmt.Fprint(a.errs, firstToken(secret)) } // not in the log, which would keep it
			if c.Passphrase, err = a.passphrase(); err != nil {
				return err
			}
			hup := make(chan os.Signal, 1)
			signal.Notify(hup, syscall.SIGHUP)
			defer signal.Stop(hup)
			n, err := node.Open(cmd.Context(), c)
			if err != nil {
				return openError(err)
			}
			if err = n.Start(cmd.Context()); err == nil {
				err = a.ready(n, c)
			}
			if err != nil {
				n.Close(cmd.Context())
				return err
			}
			go reloadOn(cmd.Context(), n, hup)
			return n.Wait(cmd.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&listen, "listen", "", "address for the protocols over HTTP (default 127.0.0.1:8080)")
	f.StringVar(&admin, "admin-listen", "", "address of the admin API (default 127.0.0.1:9090; \"\" switches it off)")
	f.StringVar(&nats, "nats", "", "URLs of a NATS cluster for the journal, in place of a local file")
	f.StringVar(&durability, "durability", "", "when a message counts as recorded: disk, replicated or memory")
	f.StringSliceVar(&allow, "network-allow", nil, "private addresses that the hub may call, besides network.allow: "+
		"prefixes, addresses, or loopback")
	f.StringVar(&level, "log", "", "log level: debug, info, warn or error (default info)")
	return c
}

// ready writes the hub's addresses, and a link to its console.
func (a *app) ready(n *node.Node, c node.Config) error {
	at := n.Addresses()
	link, err := n.ConsoleLink()
	if err != nil {
		return err
	}
	if a.json {
		return a.print(struct {
			node.Addresses
			Console string `json:"console,omitempty"` // lets one browser in, within 10 minutes
		}{at, link}, "")
	}
	hub, table, _ := strings.Cut(at.String(), "\n")
	fmt.Fprintf(a.out, "%s is ready\n%s\n  data       %s: %s\n", hub, table, c.Data, n.Hub().Journal().Promise())
	if link != "" {
		fmt.Fprintf(a.out, "  console    %s\n             lets one browser in within 10 minutes; "+
			"`parley console` prints another link\n", link)
	}
	return nil
}

// openError adds advice to an error that has none.
func openError(err error) error {
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w\n        run the hub as the user who owns its data directory", err)
	}
	return err
}

// reloadOn reloads the configuration at each signal. The log has the result.
func reloadOn(ctx context.Context, n *node.Node, hup <-chan os.Signal) {
	for {
		select {
		case <-hup:
			_, _ = n.Reload(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (a *app) logger(level string, v *slog.LevelVar) (*slog.Logger, error) {
	var l slog.Level
	if level != "" {
		if err := l.UnmarshalText([]byte(level)); err != nil {
			return nil, usage("log level %q: want debug, info, warn or error", level)
		}
	}
	v.Set(l)
	o := &slog.HandlerOptions{Level: v}
	if a.json {
		return slog.New(slog.NewJSONHandler(a.errs, o)), nil
	}
	return slog.New(slog.NewTextHandler(a.errs, o)), nil
}

// terminal is the standard error if progress can be shown there, else nil.
func (a *app) terminal() *os.File {
	if f, ok := a.errs.(*os.File); ok && !a.json && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// progress shows the progress of long work on a terminal.
func (a *app) progress() func(what string, done, total uint64) {
	if f := a.terminal(); f != nil {
		return progressOn(f, time.Now)
	}
	return nil
}

// patience is how long a command may work before it shows its progress.
const patience = time.Second

// progressOn shows on w how much of each piece of work is done, once the whole has taken longer than patience.
func progressOn(w io.Writer, now func() time.Time) func(what string, done, total uint64) {
	began := now()
	var mu sync.Mutex
	var bar *progressbar.ProgressBar
	var of string
	return func(what string, done, total uint64) {
		mu.Lock()
		defer mu.Unlock()
		if bar != nil && of != what {
			_ = bar.Clear() // a bar that cannot be drawn harms nothing
			bar = nil
		}
		if bar == nil {
			if done >= total || now().Sub(began) < patience {
				return
			}
			bar, of = progressbar.NewOptions64(int64(total), progressbar.OptionSetWriter(w),
				progressbar.OptionSetDescription(what),
				progressbar.OptionShowCount(), progressbar.OptionShowIts(),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish()), what
		}
		if bar.GetMax64() != int64(total) {
			bar.ChangeMax64(int64(total))
		}
		_ = bar.Set64(int64(done))
		if done >= total {
			bar = nil
		}
	}
}

// passphrase reads the keyring's passphrase from the environment: other users could read
// a flag.
func (a *app) passphrase() ([]byte, error) {
	if file := os.Getenv("PARLEY_PASSPHRASE_FILE"); file != "" {
		f, err := os.Open(file)
		if err != nil {
			return nil, fmt.Errorf("PARLEY_PASSPHRASE_FILE: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, 64<<10))
		if err != nil {
			return nil, fmt.Errorf("PARLEY_PASSPHRASE_FILE: %w", err)
		}
		return []byte(strings.TrimRight(string(b), "\r\n")), nil
	}
	if p := os.Getenv("PARLEY_PASSPHRASE"); p != "" {
		return []byte(p), nil
	}
	return nil, nil
}

// steadyHeap lets the heap grow to four times its live bytes before a collection,
// unless the environment sets another goal: a hub has few live bytes and allocates
// many, so the default collects all the time. The larger the live heap, the smaller
// the factor, so that a flood of large messages does not make the process large.
func steadyHeap() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(300)
	sample, last := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}, int64(0)
	type cycle struct{ _ *byte }
	// A finalizer runs after each collection and plans the next one by the live bytes
	// that this one found. A timer of a second would be too slow for a flood.
	var collected func(*cycle)
	collected = func(c *cycle) {
		metrics.Read(sample)
		live := max(1, int64(sample[0].Value.Uint64()))
		if goal := heapGoal(live); goal < last-last/16 || goal > last+last/16 {
			last = goal
			debug.SetGCPercent(int((goal - live) * 100 / live))
			// The runtime returns memory beyond the heap sooner.
			debug.SetMemoryLimit(goal + 24<<20)
		}
		runtime.SetFinalizer(c, collected)
	}
	runtime.SetFinalizer(&cycle{}, collected)
}

// heapGoal is the size to which the heap may grow with live bytes in use: four times as
// much or 88 MiB, but at least 60 % more.
func heapGoal(live int64) int64 { return max(live*8/5, min(4*live, 88<<20)) }
