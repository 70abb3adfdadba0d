package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	exam "github.com/parley-hub/parley/internal/doctor"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/uagents"
)

var uagentsProtocol = protocol{
	name: "uagents",
	add: adding{
		how:  "--uagents ADDRESS",
		help: "  parley agents add bob --uagents agent1q…\n",
		flags: func(c *cobra.Command) adder {
			v := values(c, "uagents", "endpoint")
			return adder{given: func() bool { return *v["uagents"] != "" }, identity: v.identity("uagents", "")}
		},
	},
	checkAddress:   func(d *doctor, ctx context.Context, at exam.WayPoint) { d.UAgentsAddress(ctx, at) },
	way:            uagentsWay,
	keyless:        true, // a uAgent's address is its key
	verifyExported: (*signatureChecks).uagents,
	send:           (*app).sendUAgents,
	demo:           (*demo).uagentsScenes,
	keys:           (*app).keysUAgents,
	bench:          (*app).benchUAgentsCommand,
}

// sendUAgents sends an envelope directly to a uAgent, signed with a key of a
// file or, without one, as an unsigned user.
func (a *app) sendUAgents(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	switch {
	case s.url == "":
		return usage("say where: --url of the agent's endpoint (…/submit), or of the registry that knows it " +
			"(a hub, https://agentverse.ai)")
	case s.to == "":
		return usage("say which agent: --to agent1q…")
	case s.from != "" || s.conversation != "" || s.key != "" || s.stream || s.as != "":
		return usage("--from, --conversation, --idempotency-key, --stream and --as are not for --protocol uagents; " +
			"the key is the identity")
	}
	m, err := uagentsMessage(s, raw, isJSON)
	if err != nil {
		return err
	}
	c := &uagents.Client{HTTP: directHTTP(), Timeout: s.wait}
	if s.keyFile != "" {
		if c.Identity, err = uagentsKey(s.keyFile); err != nil {
			return err
		}
	} else if c.User, err = uagents.NewUser(); err != nil {
		return err
	}
	c.Resolver = uagents.Almanac(s.url)
	if strings.HasSuffix(s.url, "/submit") {
		c.Resolver = uagents.Endpoints{uagents.ParseIdentifier(s.to).Address: {s.url}}
	}
	if s.noWait {
		st, err := c.Send(ctx, s.to, m)
		if err != nil {
			return uagentsError(err)
		}
		return a.print(map[string]string{"to": st.Address, "session": st.Session, "endpoint": st.Endpoint},
			"taken by %s, session %s\n", clean(st.Endpoint), st.Session)
	}
	r, err := c.Ask(ctx, s.to, m)
	if err != nil {
		return uagentsError(err)
	}
	text := string(r.Payload)
	switch r.Schema {
	case uagents.ChatMessageDigest:
		if chat, err := uagents.DecodeChatMessage(r.Payload); err == nil {
			text = chat.Text()
		}
	case uagents.ChatAcknowledgementDigest:
		text = "acknowledged; the answer goes to the endpoint or the mailbox of the sender"
	}
	return a.print(map[string]any{"session": r.Envelope.Session, "schema": r.Schema, "assurance": r.Assurance,
		"payload": orEmpty(r.Payload)}, "%s\n(%s)\n", clean(text), r.Assurance)
}

// messageModel is class Message(message: str).
const messageModel = `{"title":"Message","type":"object",` +
	`"properties":{"message":{"title":"Message","type":"string"}},"required":["message"]}`

// uagentsMessage is a chat message, or with --skill model:… the JSON of that
// model, or with --skill message class Message(message: str).
func uagentsMessage(s sending, raw []byte, isJSON bool) (uagents.Message, error) {
	text := string(raw)
	switch {
	case s.skill == "" || s.skill == "chat":
		m := uagents.NewChat(time.Now(), uagents.Text(text)).Message()
		return m, m.Err()
	case s.skill == "message":
		m, err := uagents.ParseModel([]byte(messageModel))
		if err != nil {
			return uagents.Message{}, err
		}
		out := m.Message(map[string]string{"message": text})
		return out, out.Err()
	case uagents.IsSchemaDigest(s.skill) && isJSON && !s.text:
		b, err := uagents.MessageJSON(raw)
		return uagents.Message{Schema: s.skill, Payload: b}, err
	}
	return uagents.Message{}, usage("--skill %q: want chat (the default), message, or model: and 64 hexadecimal "+
		"digits with CONTENT in JSON", s.skill)
}

// uagentsKey reads a private key: 64 hexadecimal digits, alone or in the
// reference's private_keys.json.
func uagentsKey(path string) (*uagents.Identity, error) {
	text, err := secretIn(path)
	if err != nil {
		return nil, err
	}
	var all map[string]struct {
		Key string `json:"identity_key"`
	}
	if json.Unmarshal([]byte(text), &all) == nil && len(all) == 1 {
		for _, k := range all {
			text = k.Key
		}
	}
	id, err := uagents.LoadIdentity(text)
	if err != nil {
		return nil, usage("--key %s: want 64 hexadecimal digits, or a private_keys.json with one agent", path)
	}
	return id, nil
}

// uagentsError shows an agent's error.
func uagentsError(err error) error {
	e := uagents.AsError(err)
	code := exitRefused
	status, answered := errors.AsType[*uagents.StatusError](err)
	if !answered && (errors.Is(e, uagents.ErrUndelivered) || errors.Is(e, uagents.ErrUnresolved)) {
		code = exitUnreachable
	}
	text := clean(e.Text)
	if cause := e.Unwrap(); cause != nil {
		text += " (" + clean(cause.Error()) + ")"
	}
	ref := e.Ref
	if answered {
		ref = status.Ref
	}
	return &exitError{code, atHub(e.Code+": "+text, ref)}
}

// uagents verifies a message of uAgents: the sender's address is its key.
func (v *signatureChecks) uagents(_ context.Context, m *admin.ExportMessage, _ string) (reason string, err error) {
	e, err := uagents.Decode(m.Origin.Raw)
	if err != nil {
		return "", err
	}
	if e.Sender != m.Origin.Peer {
		return "", fmt.Errorf("it is from %s, the record says %s", e.Sender, m.Origin.Peer)
	}
	// The signature does not depend on the hub's other tolerances.
	lenient := &uagents.Verifier{Now: func() time.Time { return m.Origin.Received }, AllowExpired: true,
		AllowNonce: true, AllowDuplicates: true, LenientPayload: true}
	_, err = lenient.Check(e)
	return "", err
}
