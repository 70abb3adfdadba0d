// Command testhub is a hub for the fault tests: like `parley serve --json`, but with an
// agent in its own process whose handlers leave a trace that outlives the process.
//
// The agent is "worker". Each call of its handlers first appends a line "message-id
// attempt skill" to the file of -trace, in one write. Its skills take any content:
//
//	echo   answers with the content
//	slow   waits as many milliseconds as the content's "ms" says, then echoes
//	steps  sends two chunks, then echoes
//	panic  panics
//
// When the hub is ready it prints its addresses as one line of JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "testhub:", err)
		os.Exit(1)
	}
}

func run() error {
	config := flag.String("config", "", "configuration file of the hub")
	trace := flag.String("trace", "", "file to which each call of a handler is appended")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := node.Load(*config)
	if err != nil {
		return err
	}
	c.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w := &worker{}
	if *trace != "" {
		if w.trace, err = os.OpenFile(*trace, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
			return err
		}
		defer w.trace.Close()
	}
	n, err := node.Open(ctx, c)
	if err != nil {
		return err
	}
	err = n.Handle(w.agent(), w.skills()...)
	if err == nil {
		err = n.Start(ctx)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(n.Addresses())
	}
	if err != nil {
		n.Close(context.WithoutCancel(ctx))
		return err
	}
	return n.Wait(ctx)
}

type worker struct{ trace *os.File }

func (w *worker) agent() parley.Agent {
	return parley.Agent{Name: "worker", Title: "Worker", Description: "Leaves a trace.", Exposed: parley.Everywhere}
}

func (w *worker) skills() []parley.SkillSpec {
	return []parley.SkillSpec{
		w.skill("echo", func(context.Context, *parley.Message, parley.Replier) error { return nil }),
		w.skill("slow", func(ctx context.Context, m *parley.Message, _ parley.Replier) error {
			var q struct {
				Milliseconds int `json:"ms"`
			}
			if err := m.Bind(&q); err != nil {
				return err
			}
			select {
			case <-time.After(time.Duration(q.Milliseconds) * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}),
		w.skill("steps", func(_ context.Context, _ *parley.Message, r parley.Replier) error {
			for i := range 2 {
				if err := r.Chunk(parley.Text(fmt.Sprint("piece ", i+1))); err != nil {
					return err
				}
			}
			return nil
		}),
		w.skill("panic", func(_ context.Context, m *parley.Message, _ parley.Replier) error {
			panic("as asked by " + m.From)
		}),
	}
}

// skill makes a skill that leaves its trace, works, and echoes.
func (w *worker) skill(id string, work parley.Handler) parley.SkillSpec {
	return parley.RawSkill(id, func(ctx context.Context, m *parley.Message, r parley.Replier) error {
		if w.trace != nil {
			if _, err := fmt.Fprintf(w.trace, "%s %d %s\n", m.ID, r.Attempt(), id); err != nil {
				return err
			}
		}
		if err := work(ctx, m, r); err != nil {
			return err
		}
		return r.Reply(m.Parts...)
	})
}
