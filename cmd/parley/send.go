package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// sending holds the flags of send.
type sending struct {
	to, from, skill, kind, conversation, key string
	text, noWait, stream, dryRun, curl       bool
	wait                                     time.Duration

	protocol, url, keyFile, as string
	export, tokenFile, version string
	files                      []string
}

func (a *app) sendCommand() *cobra.Command {
	var s sending
	c := &cobra.Command{
		Use:   "send [CONTENT]",
		Short: "Send a message and show the answer",
		Long: `Send a message to an agent through a running hub, and show the answer. CONTENT
is JSON or text, @FILE, or - for the standard input; without it the message is
empty.

With --protocol the command speaks that protocol itself, to --url, signed with a
key of yours or with your token (--key; a2a, mcp: --token-file); no hub is needed.

With --dry-run nothing is sent or recorded: the hub says whether it would take the
message, where its content does not fit the skill, and what would be lost on the way.

The exit code is 0 when the agent answered, 4 when the hub or the agent refused
or failed, 3 when no hub answers, 1 when no answer can come now because the agent is
paused: the message is recorded and waits at the hub. With --dry-run it is 0 when the
hub would take the message, and 4 when it would refuse it.`,
		Example: `  parley send --to weather '{"city":"Bern"}'
  parley send --to crew/scout --skill report --wait 2m @question.txt
  parley send --to weather --no-wait 'good morning'
  parley send --to weather --dry-run '{"town":"Bern"}'
  parley send --to weather --curl '{"city":"Bern"}'
  parley send --protocol samvad --url http://127.0.0.1:8080/agents/weather \
      --key me.json --as agent://me --skill forecast '{"city":"Bern"}'
  parley send --protocol a2a --url http://127.0.0.1:8080/a2a/weather --token-file my.token \
      --stream '{"city":"Bern"}'
  parley send --protocol mcp --url http://127.0.0.1:8080/mcp/agents/weather --token-file my.token \
      --skill forecast '{"city":"Bern"}'`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var raw []byte
			var isJSON bool
			if len(args) == 1 {
				var err error
				if raw, isJSON, err = a.content(args[0]); err != nil {
					return err
				}
			}
			if s.tokenFile != "" && !slices.Contains([]string{"samvad", "a2a", "mcp"}, s.protocol) {
				return usage("--token-file is for --protocol samvad, a2a and mcp; for messages through a hub its operator sets " +
					"token_file in the agent's table, such as agents.NAME.a2a.token_file")
			}
			if (len(s.files) > 0 || s.version != "") && s.protocol != "a2a" {
				return usage("--file and --version are for --protocol a2a")
			}
			if (s.dryRun || s.curl) && (s.protocol != "" || s.stream || s.dryRun && s.curl) {
				return usage("--dry-run and --curl are each for a message through a hub, without --protocol and --stream")
			}
			if s.protocol == "" {
				return a.sendThrough(cmd.Context(), s, raw, isJSON && !s.text)
			}
			if p := protocolNamed(s.protocol); p != nil && p.send != nil {
				return p.send(a, cmd.Context(), s, raw, isJSON)
			}
			return usage("--protocol %q: only %s can be sent directly; leave it out to send through a hub",
				s.protocol, protocolNames("and"))
		},
	}
	f := c.Flags()
	f.StringVar(&s.to, "to", "",
		"recipient: the agent's name, or its id in a protocol (directly: its identity; default: that of its card)")
	f.StringVar(&s.from, "from", "", "agent as which to send (default: the only agent of the token, or operator)")
	f.StringVar(&s.skill, "skill", "", "operation to call (default: the agent's default skill)")
	for _, p := range protocols {
		if p.sendFlags != nil {
			p.sendFlags(c, &s)
		}
	}
	f.StringVar(&s.tokenFile, "token-file", "", "directly: samvad: file with the bearer token for authenticated skills; "+
		"a2a, mcp: file with your bearer token")
	f.StringVar(&s.kind, "kind", "request", "request or notice")
	f.StringVar(&s.conversation, "conversation", "", "conversation to continue: its id, or the beginning of it")
	f.StringVar(&s.key, "idempotency-key", "", "send at most once under this key, and show the first answer again")
	f.BoolVar(&s.text, "text", false, "CONTENT is text even if it looks like JSON")
	f.DurationVar(&s.wait, "wait", 30*time.Second, "how long to wait for the answer")
	f.BoolVar(&s.noWait, "no-wait", false, "do not wait for the answer")
	f.BoolVar(&s.dryRun, "dry-run", false, "send nothing: say what would become of the message")
	f.BoolVar(&s.curl, "curl", false, "send nothing: show the same as a curl command for the hub's API")
	f.BoolVar(&s.stream, "stream", false, "show the agent's events before its answer")
	f.StringVar(&s.protocol, "protocol", "", protocolNames("or")+": speak it directly, without a hub's API")
	f.StringVar(&s.url, "url", "", "directly: base URL of the agent, host or server; agh: nats://HOST:PORT")
	f.StringVar(&s.keyFile, "key", "", "directly: file with your private key (.json or .key, as the SDKs and parley "+
		"keys new write it; asp: of parley keys asp; a2e and agh: with the token)")
	f.StringVar(&s.as, "as", "", "directly: your identity, agent://HOST; agh: WORKSPACE/CHANNEL/PEER")
	return c
}

func (a *app) sendThrough(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	if s.url != "" || s.keyFile != "" || s.as != "" {
		return usage("--url, --key and --as are for --protocol samvad")
	}
	if s.to == "" {
		return usage("name the recipient: --to AGENT (`parley agents` lists them)")
	}
	m := admin.Send{From: s.from, To: s.to, Skill: s.skill, Conversation: s.conversation, IdempotencyKey: s.key}
	if err := m.Kind.UnmarshalText([]byte(s.kind)); err != nil || m.Kind != parley.Request && m.Kind != parley.Notice {
		return usage("--kind %q: want request or notice; `parley answer` adds to an open request", s.kind)
	}
	if err := checkID(s.conversation, "a conversation", conversationsListed); s.conversation != "" && err != nil {
		return err
	}
	if raw != nil {
		body(&m, raw, isJSON)
	}
	waits := m.Kind == parley.Request && !s.noWait
	if s.stream && !waits {
		return usage("--stream needs a request whose answer is waited for")
	}
	if waits {
		if s.wait <= 0 {
			return usage("--wait %s: want more than nothing, or --no-wait", s.wait)
		}
		m.Timeout = s.wait.String()
	}
	hub, err := a.hub()
	if err != nil {
		return err
	}
	switch {
	case s.dryRun:
		return a.foresee(ctx, hub, m)
	case s.curl:
		command, err := hub.Curl(m, waits)
		if err != nil {
			return err
		}
		return a.print(map[string]string{"curl": command}, "%s\n", command)
	}
	if err := a.tellState(ctx, hub, m.To); err != nil {
		return a.hubError(err)
	}
	if s.stream {
		return a.sendStream(ctx, hub, m)
	}
	send := hub.Send
	if waits {
		send = hub.Ask
	}
	r, err := send(ctx, m)
	if err != nil {
		return a.sendError(m.To, err)
	}
	return a.receipt(ctx, hub, m.To, waits, r)
}

// receipt shows the outcome of a message. waits says that the sender wants an answer now.
func (a *app) receipt(ctx context.Context, hub *admin.Client, to string, waits bool, r admin.Receipt) error {
	switch {
	case a.json:
		err := a.print(r, "")
		switch {
		case err != nil:
		case r.Reply != nil && r.Reply.Kind == parley.Failure:
			err = &exitError{exitRefused, nil}
		case r.Paused() && waits:
			err = &exitError{exitFailed, nil}
		}
		return err
	case r.Paused() && waits:
		return waiting(to, r)
	case r.Paused():
		return a.print(nil, "%s\n", waiting(to, r))
	case r.Reply == nil:
		return a.print(nil, "recorded as %s; on its way to %s\n", r.ID, to)
	}
	return a.answer(ctx, hub, r.Reply)
}

// sendError is hubError for a message that was not recorded: it says who refused.
func (a *app) sendError(to string, err error) error {
	e, ok := errors.AsType[*parley.Error](err)
	if !ok || errors.Is(err, admin.ErrToken) {
		return a.hubError(err)
	}
	p := problemIn(e)
	return &exitError{exitRefused, problemError(p, cause(to, p, ""))}
}

// waiting is the error that a recorded message waits for a paused agent.
func waiting(to string, r admin.Receipt) error {
	until := ""
	if !r.Deadline.IsZero() {
		until = ", if that is before " + stamp(r.Deadline)
	}
	return fmt.Errorf("agent %s is paused; message %s is recorded\n        it will be delivered after `parley agents "+
		"resume %[1]s`%[3]s", clean(to), r.ID, until)
}

// answer shows a terminal reply for people.
func (a *app) answer(ctx context.Context, hub *admin.Client, m *admin.Message) error {
	if m.Kind == parley.Failure {
		e := m.Error
		if e == nil {
			e = &admin.Problem{Code: parley.Internal}
		}
		tried := ""
		if e.Source == parley.ByNetwork { // without its record, the answer says enough
			if request, err := hub.Message(ctx, m.InReplyTo.String(), false); err == nil {
				for _, d := range request.Deliveries {
					tried = cmp.Or(tried, tries(&d))
				}
			}
		}
		return &exitError{exitRefused, problemError(e, cause(m.From, e, tried))}
	}
	return a.print(nil, "%s\n", cmp.Or(shown(m), "(an empty answer)"))
}

func (a *app) sendStream(ctx context.Context, hub *admin.Client, s admin.Send) error {
	var told error
	failed := false
	for m, err := range hub.Stream(ctx, s, func(r admin.Receipt) {
		if told = a.print(r, "recorded as %s\n", r.ID); told == nil && r.Paused() {
			told = waiting(s.To, r)
		}
	}) {
		switch {
		case err != nil:
			return a.sendError(s.To, err)
		case told != nil:
			return told
		case a.json:
			if err := a.print(m, ""); err != nil {
				return err
			}
			failed = m.Kind == parley.Failure
		case m.Kind.Terminal():
			return a.answer(ctx, hub, m)
		default:
			state := "chunk"
			if m.State != parley.NoState {
				state = m.State.String()
			}
			if err := a.print(nil, "%3d %s  %s\n", m.Number, state, shown(m)); err != nil {
				return err
			}
			if m.State == parley.NeedsInput {
				fmt.Fprintf(a.errs, "answer it: parley answer %s CONTENT\n", m.InReplyTo)
			}
		}
	}
	if failed {
		return &exitError{exitRefused, nil}
	}
	return told
}

// atHub adds to the error of an agent or hub that was called directly the reference by which the hub explains it.
func atHub(text, ref string) error {
	if ref = oneLine(ref); ref != "" {
		text += "\n        at that hub: parley explain " + ref
	}
	return errors.New(text)
}

// orEmpty is JSON as it stands, or {} if there is none.
func orEmpty(b []byte) json.RawMessage {
	if len(b) == 0 {
		return json.RawMessage("{}")
	}
	return b
}

// directHTTP is for servers that the user names, on this machine too.
func directHTTP() *http.Client {
	return &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}
