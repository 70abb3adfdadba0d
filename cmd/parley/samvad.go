package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	exam "github.com/parley-hub/parley/internal/doctor"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/internal/inspect"
	"github.com/parley-hub/parley/internal/jsonx"
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
			v := values(c, "samvad", "id", "key", "key-id")
			return adder{
				given:    func() bool { return *v["samvad"] != "" || *v["id"] != "" },
				identity: v.identity("samvad", ""),
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

// samvadID refuses a flag that is no identity of SAMVAD.
func samvadID(id string) error {
	if _, err := samvad.AgentOrigin(id); err != nil {
		return usage("--id %q: want agent://HOST or agent://HOST:PORT", id)
	}
	return nil
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
