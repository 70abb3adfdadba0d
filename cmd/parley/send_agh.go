package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghnats"
)

// sendAGH joins a channel as a peer and says something there: a request with
// work, or with --kind notice a mere say; to the whole channel without --to.
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
		return usage("say what: an AGH say needs text")
	case s.kind != "request" && s.kind != "notice":
		return usage("--kind %q: want request or notice", s.kind)
	}
	options := []nats.Option{nats.Name("parley send")}
	if s.keyFile != "" {
		token, err := os.ReadFile(s.keyFile)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		options = append(options, nats.Token(strings.TrimSpace(string(token))))
	}
	if scheme, _, ok := strings.Cut(s.url, "://"); ok && !slices.Contains([]string{"nats", "tls", "ws", "wss"}, scheme) {
		return usage("--url %s: peers are reached over NATS: nats://HOST:PORT, or tls://", s.url)
	}
	nc, err := nats.Connect(s.url, options...)
	if err != nil {
		code := exitUnreachable
		if errors.Is(err, nats.ErrAuthorization) {
			code = exitRefused
			err = fmt.Errorf("%w: is the token of agh.users in the file that --key names?", err)
		} else {
			err = fmt.Errorf("cannot reach %s: %w\n        does the hub run, with listen.agh set to that address?", s.url, err)
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
		if last = ev; s.stream && !ev.State.Terminal() {
			if err := a.print(json.RawMessage(ev.Envelope.Raw()), "    %s  %s\n", ev.Envelope.Kind, clean(string(ev.Envelope.Body))); err != nil {
				return err
			}
		}
	}
	if last.Verified == nil || !last.State.Terminal() {
		return &exitError{exitRefused, errors.New("the work was not ended in time")}
	}
	if last.State != agh.StateCompleted {
		return &exitError{exitRefused, fmt.Errorf("the work ended as %s: %s", last.State, clean(string(last.Envelope.Body)))}
	}
	trace, ok := last.Envelope.Content().(*agh.Trace)
	if !ok {
		return &exitError{exitFailed, errors.New("the work was completed by something that is no trace")}
	}
	text := string(trace.Result)
	if text == "" {
		text = trace.Message
	}
	return a.print(map[string]any{"work": last.Envelope.WorkID, "state": last.State, "message": trace.Message, "result": orNull(trace.Result)}, "%s\n", clean(text))
}

func orNull(b json.RawMessage) json.RawMessage {
	if len(b) == 0 {
		return json.RawMessage("null")
	}
	return b
}

func aghError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &exitError{exitRefused, errors.New("no answer in time")}
	}
	return &exitError{exitRefused, err}
}
