package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/connect"
	"github.com/parley-hub/parley/node"
)

var aspProtocol = protocol{
	name: "asp",
	add: adding{
		how:  "--asp CARD",
		help: "  parley agents add anna --asp anna-card.json --wait 2m\n",
		flags: func(c *cobra.Command) adder {
			var card string
			c.Flags().StringVar(&card, "asp", "", "file with the card of an ASP agent (parley keys asp makes one)")
			return adder{
				given:    func() bool { return card != "" },
				identity: func(string) (admin.NewIdentity, error) { return aspIdentity(card) },
				absent:   "has the agent the hub as its server, and opened or answered a session?",
			}
		},
	},
	way:            aspWay,
	verifyExported: (*signatureChecks).asp,
	sendFlags: func(c *cobra.Command, s *sending) {
		c.Flags().StringVar(&s.export, "export", "", "with --protocol asp: file to write the session's transcript to")
	},
	send:  (*app).sendASP,
	demo:  (*demo).aspScenes,
	keys:  (*app).keysASP,
	bench: (*app).benchASPCommand,
}

// aspWay is the way to an agent with a table of ASP.
func aspWay(_ *node.Config, a *node.Agent) *hub.Way {
	if a.ASP == nil {
		return nil
	}
	return &hub.Way{ID: a.ASP.ID, How: "it holds its sessions at the hub"}
}

// maxCardFile bounds the file of a card, in bytes.
const maxCardFile = 1 << 20

// aspIdentity reads the card of an ASP agent: it holds the identity and both keys.
func aspIdentity(path string) (id admin.NewIdentity, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return id, usage("--asp: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxCardFile {
		return id, usage("--asp %q: want the file of a card", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return id, usage("--asp: %w", err)
	}
	if id, err = connect.ASPIdentity(b); err != nil {
		text := ""
		if _, keys := asp.LoadIdentity(path); keys == nil {
			text = fmt.Sprintf("\n        these are the agent's private keys, which the hub must never see: its "+
				"card is what `parley keys asp --key %s` prints", path)
		}
		return id, usage("--asp %q: %s%s", path, parley.AsError(err).Text, text)
	}
	return id, nil
}

// sendASP opens a session with an agent, sends one message, waits for the answer and
// closes the session.
func (a *app) sendASP(ctx context.Context, s sending, raw []byte, isJSON bool) (err error) {
	switch {
	case s.url == "":
		return usage("say where: --url of the server that both agents are registered with, e.g. http://127.0.0.1:8080")
	case s.to == "":
		return usage("say which agent: --to agent://domain/department/name")
	case s.keyFile == "":
		return usage("say who you are: --key FILE; `parley keys asp --id agent://me.example/me/cli --out me.json` " +
			"makes a key")
	case s.from != "" || s.conversation != "" || s.key != "" || s.stream || s.as != "":
		return usage("--from, --conversation, --idempotency-key, --stream and --as are not for --protocol asp; the " +
			"key file says who you are")
	}
	me, err := asp.LoadIdentity(s.keyFile)
	if err != nil {
		return usage("--key: want a file that `parley keys asp` made: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	c := &asp.Client{Server: s.url, Identity: me, HTTP: directHTTP()}
	if _, err := c.Card(ctx, me.ID()); err != nil {
		card := me.Card()
		card.Name = me.ID()
		// The server's own error says more clearly that its registration is closed.
		if err := c.Register(ctx, card, nil); err != nil {
			return aspError(err)
		}
	}
	session, err := c.Open(ctx, asp.Invitation{To: []string{s.to}, Purpose: s.skill})
	if err != nil {
		return aspError(err)
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		if cerr := session.Close(ctx, "done"); err == nil && cerr != nil {
			err = aspError(cerr)
		}
		if s.export != "" {
			err = errors.Join(err, exportASP(ctx, session, s.export))
		}
	}()
	for m, err := range session.Messages(ctx) {
		if err != nil {
			return aspError(err)
		}
		if m.Performative == asp.Reject {
			return &exitError{exitRefused, fmt.Errorf("the agent declined the session: %s", clean(string(m.Body)))}
		}
		if m.State == asp.Introduced || m.State == asp.Conversing {
			break
		}
	}
	var content any
	text := strings.TrimSpace(string(raw))
	switch {
	case text == "":
	case isJSON && !s.text && text[0] == '{':
		content = json.RawMessage(text)
	case isJSON && !s.text:
		content = map[string]json.RawMessage{"value": json.RawMessage(text)}
	default:
		content = map[string]string{"text": string(raw)}
	}
	if s.noWait {
		e, err := session.Send(ctx, asp.Inform, asp.Information{InformType: "message", Topic: s.skill, Data: content})
		if err != nil {
			return aspError(err)
		}
		return a.print(map[string]string{"sessionId": session.ID(), "messageId": e.MessageID}, "recorded as %s\n",
			e.MessageID)
	}
	q, err := session.Send(ctx, asp.Query, asp.Question{QueryType: cmp.Or(s.skill, "message"), Parameters: content})
	if err != nil {
		return aspError(err)
	}
	for m, err := range session.Messages(ctx) {
		if err != nil {
			return aspError(err)
		}
		var b struct {
			QueryID    string          `json:"queryId"`
			InformType string          `json:"informType"`
			Topic      string          `json:"topic"`
			Reason     string          `json:"reason"`
			Code       string          `json:"code"`
			Data       json.RawMessage `json:"data"`
		}
		if ref := m.Reference(); ref == "" || ref != q.MessageID && !strings.Contains(string(q.Content.Body), ref) ||
			json.Unmarshal(m.Body, &b) != nil {
			continue
		}
		switch {
		case m.Performative == asp.Reject, b.InformType == "error":
			var failed struct {
				Ref string `json:"ref"`
			}
			_ = json.Unmarshal(b.Data, &failed) // other agents send other data
			reason, ref, _ := strings.Cut(cmp.Or(b.Reason, b.Topic), " (reference ")
			return &exitError{exitRefused, atHub(clean(b.Code)+": "+clean(reason),
				cmp.Or(failed.Ref, strings.TrimSuffix(ref, ")")))}
		case m.Performative != asp.Inform:
		case slices.Contains([]string{"progress", "accepted", "chunk", "input-required"}, b.InformType):
			if !a.json {
				if err := a.print(nil, "    %s %s\n", b.InformType, clean(string(b.Data))); err != nil {
					return err
				}
			}
		default:
			return a.print(map[string]any{"sessionId": session.ID(), "messageId": m.MessageID, "from": m.Sender.AgentID,
				"data": orEmpty(b.Data)}, "%s\n", clean(string(orEmpty(b.Data))))
		}
	}
	return &exitError{exitRefused, errors.New("no answer: the session ended or the time is over")}
}

// exportASP writes the transcript of a session to a new file.
func exportASP(ctx context.Context, session *asp.Session, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = session.Export(ctx, f)
	return errors.Join(err, f.Close())
}

// aspError shows a server's error, with advice.
func aspError(err error) error {
	e, ok := errors.AsType[*asp.Error](err)
	if !ok {
		return &exitError{exitUnreachable, err}
	}
	text := fmt.Sprintf("%s: %s", e.Code, clean(e.Text))
	if e.Code == "registration_closed" {
		text += "\n        the operator adds you: agents.<name>.asp.card in the configuration, or asp.registration " +
			"= \"open\""
	}
	return &exitError{exitRefused, atHub(text, e.Reference)}
}

func (a *app) keysASP() *cobra.Command {
	var id, org, out, show, url string
	c := &cobra.Command{
		Use: "asp", Short: "Make or replace the two keys of an ASP agent, or show its card",
		Long: `Make an ASP identity, an Ed25519 key for messages and a P-256 key for proofs, in
a file of mode 0600, and print the agent's card with both public keys. With --key
the card of an identity that is there already is printed.

With --key, --out and --url the keys are replaced: new ones are made in the file
of --out, and the hub is told by proof of both the old and the new keys. The old
ones stay known there for what was said with them. An agent in an open session
cannot change its keys.`,
		Example: "  parley keys asp --id agent://corp.example/sales/anna --org org_corp --out anna.json\n  parley " +
			"keys asp --key anna.json > anna-card.json\n  parley keys asp --key anna.json --out anna-2.json --url " +
			"http://hub.corp:8080",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var me *asp.Identity
			var err error
			switch {
			case url != "" && (show == "" || out == "" || id != ""):
				return usage("keys are replaced with --key FILE of the old ones, --out FILE for the new ones, and " +
					"--url of the hub")
			case url != "":
				if me, err = asp.LoadIdentity(show); err == nil {
					me, err = replaceASP(cmd.Context(), me, out, url)
				}
			case show != "" && (id != "" || out != ""):
				return usage("--key shows an identity; --id and --out make one; to replace its keys, say at which " +
					"hub: --url")
			case show != "":
				me, err = asp.LoadIdentity(show)
			case id == "" || out == "":
				return usage("name the agent, and the file for its keys: --id agent://domain/department/name --out FILE")
			default:
				if me, err = asp.GenerateIdentity(id, org); err != nil {
					return usage("--id %q: want agent://domain/department/name: %w", id, err)
				}
				err = me.Save(out)
			}
			if _, coded := errors.AsType[*exitError](err); err != nil && !coded {
				err = &exitError{exitUsage, err}
			}
			if err != nil {
				return err
			}
			card := me.Card()
			card.Name = me.ID()
			b, err := card.JSON()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.out, "%s\n", b)
			if err == nil && out != "" && !a.json {
				_, err = fmt.Fprintf(a.errs, "keys in %s; give the card above to other agents and servers\n", out)
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&id, "id", "", "agent URI: agent://domain/department/name")
	f.StringVar(&org, "org", "org_private", "organization")
	f.StringVar(&out, "out", "", "file to write the private keys to")
	f.StringVar(&show, "key", "", "file with an identity, to show its card or to replace its keys")
	f.StringVar(&url, "url", "", "hub at which the keys are replaced")
	return c
}

// replaceASP gives an agent new keys at a hub. The file is written before the hub gets
// the keys, and removed if the hub refuses them.
func replaceASP(ctx context.Context, old *asp.Identity, out, url string) (*asp.Identity, error) {
	me, err := asp.GenerateIdentity(old.ID(), old.OrgID())
	if err != nil {
		return nil, err
	}
	c := &asp.Client{Server: url, Identity: old, HTTP: directHTTP()}
	card, err := c.Card(ctx, old.ID())
	if err != nil {
		return nil, aspError(err)
	}
	if !card.SigningKey.Equal(old.Public().Signing) {
		return nil, errors.New("the hub knows this agent by other keys than those of --key")
	}
	next := me.Card()
	next.Name, next.Description, next.Capabilities, next.Endpoints = card.Name, card.Description, card.Capabilities,
		card.Endpoints
	if err := me.Save(out); err != nil {
		return nil, err
	}
	if err := (&asp.Client{Server: url, Identity: me, HTTP: directHTTP()}).Register(ctx, next, old); err != nil {
		if _, refused := errors.AsType[*asp.Error](err); refused { // otherwise the hub may have accepted them
			return nil, errors.Join(aspError(err), os.Remove(out))
		}
		return nil, fmt.Errorf("whether the hub took the new keys, in %s, is not known; `parley keys asp --key` "+
			"with either file and --url tells: %w", out, err)
	}
	return me, nil
}

// asp verifies hash, signature and proof of an ASP message with its sender's card.
// Only the transcript shows its place in the session.
func (v *signatureChecks) asp(ctx context.Context, m *admin.ExportMessage, _ string) (reason string, err error) {
	o := &m.Origin
	at := slices.IndexFunc(o.Keys, func(k admin.ExportKey) bool { return k.Algorithm == admin.AlgorithmASPCard })
	if at < 0 {
		return "the sender's card is not in the file: it was no longer registered with the hub", nil
	}
	card, err := asp.ParseCard(o.Keys[at].Public)
	if err != nil {
		return "", fmt.Errorf("the sender's card: %w", err)
	}
	form := asp.JSON
	if len(o.Raw) > 0 && o.Raw[0]&0x80 != 0 { // a map of MessagePack, never the beginning of JSON
		form = asp.MessagePack
	}
	_, err = (&asp.Verifier{Keys: card, Now: func() time.Time { return o.Received }}).Verify(ctx, o.Raw,
		asp.Transport{Format: form, Agent: o.Peer})
	return "", err
}
