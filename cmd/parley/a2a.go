package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	wire "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/connect"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/node"
)

var a2aProtocol = protocol{
	name: bridge.Protocol,
	add: adding{
		how: "--a2a URL or new",
		help: `  parley agents add lab --a2a https://lab.example/agents/one --expose all
  parley agents add lab --a2a https://lab.example/agents/one --a2a-token-file lab.token
  parley agents add caller --a2a new
`,
		flags: func(c *cobra.Command) adder {
			v, s := values(c, "a2a"), &peerFlags{protocol: bridge.Protocol}
			s.declare(c.Flags())
			return adder{
				given: func() bool { return *v["a2a"] != "" || s.shows() },
				identity: func(name string) (admin.NewIdentity, error) {
					if *v["a2a"] == "new" || *v["a2a"] == "" {
						return s.unshown(v.identity("a2a", "calls"), "an agent", "--a2a URL")(name)
					}
					return s.shownBy(v.identity("a2a", ""))(name)
				},
			}
		},
	},
	checkID: func(id string) error {
		if _, err := bridge.IdentityAt(id); err != nil {
			return usage("--id %q: want the URL below which the agent's card is", id)
		}
		return nil
	},
	unsigned:     "A2A messages have no signatures: the caller's token or certificate answers for them",
	checkHub:     (*doctor).a2aHub,
	checkAddress: (*doctor).a2aAddress,
	way:          a2aWay,
	sendFlags: func(c *cobra.Command, s *sending) {
		f := c.Flags()
		f.StringArrayVar(&s.files, "file", nil, "with --protocol a2a: file to send with the message (more than once for "+
			"several)")
		f.StringVar(&s.version, "version", "", "with --protocol a2a: version of the protocol, 1.0 or 0.3 (default: the "+
			"newest of the card)")
	},
	send:  (*app).sendA2A,
	demo:  (*demo).a2aScenes,
	bench: (*app).benchA2ACommand,
}

// a2aWay is the way to an agent with a table of A2A.
func a2aWay(_ *node.Config, a *node.Agent) *hub.Way {
	switch {
	case a.A2A == nil || a.A2A.URL == "" && !a.A2A.Calls:
		return nil
	case a.A2A.Calls:
		return &hub.Way{How: "it calls the hub; the hub cannot call it"}
	}
	i, err := bridge.IdentityAt(a.A2A.URL)
	if err != nil {
		return nil // the configuration's check says so
	}
	return &hub.Way{ID: i.ID, How: "the hub calls it", Addresses: []string{i.URL}}
}

const maxA2AAnswer = 4 << 20

// sendA2A calls an A2A agent directly, by the official SDK.
func (a *app) sendA2A(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	switch {
	case s.url == "":
		return usage("say which agent: --url URL, below which its card is")
	case s.from != "" || s.to != "" || s.as != "" || s.keyFile != "":
		return usage("--from and --to are for messages through a hub, --key and --as for protocols with keys: an A2A " +
			"caller shows a token, --token-file FILE")
	case s.kind != "request":
		return usage("--kind %q: an A2A client sends requests only", s.kind)
	case s.version != "" && s.version != bridge.V1 && s.version != bridge.V03:
		return usage("--version %q: want %s or %s", s.version, bridge.V1, bridge.V03)
	case s.stream && s.noWait:
		return usage("--stream and --no-wait exclude each other")
	case len(raw) == 0 && len(s.files) == 0:
		return usage("an A2A message has at least one part: give CONTENT, or --file FILE")
	}
	i, err := bridge.IdentityAt(s.url)
	if err != nil {
		return usage("--url %q: want http(s)://HOST[:PORT][/PATH], the URL below which the agent's card is", s.url)
	}
	parts, err := a2aParts(raw, isJSON && !s.text, s.files)
	if err != nil {
		return err
	}
	credentials, err := newA2ACredentials(i.URL, s.tokenFile)
	if err != nil {
		return err
	}
	card, _, err := connect.ReadA2ACard(ctx, credentials, i.URL, s.version)
	if refused, ok := errors.AsType[*connect.NotACard](err); ok {
		return &exitError{exitRefused, refused}
	} else if err != nil {
		return &exitError{exitUnreachable, fmt.Errorf("%w\n        is the agent running, and is --url right?", err)}
	}
	var listed []string
	for _, i := range card.SupportedInterfaces {
		listed = append(listed, clean(string(i.ProtocolBinding)+" "+string(i.ProtocolVersion)))
	}
	versions := []string{bridge.V1, bridge.V03}
	if s.version != "" {
		versions = []string{s.version}
	}
	card.SupportedInterfaces = slices.DeleteFunc(card.SupportedInterfaces, func(i *wire.AgentInterface) bool {
		return !slices.Contains(versions, string(i.ProtocolVersion))
	})
	direct := directHTTP()
	direct.Transport = credentials
	client, err := newA2AClient(ctx, card, direct)
	if err != nil {
		return &exitError{exitRefused, fmt.Errorf("this command speaks JSON-RPC and HTTP+JSON in %s, and the card lists no "+
			"such interface: it has %s", strings.Join(versions, " and "), cmp.Or(strings.Join(listed, ", "), "none"))}
	}
	m := wire.NewMessage(wire.MessageRoleUser, parts...)
	m.ID, m.ContextID = cmp.Or(s.key, m.ID), s.conversation
	if s.skill != "" {
		m.Extensions = []string{bridge.ExtensionURI}
		m.SetMeta(bridge.ExtensionURI, map[string]any{"skill": s.skill})
		ctx = a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{
			strings.ToLower(wire.SvcParamExtensions): {bridge.ExtensionURI}})
	}
	request := &wire.SendMessageRequest{Message: m, Config: &wire.SendMessageConfig{ReturnImmediately: s.noWait}}
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	if s.stream {
		return credentials.explain(a.streamA2A(ctx, client, request))
	}
	r, err := client.SendMessage(ctx, request)
	if err != nil {
		return credentials.explain(a2aError(err))
	}
	switch t, ok := r.(*wire.Task); {
	case ok && s.noWait:
		return a.print(t, "task %s in context %s: %s\n", clean(string(t.ID)), clean(t.ContextID), t.Status.State)
	case ok:
		return a.a2aTask(t)
	}
	reply, ok := r.(*wire.Message)
	if !ok {
		return fmt.Errorf("the answer is a %T", r)
	}
	return a.print(reply, "%s\n", cmp.Or(a2aText(reply.Parts), "(an empty answer)"))
}

// newA2AClient makes a client that speaks both versions over HTTP.
func newA2AClient(ctx context.Context, card *wire.AgentCard, c *http.Client) (*a2aclient.Client, error) {
	return a2aclient.NewFromCard(ctx, card, a2aclient.WithDefaultsDisabled(), a2aclient.WithJSONRPCTransport(c),
		a2aclient.WithRESTTransport(c),
		a2aclient.WithCompatTransport(a2av0.Version, wire.TransportProtocolJSONRPC,
			a2av0.NewJSONRPCTransportFactory(a2av0.JSONRPCTransportConfig{Client: c})),
		a2aclient.WithCompatTransport(a2av0.Version, wire.TransportProtocolHTTPJSON,
			a2av0.NewRESTTransportFactory(a2av0.RESTTransportConfig{Client: c})))
}

// a2aCredentials shows a token to one origin alone: a card may name any URL. It keeps the
// status and reference of the last answer, which the SDK does not give.
type a2aCredentials struct {
	origin, token string
	status        int
	ref           string
}

func newA2ACredentials(base, file string) (*a2aCredentials, error) {
	c := new(a2aCredentials)
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	c.origin = u.Scheme + "://" + u.Host
	if file == "" {
		return c, nil
	}
	if c.token, err = secretIn(file); err != nil {
		return nil, usage("--token-file: %w", err)
	}
	if c.token == "" {
		return nil, usage("--token-file: %s holds no token", file)
	}
	return c, nil
}

// RoundTrip implements http.RoundTripper.
func (c *a2aCredentials) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.token != "" && r.URL.Scheme+"://"+strings.ToLower(r.URL.Host) == c.origin {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	c.status, c.ref = resp.StatusCode, resp.Header.Get("Parley-Ref") // a refusal of JSON-RPC has the status 200
	if c.status == http.StatusOK && strings.HasPrefix(r.Header.Get("Accept"), "text/event-stream") {
		return a2aEvents(resp)
	}
	return resp, nil
}

// a2aEvents makes an event of an answer that should be a stream and is plain JSON: so do agents refuse
// before the first event, and the SDK would not see it.
func a2aEvents(resp *http.Response) (*http.Response, error) {
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")) // "" is no stream
	if media == "text/event-stream" {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := netguard.ReadAll(resp.Body, maxA2AAnswer)
	if err != nil {
		return nil, err
	}
	event := bytes.NewBufferString("data: ")
	if err := json.Compact(event, b); err != nil {
		return nil, fmt.Errorf("the answer is no stream, and no JSON: %w", err)
	}
	event.WriteString("\n\n")
	resp.Body, resp.ContentLength = io.NopCloser(event), int64(event.Len())
	return resp, nil
}

// explain adds to an error what the HTTP answer said.
func (c *a2aCredentials) explain(err error) error {
	if err == nil || c.status < 400 && c.ref == "" {
		return err
	}
	text := err.Error()
	switch c.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		text += "\n        is the token right? --token-file FILE names the file that holds it"
	case http.StatusTooManyRequests:
		text += "\n        it was too often; wait, and send it again"
	}
	return &exitError{exitRefused, atHub(text, c.ref)}
}

// a2aParts makes the parts of a message: the content, then the files.
func a2aParts(raw []byte, isJSON bool, files []string) (parts []*wire.Part, err error) {
	switch {
	case len(raw) == 0:
	case isJSON:
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.UseNumber() // every digit goes on
		var v any
		if err := decoder.Decode(&v); err != nil {
			return nil, err
		}
		parts = append(parts, wire.NewDataPart(v))
	default:
		parts = append(parts, wire.NewTextPart(string(raw)))
	}
	for _, path := range files {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		p := wire.NewRawPart(b)
		p.Filename = filepath.Base(path)
		p.MediaType = cmp.Or(mime.TypeByExtension(filepath.Ext(path)), "application/octet-stream")
		parts = append(parts, p)
	}
	return parts, nil
}

// streamA2A shows the events of a task as they come.
func (a *app) streamA2A(ctx context.Context, client *a2aclient.Client, r *wire.SendMessageRequest) error {
	var last wire.TaskState
	var why error
	for e, err := range client.SendStreamingMessage(ctx, r) {
		if err != nil {
			return a2aError(err)
		}
		text := ""
		switch e := e.(type) {
		case *wire.Message:
			last, text = wire.TaskStateCompleted, a2aText(e.Parts)
		case *wire.Task:
			last = e.Status.State
			text = fmt.Sprintf("    task %s in context %s: %s", e.ID, e.ContextID, e.Status.State)
			if e.Status.Message != nil {
				text += "  " + a2aText(e.Status.Message.Parts)
			}
			why = a2aOutcome(last, e.Status.Message)
		case *wire.TaskStatusUpdateEvent:
			last = e.Status.State
			text = "    " + last.String()
			if e.Status.Message != nil {
				text += "  " + a2aText(e.Status.Message.Parts)
			}
			why = a2aOutcome(last, e.Status.Message)
		case *wire.TaskArtifactUpdateEvent:
			if e.Artifact != nil {
				text = a2aText(e.Artifact.Parts)
			}
		}
		if err := a.print(wire.StreamResponse{Event: e}, "%s\n", clean(text)); err != nil {
			return err
		}
	}
	switch {
	case why != nil:
		return why
	case last == "":
		return &exitError{exitRefused, errors.New("the stream ended without an event")}
	case !last.Terminal() && last != wire.TaskStateInputRequired && last != wire.TaskStateAuthRequired:
		return &exitError{exitFailed, fmt.Errorf("the stream ended, and the task is %s", last)}
	}
	return nil
}

// a2aTask shows a task, and makes its state the exit code.
func (a *app) a2aTask(t *wire.Task) error {
	var texts []string
	for _, artifact := range t.Artifacts {
		texts = append(texts, a2aText(artifact.Parts))
	}
	if t.Status.Message != nil && t.Status.State == wire.TaskStateCompleted && len(texts) == 0 {
		texts = append(texts, a2aText(t.Status.Message.Parts))
	}
	text := strings.Join(texts, "\n")
	switch {
	case !t.Status.State.Terminal():
		text = fmt.Sprintf("task %s in context %s: %s", t.ID, t.ContextID, t.Status.State)
		if t.Status.Message != nil {
			text += "\n" + a2aText(t.Status.Message.Parts)
		}
	case text == "":
		text = "(an empty answer)"
	}
	failed := a2aOutcome(t.Status.State, t.Status.Message)
	if failed != nil && !a.json {
		return failed
	}
	if err := a.print(t, "%s\n", clean(text)); err != nil || failed == nil {
		return err
	}
	return &exitError{exitRefused, nil}
}

// a2aOutcome is the error of a task that ended badly.
func a2aOutcome(state wire.TaskState, m *wire.Message) error {
	if !state.Terminal() || state == wire.TaskStateCompleted {
		return nil
	}
	text, ref := "the task is "+state.String(), ""
	if m != nil {
		if said := a2aText(m.Parts); said != "" {
			text += ": " + said
		}
		if parley, ok := m.Meta()[bridge.ExtensionURI].(map[string]any); ok {
			ref, _ = parley["ref"].(string)
		}
	}
	return &exitError{exitRefused, atHub(clean(text), ref)}
}

// a2aText is the content of parts, for people.
func a2aText(parts []*wire.Part) string {
	var out []string
	for _, p := range parts {
		switch v := p.Content.(type) {
		case wire.Text:
			out = append(out, string(v))
		case wire.Data:
			b, err := json.Marshal(v.Value)
			if err != nil {
				b = fmt.Append(nil, v.Value)
			}
			out = append(out, string(b))
		case wire.Raw:
			out = append(out, fmt.Sprintf("[%s %s, %d bytes]", cmp.Or(p.Filename, "a file"), p.MediaType, len(v)))
		case wire.URL:
			out = append(out, fmt.Sprintf("[%s %s at %s]", cmp.Or(p.Filename, "a file"), p.MediaType, string(v)))
		}
	}
	return strings.Join(out, "\n")
}

// a2aError shows an agent's error, with advice.
func a2aError(err error) error {
	e, ok := errors.AsType[*wire.Error](err)
	if !ok {
		var network *url.Error
		if errors.Is(err, context.DeadlineExceeded) {
			return &exitError{exitUnreachable, fmt.Errorf("%w\n        no answer came in time: wait longer (--wait), or do not "+
				"wait for it (--no-wait)", err)}
		}
		if errors.As(err, &network) || errors.Is(err, io.ErrUnexpectedEOF) {
			return &exitError{exitUnreachable, err}
		}
		return &exitError{exitRefused, errors.New(clean(err.Error()))}
	}
	text := clean(cmp.Or(e.Message, e.Error()))
	if reason := wire.ErrorReason(e); reason != "" {
		text = reason + ": " + text
	}
	if errors.Is(err, wire.ErrTaskNotFound) {
		text += "\n        tasks are shown to the caller alone that made them"
	}
	return &exitError{exitRefused, errors.New(text)}
}
