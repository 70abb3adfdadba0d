package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/agh/aghnats"
	bridge "github.com/parley-hub/parley/bridge/agh"
)

func (a *app) aghCommand() *cobra.Command {
	return group("agh", "Connect a stock AGH daemon", "  parley agh connect --help", helps, a.aghConnectCommand())
}

func (a *app) aghConnectCommand() *cobra.Command {
	var conn bridge.Connector
	var hub, token string
	c := &cobra.Command{
		Use:   "connect",
		Short: "Run beside an AGH daemon and make its sessions peers at a hub",
		Long: `The NATS of a stock AGH daemon cannot be joined from outside. This command runs
beside it, reads its timelines by its local HTTP API, and makes its sessions
peers of a channel at the hub. What the hub's peers say is said in the daemon as
the session that --session names: keep one for it. Each peer that joins and each
message that it carries is a line of output. Runs until interrupted.

--workspace is the id that ` + "`agh workspace list`" + ` shows, and --session one of
` + "`agh session list`" + `.`,
		Example: "  parley agh connect --workspace ws_alpha --channel builders --session SESSION --hub nats://hub.corp:4222 --key token.txt",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if conn.WorkspaceID == "" || conn.Channel == "" || conn.Session == "" || hub == "" {
				return usage("--workspace, --channel, --session and --hub are needed")
			}
			conn.Daemon = strings.TrimRight(conn.Daemon, "/")
			options := []nats.Option{nats.Name("parley agh connect"), nats.MaxReconnects(-1)}
			if token != "" {
				b, err := os.ReadFile(token)
				if err != nil {
					return &exitError{exitUsage, err}
				}
				options = append(options, nats.Token(strings.TrimSpace(string(b))))
			}
			nc, err := nats.Connect(hub, options...)
			if err != nil {
				return &exitError{exitUnreachable, err}
			}
			defer nc.Close()
			conn.Transport = &aghnats.Transport{Conn: nc}
			var printing sync.Mutex
			conn.Did = func(line string) {
				printing.Lock()
				defer printing.Unlock()
				fmt.Fprintln(a.out, clean(line))
			}
			conn.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
			if err := conn.Run(cmd.Context()); !errors.Is(err, context.Canceled) {
				return &exitError{exitFailed, err}
			}
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&conn.Daemon, "daemon", "http://localhost:2123", "base URL of the daemon's API")
	f.StringVar(&conn.WorkspaceID, "workspace", "", "id of the daemon's workspace; the hub's has the same")
	f.StringVar(&conn.Channel, "channel", "", "channel, at both sides")
	f.StringVar(&conn.Session, "session", "", "session of the daemon as which the hub's peers speak there")
	f.StringVar(&hub, "hub", "", "NATS of the hub, nats://HOST:PORT")
	f.StringVar(&token, "key", "", "file with the hub's token")
	f.DurationVar(&conn.Every, "every", 0, "between two looks at the timelines (default 2s)")
	return c
}
