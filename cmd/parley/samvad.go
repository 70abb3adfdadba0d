package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	exam "github.com/parley-hub/parley/internal/doctor"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/internal/inspect"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/samvad"
)

var samvadProtocol = protocol{
	name: bridge.Protocol,
	add: adding{
		how: "--samvad URL (--id agent://HOST with --key for one that only calls)",
		help: `  parley agents add weather --samvad https://weather.corp
  parley agents add weather --samvad http://127.0.0.1:3002 --key BASE64 --wait 2m
  parley agents add caller --id agent://client.local --key BASE64
`,
		flags: func(c *cobra.Command) adder {
			var s samvadFlags
			f := c.Flags()
			f.StringVar(&s.url, "samvad", "", "base URL of an agent that speaks SAMVAD")
			f.StringVar(&s.id, "id", "", "its identity, agent://HOST (default: that of its card)")
			f.StringVar(&s.key, "key", "", "its public key, base64 (default: that of its card)")
			f.StringVar(&s.keyID, "key-id", "", "id of that key (default: it answers to any)")
			return adder{
				given:    func() bool { return s.url != "" || s.id != "" },
				identity: s.identity,
				paste: func(_ *app, info admin.Info, _ string, id admin.NewIdentity) ([]paste, error) {
					return pasteSAMVAD(info.SAMVAD, id), nil
				},
				hub: func(h admin.Hosting) string {
					if h.Identity == "" {
						return ""
					}
					return fmt.Sprintf("\nthe hub\n  identity   %s\n  public key %s\n  agents at  %s/agents/NAME\n",
						h.Identity, h.Key, h.Base)
				},
				hint: "\nA client of an SDK may have an identity and a key of its own (Python: " +
					"agent://client-client);\n" +
					"add it as an agent too: parley agents add NAME-client --id agent://… --key BASE64\n",
			}
		},
	},
	checkID:        samvadID,
	checkHub:       (*doctor).samvadHub,
	checkAddress:   func(d *doctor, ctx context.Context, at exam.WayPoint) { d.SAMVADAddress(ctx, at) },
	way:            samvadWay,
	verifyExported: (*signatureChecks).samvad,
	attested:       tokenReplaced,
	send:           (*app).sendSAMVAD,
	bench:          (*app).benchSamvadCommand,
}

// samvadFlags are the flags of `agents add` for an agent of SAMVAD.
type samvadFlags struct{ url, id, key, keyID string }

// samvadID refuses a flag that is no identity of SAMVAD.
func samvadID(id string) error {
	if _, err := samvad.AgentOrigin(id); err != nil {
		return usage("--id %q: want agent://HOST or agent://HOST:PORT", id)
	}
	return nil
}

// identity reads the agent's card, which has its identity, skills and key.
func (s *samvadFlags) identity(ctx context.Context, a *app, n *admin.NewAgent, out *added) (admin.NewIdentity, error) {
	id := admin.NewIdentity{Protocol: "samvad", ID: s.id, URL: strings.TrimRight(s.url, "/"), PublicKey: s.key,
		KeyID: s.keyID}
	note := func(format string, args ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, args...)) }
	if s.key != "" {
		if _, err := samvad.ParseKey(s.key); err != nil {
			return id, usage("--key: want the base64 of an Ed25519 public key, 32 bytes: %w", err)
		}
	}
	if s.id != "" {
		if err := samvadID(s.id); err != nil {
			return id, err
		}
	}
	if s.url == "" {
		if s.key == "" {
			note("without --key nothing it sends is proved, unless its card at the https origin of %s has a key", id.ID)
		}
		return id, nil
	}
	u, ok := webURL(s.url)
	if !ok {
		return id, usage("--samvad %q: want http(s)://HOST[:PORT][/PATH]", s.url)
	}
	defer func() {
		if why := a.notCalled(u.Hostname()); why != nil {
			note("the hub calls it only if its configuration allows that: %s", why)
		}
	}()
	card, err := (&samvad.Client{HTTP: &http.Client{}}).Card(ctx, id.URL)
	if err != nil {
		note("its card could not be read (%s): its skills are not known", short(rootCause(err), 200))
		if id.ID == "" {
			id.ID = "agent://" + u.Hostname()
			note("its identity is taken to be %s, as the SDKs make it; --id says otherwise", id.ID)
		}
		if id.PublicKey == "" {
			note("no key is enrolled: run this again with --key, or when the agent runs")
		}
		return id, nil
	}
	if id.ID != "" && id.ID != card.ID {
		return id, usage("--id %s: the agent's card says %s", id.ID, clean(card.ID))
	}
	id.ID = card.ID
	n.Title = cmp.Or(n.Title, card.Name)
	n.Description = card.Description
	for _, k := range card.Skills {
		v := admin.Skill{ID: k.ID, Name: k.Name, Description: k.Description, Access: parley.Access(k.Trust),
			Peers: k.AllowedPeers, Input: json.RawMessage(k.InputSchema), Output: json.RawMessage(k.OutputSchema)}
		for _, m := range k.Modes {
			v.Modes = append(v.Modes, parley.Mode(m))
		}
		n.Skills = append(n.Skills, v)
	}
	if id.PublicKey != "" {
		return id, nil
	}
	active := slices.DeleteFunc(card.PublicKeys, func(k samvad.CardKey) bool { return !k.Active })
	switch {
	case len(active) == 0:
		note("its card has no active key: run this again with --key")
	case u.Scheme == "http" && !netguard.OnThisMachine(u.Hostname()):
		note("its card came over plain http and may be forged, so its key was not enrolled; if the key is right, "+
			"run this again with --key %s", clean(active[0].Key))
	default:
		id.PublicKey = active[0].Key
		if b, err := base64.StdEncoding.DecodeString(id.PublicKey); err == nil {
			note("key %s was taken from its card; compare it with the agent's operator",
				keyring.Fingerprint(keyring.Ed25519, b))
		}
		if len(active) > 1 {
			note("its card has %d active keys; the first was enrolled, add the others with `parley keys enroll`",
				len(active))
		}
	}
	return id, nil
}

// notCalled says why a hub of this configuration would not call a host, as far as the
// host's name shows.
func (a *app) notCalled(host string) error {
	if host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	c, err := a.load()
	if err != nil {
		return nil // the hub reports this fault when it starts
	}
	g, err := guardOf(&c)
	if err != nil {
		return nil
	}
	return g.CheckAddr(addr)
}

// pasteSAMVAD gives the lines with which an SDK's agent trusts the hub, and calls through
// it.
func pasteSAMVAD(hub admin.Hosting, i admin.NewIdentity) []paste {
	if hub.Identity == "" {
		return nil
	}
	var out []paste
	if i.URL != "" {
		why := "so that the agent accepts what the hub sends (before it is served)"
		out = append(out,
			paste{why, "TypeScript", fmt.Sprintf("agent.trustPeer('%s', Buffer.from('%s', 'base64'))", hub.Identity,
				hub.Key)},
			paste{why, "Python", fmt.Sprintf("agent.trust_peer(%q, %q)", hub.Identity, hub.Key)})
	}
	why := "so that it calls the agent NAME through the hub"
	return append(out,
		paste{why, "TypeScript", fmt.Sprintf("const client = await AgentClient.from('%s/agents/NAME', { agentId: "+
			"'%s' })", hub.Base, i.ID)},
		paste{why, "Python", fmt.Sprintf("client = await AgentClient.from_url(\"%s/agents/NAME\")", hub.Base)})
}

// sendSAMVAD calls an agent directly, signed.
func (a *app) sendSAMVAD(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	switch {
	case s.url == "" && s.to == "":
		return usage("say which agent: --url URL, or --to agent://HOST")
	case s.keyFile == "" || s.as == "":
		return usage("say who you are: --key FILE and --as agent://HOST; `parley keys new --protocol samvad --id " +
			"agent://me --out me.json` makes a key")
	case s.skill == "":
		return usage("say which skill: --skill ID (the agent's card at /.well-known/agent.json lists them)")
	case s.from != "" || s.conversation != "" || s.key != "" || s.text:
		return usage("--from, --conversation, --idempotency-key and --text are for messages through a hub")
	}
	if len(raw) > 0 && (!isJSON || strings.TrimSpace(string(raw))[0] != '{') {
		return usage(`a SAMVAD payload is a JSON object: write '{"text":"…"}', or what the skill's schema asks for`)
	}
	me, err := samvad.LoadIdentity(s.keyFile, s.as)
	if err != nil {
		return &exitError{exitUsage, err}
	}
	// An address from the command line may be on this machine, too.
	client := &samvad.Client{Identity: me, HTTP: &http.Client{}, Timeout: s.wait}
	call := samvad.Call{URL: s.url, To: s.to, Skill: s.skill, Payload: bytes.TrimSpace(raw)}
	if s.tokenFile != "" {
		token, err := secretIn(s.tokenFile)
		if err != nil {
			return usage("--token-file: %w", err)
		}
		if token == "" {
			return usage("--token-file: %s holds no token", s.tokenFile)
		}
		call.Auth = &samvad.Auth{Scheme: "bearer", Token: token}
	}
	switch {
	case s.stream:
		for e, err := range client.Stream(ctx, call) {
			if err != nil {
				return samvadError(err)
			}
			if err := a.samvadEvent(e); err != nil {
				return err
			}
		}
		return nil
	case s.noWait:
		id, err := client.Send(ctx, call)
		if err != nil {
			return samvadError(err)
		}
		return a.print(map[string]string{"taskId": id}, "accepted as task %s\n", clean(id))
	}
	r, err := client.Ask(ctx, call)
	if err != nil {
		return samvadError(err)
	}
	return a.print(map[string]any{"traceId": r.TraceID, "spanId": r.SpanID, "result": orEmpty(r.Result)}, "%s\n",
		clean(string(orEmpty(r.Result))))
}

func (a *app) samvadEvent(e samvad.Event) error {
	v := struct {
		Chunk  json.RawMessage `json:"chunk,omitempty"`
		Done   bool            `json:"done"`
		Result json.RawMessage `json:"result,omitempty"`
		State  string          `json:"state,omitempty"`
	}{json.RawMessage(e.Chunk), e.Done, json.RawMessage(e.Result), e.State}
	if e.Done {
		return a.print(v, "%s\n", clean(string(orEmpty(e.Result))))
	}
	return a.print(v, "    %s\n", clean(cmp.Or(e.State, string(e.Chunk))))
}

// samvadError shows an agent's error, with advice.
func samvadError(err error) error {
	e, ok := errors.AsType[*samvad.Error](err)
	if !ok {
		return err
	}
	code := exitRefused
	if e.Step == samvad.StepClient && e.Code == samvad.CodeAgentUnavailable && !errors.Is(err, samvad.ErrRemote) {
		code = exitUnreachable
	}
	text := fmt.Sprintf("%s: %s", e.Code, clean(e.Text))
	if cause := e.Unwrap(); cause != nil && code == exitUnreachable {
		text += " (" + clean(cause.Error()) + ")"
	}
	if errors.Is(err, samvad.ErrOutcomeUnknown) {
		text += "\n        the agent may have served the request all the same: look there before you send it again"
	}
	if e.Code == samvad.CodeAuthFailed {
		text += "\n        is your public key enrolled there? `parley keys export-public --file KEYFILE` prints it"
	}
	return &exitError{code, atHub(text, e.Ref)}
}

// samvad verifies a SAMVAD message; reason says why that is impossible.
func (v *signatureChecks) samvad(_ context.Context, m *admin.ExportMessage, base string) (reason string, err error) {
	o := &m.Origin
	header := http.Header{}
	for name, value := range o.Header {
		header.Set(name, value)
	}
	if header.Get("Signature") == "" {
		return "the signature's headers are not in the file", nil
	}
	var keys []samvad.Key
	for _, k := range o.Keys {
		if k.Algorithm == "ed25519" {
			keys = append(keys, samvad.Key{KID: k.KeyID, Public: k.Public, Source: "the export"})
		}
	}
	if len(keys) == 0 {
		return "the hub had no enrolled key of the sender: it verified the message with a key that it fetched", nil
	}
	in := &samvad.Incoming{Method: http.MethodPost, Paths: v.candidates(m.To, base), Header: header, Body: o.Raw}
	verify := samvad.VerifySignature
	if tokenReplaced(m) {
		verify = samvad.VerifyDetached
	}
	_, err = verify(in, o.Received, keys...)
	if errors.Is(err, samvad.ErrUnknownKey) {
		return "the key that signed it is no longer enrolled", nil
	}
	if err != nil {
		err = fmt.Errorf("%w (where a proxy changed its path, name that with --path)", err)
	}
	return "", err
}

// tokenReplaced reports whether a SAMVAD message, and its envelope, was recorded with
// a digest in place of its token.
func tokenReplaced(m *admin.ExportMessage) bool {
	from, to := jsonx.Find(m.Origin.Raw, "auth", "token")
	return bridge.TokenReplaced([]byte(m.Extensions[bridge.Protocol])) &&
		strings.HasPrefix(string(m.Origin.Raw[from:to]), `"`+bridge.TokenDigest)
}

// candidates are the paths to which a message may have been sent: all paths that the hub
// accepts.
func (v *signatureChecks) candidates(to, base string) []string {
	return append(slices.Clone(v.paths), inspect.SAMVADServed(to, base)...)
}
