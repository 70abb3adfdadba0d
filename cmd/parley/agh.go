package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
	bridge "github.com/parley-hub/parley/bridge/agh"
	"github.com/parley-hub/parley/node"
)

var aghProtocol = protocol{
	name: bridge.Protocol,
	add: adding{
		how:  "--agh WORKSPACE/PEER",
		help: "  parley agents add patcher --agh ws_alpha/patch-worker.s1 --wait 2m\n",
		flags: func(c *cobra.Command) adder {
			v := values(c, "agh")
			return adder{given: func() bool { return *v["agh"] != "" }, identity: v.identity("agh", "")}
		},
	},
	checkHub:       (*doctor).aghHub,
	checkAddress:   (*doctor).aghAddress,
	way:            aghWay,
	keyless:        true, // a handle names its key
	verifyExported: (*signatureChecks).agh,
	send:           (*app).sendAGH,
	demoConfig:     func(c *node.Config) { c.Listen.AGH, c.AGH = "127.0.0.1:0", demoAGH() },
	demo:           (*demo).aghScenes,
	command:        (*app).aghCommand,
	bench:          (*app).benchAGHCommand,
}

// sendAGH joins a channel as a peer and sends a say: with work, or without it for --kind
// notice; to the whole channel without --to.
func (a *app) sendAGH(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	at := strings.Split(s.as, "/")
	switch {
	case s.url == "":
		return usage("say which NATS: --url nats://HOST:PORT")
	case len(at) != 3:
		return usage("say who you are: --as WORKSPACE/CHANNEL/PEER, e.g. --as acme/builders/me")
	case s.from != "" || s.conversation != "" || s.key != "":
		return usage("--from, --conversation and --idempotency-key are for messages through a hub")
	case len(raw) == 0:
		return usage("give the CONTENT: an AGH say needs text")
	case s.kind != "request" && s.kind != "notice":
		return usage("--kind %q: want request or notice", s.kind)
	}
	options := []nats.Option{nats.Name("parley send")}
	if s.keyFile != "" {
		token, err := secretIn(s.keyFile)
		if err != nil {
			return err
		}
		options = append(options, nats.Token(token))
	}
	if scheme, _, ok := strings.Cut(s.url, "://"); ok &&
		!slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
		return usage("--url %s: peers are reached over NATS: nats://HOST:PORT, or tls://", s.url)
	}
	nc, err := nats.Connect(s.url, options...)
	if err != nil {
		code := exitUnreachable
		if errors.Is(err, nats.ErrAuthorization) {
			code = exitRefused
			err = fmt.Errorf("%w: is the token of agh.users in the file that --key names?", err)
		} else {
			err = fmt.Errorf("cannot reach %s: %w\n        does the hub run, with listen.agh set to that address?",
				s.url, err)
		}
		return &exitError{code, err}
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	me := &agh.Client{Transport: &aghnats.Transport{Conn: nc}, WorkspaceID: at[0], Channel: at[1], PeerID: at[2]}
	if err := me.Join(ctx); err != nil {
		return aghError(err)
	}
	say := &agh.Say{Text: strings.TrimSpace(string(raw)), Intent: s.skill}
	if isJSON && !s.text {
		say.Artifacts = []json.RawMessage{json.RawMessage(say.Text)}
	}
	if s.to == "" {
		e, err := me.Say(ctx, "", say)
		if err == nil {
			err = nc.FlushWithContext(ctx)
		}
		if err != nil {
			return aghError(err)
		}
		return a.print(map[string]string{"id": e.ID, "thread": e.ThreadID}, "said in %s\n", clean(e.ThreadID))
	}
	found := false
	for _, err := range me.Whois(ctx, s.to, "", false) {
		if err != nil {
			return aghError(err)
		}
		found = true
		break
	}
	if !found {
		return &exitError{exitRefused, fmt.Errorf("no peer %s answers in channel %s", clean(s.to), clean(at[1]))}
	}
	if s.kind == "notice" || s.noWait {
		e, err := me.Direct(ctx, s.to, say)
		if err == nil {
			err = nc.FlushWithContext(ctx)
		}
		if err != nil {
			return aghError(err)
		}
		return a.print(map[string]string{"id": e.ID, "room": e.DirectID}, "said in %s\n", clean(e.DirectID))
	}
	var last agh.Event
	for ev, err := range me.Stream(ctx, s.to, say) {
		if err != nil {
			return aghError(err)
		}
		last = ev
		if s.stream && !ev.State.Terminal() {
			if err := a.print(json.RawMessage(ev.Envelope.Raw()), "    %s  %s\n", ev.Envelope.Kind,
				clean(string(ev.Envelope.Body))); err != nil {
				return err
			}
		}
	}
	if last.Verified == nil || !last.State.Terminal() {
		return &exitError{exitRefused, errors.New("the work was not ended in time")}
	}
	if last.State != agh.StateCompleted {
		return &exitError{exitRefused, aghFailure(last)}
	}
	trace, ok := last.Envelope.Content().(*agh.Trace)
	if !ok {
		return errors.New("the work was completed by something that is no trace")
	}
	text := cmp.Or(string(trace.Result), trace.Message)
	return a.print(map[string]any{"work": last.Envelope.WorkID, "state": last.State, "message": trace.Message,
		"result": trace.Result}, "%s\n", clean(text))
}

// aghFailure is the error of work that was not completed. A hub states in ext how it explains that: by its reference of
// the refusal, or by the message.
func aghFailure(e agh.Event) error {
	text := string(e.Envelope.Body)
	switch c := e.Envelope.Content().(type) {
	case *agh.Receipt:
		text = strings.TrimPrefix(string(c.Reason)+": "+c.Detail, ": ")
	case *agh.Trace:
		text = c.Message
	}
	var hub struct {
		Ref     string `json:"ref"`
		Message string `json:"message"`
	}
	_ = json.Unmarshal(e.Envelope.ExtValue(bridge.ExtParley), &hub) // without a hub there is none
	return atHub(fmt.Sprintf("the work ended as %s: %s", e.State, clean(text)), cmp.Or(hub.Ref, hub.Message))
}

func aghError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &exitError{exitRefused, errors.New("no answer in time")}
	}
	return &exitError{exitRefused, err}
}

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
		Example: "  parley agh connect --workspace ws_alpha --channel builders --session SESSION --hub " +
			"nats://hub.corp:4222 --key token.txt",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if conn.WorkspaceID == "" || conn.Channel == "" || conn.Session == "" || hub == "" {
				return usage("--workspace, --channel, --session and --hub are needed")
			}
			conn.Daemon = strings.TrimRight(conn.Daemon, "/")
			options := []nats.Option{nats.Name("parley agh connect"), nats.MaxReconnects(-1)}
			if token != "" {
				secret, err := secretIn(token)
				if err != nil {
					return err
				}
				options = append(options, nats.Token(secret))
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
				return err
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

// agh verifies the proof of an AGH message: the sender's handle names its key.
func (v *signatureChecks) agh(ctx context.Context, m *admin.ExportMessage, _ string) (reason string, err error) {
	got, err := (&agh.Verifier{Trust: true, Lenient: true,
		Now: func() time.Time { return m.Origin.Received }}).Verify(ctx, m.Origin.Raw)
	switch {
	case err != nil:
		return "", err
	case !got.Verdict.Verified:
		return "", errors.New("it has no proof")
	case got.Envelope.WorkspaceID+"/"+got.Envelope.From != m.Origin.Peer:
		return "", fmt.Errorf("it is from %s/%s, the record says %s", got.Envelope.WorkspaceID, got.Envelope.From,
			m.Origin.Peer)
	}
	return "", nil
}
