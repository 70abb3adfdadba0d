package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/internal/supervise"
)

func (a *app) mcpAttachCommand() *cobra.Command {
	var at, tokenFile, dir string
	var env []string
	c := &cobra.Command{
		Use:   "attach NAME [flags] -- COMMAND [ARGUMENT…]",
		Short: "Run an MCP server, and join it to a hub as an agent",
		Long: `Run an MCP server that speaks over standard input and output, and join it to a running
hub: its tools are the skills of the agent NAME. The command dials the hub, so the server's
machine needs no open port, and runs until it is interrupted. When the server or the
connection to the hub ends, it starts anew, with growing pauses up to a minute.

No shell reads COMMAND. The server sees only the environment that --env lists, without
even PATH; COMMAND itself is looked up in the PATH of this command. Everything that the
server starts ends with it. What it writes to standard error goes to the log, on the
standard error of this command; with --json the log is JSON.

The hub is that of the data directory, or the one at --url. The token is that of the agent
(parley tokens add NAME --agent NAME).`,
		Example: `  parley mcp attach files --token-file files.token --env PATH --env HOME -- \
    npx -y @modelcontextprotocol/server-filesystem /srv
  parley mcp attach files --url https://hub.corp --token-file files.token --env LOG=debug --dir /srv -- files-server`,
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 1 || len(args) < 2 {
				return usage("want the agent's name, then --, then the server's command line\n        usage: %s",
					cmd.UseLine())
			}
			return nil
		},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := parley.CheckName(args[0]); err != nil {
				return usage("%w", err)
			}
			to, err := a.mcpTunnelTo(at, tokenFile, "/attach/"+args[0])
			if err != nil {
				return err
			}
			server := supervise.Command{Args: args[1:], Dir: dir, MaxLine: mcpMessage, WriteWait: 10 * time.Second}
			if server.Env, err = listedEnvironment(env, os.LookupEnv); err != nil {
				return err
			}
			if _, err := exec.LookPath(server.Args[0]); err != nil {
				return usage("%w\n        give the path of a program that is on this machine", err)
			}
			log, err := a.logger("info", new(slog.LevelVar))
			if err != nil {
				return err
			}
			server.Log = log
			return (&mcpAttachment{name: args[0], to: to, server: server, log: log, now: a.now, sleep: sleep.For}).
				run(cmd.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&at, "url", "", "base URL of the hub (default: as the data directory says)")
	f.StringVar(&tokenFile, "token-file", "", "file with the agent's token")
	f.StringArrayVar(&env, "env", nil, "a variable of the server's environment: KEY=VALUE, or KEY with its value here; "+
		"may be repeated")
	f.StringVar(&dir, "dir", "", "the server's working directory (default: this one)")
	return c
}

// listedEnvironment is the environment that --env lists.
func listedEnvironment(list []string, lookup func(string) (string, bool)) (env []string, err error) {
	seen := map[string]bool{}
	for _, v := range list {
		key, _, given := strings.Cut(v, "=")
		switch {
		case key == "":
			return nil, usage("--env %q: want KEY or KEY=VALUE", v)
		case seen[key]:
			return nil, usage("--env %s: it is listed twice", key)
		}
		seen[key] = true
		if !given {
			value, ok := lookup(key)
			if !ok {
				return nil, usage("--env %s: it is not set here; set it, or give its value: --env %[1]s=VALUE", key)
			}
			v += "=" + value
		}
		env = append(env, v)
	}
	return env, nil
}

// Pauses before another attempt.
const (
	attachPause   = time.Second // the first; then doubled
	attachLongest = time.Minute
	attachHealthy = time.Minute // of one attempt: then the next pause is short again
)

// An mcpAttachment joins a server to a hub: each tunnel has a process of its own.
type mcpAttachment struct {
	name   string
	to     mcpTunnelTo
	server supervise.Command
	log    *slog.Logger
	now    func() time.Time
	sleep  func(context.Context, time.Duration) error
}

// run keeps the server joined until ctx ends, or the hub refuses it for good.
func (m *mcpAttachment) run(ctx context.Context) error {
	pause := attachPause
	for {
		begin := m.now()
		err := m.once(ctx)
		if ctx.Err() != nil {
			m.log.Info("the server is detached", "agent", m.name)
			return nil
		}
		if e, ok := errors.AsType[*exitError](err); ok && e.code == exitRefused {
			return e
		}
		if m.now().Sub(begin) >= attachHealthy {
			pause = attachPause
		}
		// Not all at once after a restart of the hub.
		wait := pause/2 + rand.N(pause/2)
		m.log.Warn("the server is not attached", "agent", m.name, "error", err, "again_in", wait.Round(time.Millisecond))
		if m.sleep(ctx, wait) != nil {
			return nil
		}
		pause = min(2*pause, attachLongest)
	}
}

// once opens a tunnel, and runs the server as long as both last.
func (m *mcpAttachment) once(ctx context.Context) error {
	t, err := m.to.open(ctx)
	if err != nil {
		return err
	}
	p, err := supervise.Start(m.server)
	if err != nil {
		t.close(websocket.StatusInternalError, "the server cannot be started")
		return err
	}
	m.log.Info("the server is attached", "agent", m.name, "hub", m.to.url.Host)
	ended := make(chan error, 2)
	var copying sync.WaitGroup
	copying.Go(func() { // from the server
		for {
			b, err := p.Read()
			if err != nil {
				ended <- fmt.Errorf("the server ended: %w", err)
				return
			}
			if err := t.write(b); err != nil {
				ended <- lostHub(err)
				return
			}
		}
	})
	copying.Go(func() { // to the server
		for {
			b, err := t.read()
			if err != nil {
				if websocket.CloseStatus(err) == mcp.StatusReplaced {
					err = &exitError{exitRefused, fmt.Errorf("%w\n        another `parley mcp attach %s` runs: end one of them",
						lostHub(err), m.name)}
				} else {
					err = lostHub(err)
				}
				ended <- err
				return
			}
			if err := p.Write(b); err != nil {
				ended <- fmt.Errorf("the server ended: %w", err)
				return
			}
		}
	})
	code := websocket.StatusInternalError
	select {
	case err = <-ended:
	case <-ctx.Done():
		code, err = websocket.StatusGoingAway, errors.New("detached")
	}
	t.close(code, err.Error())
	p.Stop()
	copying.Wait()
	return err
}
