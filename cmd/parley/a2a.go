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

	exam "github.com/parley-hub/parley/internal/doctor"

	wire "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/go-jose/go-jose/v4"
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/inspect"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/jwks"
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
			s := a2aFlags{peerFlags: peerFlags{protocol: bridge.Protocol}}
			f := c.Flags()
			f.StringVar(&s.value, "a2a", "", "URL below which the card of an A2A agent is; or new: an agent that calls "+
				"the hub and has no URL")
			s.declare(f)
			return adder{
				given:    func() bool { return s.value != "" || s.shows() },
				identity: s.identity,
				paste: func(_ *app, info admin.Info, name string, id admin.NewIdentity) ([]paste, error) {
					return pasteA2A(info.PublicURL, name, id), nil
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

// a2aFlags are the flags of `agents add` for an agent of A2A.
type a2aFlags struct {
	peerFlags
	value string
}

// identity makes the identity, and for an agent elsewhere reads the card.
func (s *a2aFlags) identity(ctx context.Context, a *app, n *admin.NewAgent, out *added) (admin.NewIdentity, error) {
	secrets, err := s.secrets()
	if err != nil {
		return admin.NewIdentity{}, err
	}
	if secrets != nil && (s.value == "" || s.value == "new") {
		return admin.NewIdentity{}, usage("the hub shows credentials to an agent elsewhere: give --a2a URL")
	}
	if s.value == "new" {
		i := bridge.IdentityOfCaller(n.Name)
		return admin.NewIdentity{Protocol: i.Protocol, ID: i.ID}, nil
	}
	i, err := bridge.IdentityAt(s.value)
	if err != nil {
		return admin.NewIdentity{}, usage("--a2a %q: want new, for an agent that calls the hub, or "+
			"http(s)://HOST[:PORT][/PATH], the URL below which the agent's card is", s.value)
	}
	id := admin.NewIdentity{Protocol: i.Protocol, ID: i.ID, URL: i.URL, Credentials: secrets}
	note := func(format string, args ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, args...)) }
	if u, err := url.Parse(i.URL); err == nil {
		if why := a.notCalled(u.Hostname()); why != nil {
			note("the hub calls it only if its configuration allows that: %s", why)
		}
	}
	card, raw, err := readA2ACard(ctx, http.DefaultTransport, i.URL, "")
	if refused, ok := errors.AsType[*notACard](err); ok && (!refused.guarded || secrets == nil) {
		return id, &exitError{exitRefused, refused}
	} else if ok {
		note("its card wants credentials too: its skills are not known yet; the hub reads it before its first call")
		return id, nil
	}
	if err != nil {
		note("its card could not be read (%s): its skills are not known yet; the hub reads it before its first call",
			short(rootCause(err), 200))
		return id, nil
	}
	n.Title, n.Description = cmp.Or(n.Title, short(card.Name, 200)), short(card.Description, 2000)
	note("its card: %s, version %s, A2A %s; %s", clean(card.Name), clean(card.Version),
		strings.Join(a2aVersions(card), " and "), a2aSigned(ctx, http.DefaultTransport, i.URL, raw))
	for _, k := range card.Skills[:min(len(card.Skills), 20)] {
		note("skill %s: %s", clean(k.ID), short(clean(cmp.Or(k.Description, k.Name)), 100))
	}
	if len(card.Skills) > 20 {
		note("and %d more skills", len(card.Skills)-20)
	}
	if len(card.SecurityRequirements) > 0 && secrets == nil {
		note("it wants credentials: add it again with --a2a-token-file, --a2a-api-key-file, --a2a-client-id or "+
			"--a2a-cert, or put it into the configuration, with agents.%s.a2a.token_file, api_key_file, "+
			"oauth or cert", n.Name)
	}
	return id, nil
}

// a2aSigned says what the signatures of a card prove, by the keys that its origin publishes.
func a2aSigned(ctx context.Context, transport http.RoundTripper, base string, raw []byte) string {
	ctx, cancel := context.WithTimeout(ctx, exam.Wait)
	defer cancel()
	c := directHTTP()
	c.Transport = transport
	sets := map[string]jwks.Set{}
	card, err := bridge.VerifyCard(raw, func(s *bridge.CardSignature) []jose.JSONWebKey {
		if _, asked := sets[s.JKU]; !asked && originOf(s.JKU) == originOf(base) && len(sets) < 2 {
			sets[s.JKU], _ = jwks.Fetch(ctx, c, s.JKU) // keys that cannot be read are not known
		}
		return sets[s.JKU].Find(s.KeyID, jose.SignatureAlgorithm(s.Algorithm))
	})
	switch {
	case err != nil:
		return "its signatures are malformed"
	case len(card.Signatures) == 0:
		return "not signed"
	case card.Valid():
		return "signed by " + inspect.SignersOf(card) + ", as its origin publishes the key"
	case slices.ContainsFunc(card.Signatures, func(s bridge.CardSignature) bool { return s.Known }):
		return "WRONGLY signed: the key of " + inspect.SignersOf(card) + " did not sign what came"
	}
	return "signed by " + inspect.SignersOf(card) + ", which its origin does not publish: `parley keys enroll AGENT " +
		"--protocol a2a --key BASE64` vouches for a key"
}

// a2aVersions lists the versions that a card's interfaces speak.
func a2aVersions(card *wire.AgentCard) (out []string) {
	for _, i := range card.SupportedInterfaces {
		if v := clean(string(i.ProtocolVersion)); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	if len(out) == 0 {
		return []string{"of no version: it lists no interface"}
	}
	return out
}

// notACard says that something else than an A2A agent answers at a URL.
type notACard struct {
	text    string
	guarded bool // it wants credentials
}

func (e *notACard) Error() string { return e.text }

const (
	maxA2ACard   = 1 << 20
	maxA2AAnswer = 4 << 20
)

// readA2ACard reads the card below a base URL. If there is none, the error says where one is.
func readA2ACard(ctx context.Context, transport http.RoundTripper, base, version string) (card *wire.AgentCard,
	raw []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, exam.Wait)
	defer cancel()
	at := base + bridge.CardPath
	raw, status, err := getA2A(ctx, transport, at, version)
	if err != nil {
		return nil, nil, err
	}
	if status == http.StatusOK {
		card, err := parseA2ACard(raw)
		if err == nil {
			return card, raw, nil
		}
		return nil, raw, &notACard{text: fmt.Sprintf("what is at %s is not an A2A card: %s\n        "+
			"`curl -s %s | parley inspect -` explains a card member by member", at, short(err.Error(), 200), at)}
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, nil, err
	}
	text := fmt.Sprintf("no A2A card at %s: HTTP %d", at, status)
	guarded := status == http.StatusUnauthorized || status == http.StatusForbidden
	switch origin := u.Scheme + "://" + u.Host; {
	case guarded:
		text += "\n        the card itself wants credentials, which A2A clients do not have before they read it"
	case status >= 500:
		text += "\n        the server there fails now: look at its log, and try again"
	case origin != base && isA2ACard(ctx, transport, origin+bridge.CardPath):
		text += "\n        the card is at the root of its host: give the URL " + origin
	case isSAMVADCard(ctx, transport, base+"/.well-known/agent.json"):
		text += "\n        a SAMVAD agent answers there, which is no A2A agent: give that URL to --samvad, or to " +
			"--protocol samvad"
	case isA2ACard(ctx, transport, base+"/.well-known/agent.json"):
		text += "\n        a card of a version before 0.3 is at " + base + "/.well-known/agent.json: the agent needs a " +
			"newer SDK"
	case status >= 300 && status < 400:
		text += "\n        a redirect to another host is not followed: give the URL to which it leads, without " +
			bridge.CardPath
	default:
		text += "\n        give the URL to which " + bridge.CardPath + " is added, not that of an interface"
		if strings.Contains(u.Path, bridge.Base) {
			text += "\n        at a Parley hub no agent has that name, or it is not exposed: parley agents expose NAME a2a, " +
				"and its other protocols"
		}
	}
	return nil, nil, &notACard{text, guarded}
}

func isA2ACard(ctx context.Context, transport http.RoundTripper, at string) bool {
	raw, status, err := getA2A(ctx, transport, at, "")
	if err != nil || status != http.StatusOK {
		return false
	}
	_, err = parseA2ACard(raw)
	return err == nil
}

func isSAMVADCard(ctx context.Context, transport http.RoundTripper, at string) bool {
	raw, status, err := getA2A(ctx, transport, at, "")
	s := &inspect.Sample{Body: raw}
	return err == nil && status == http.StatusOK && s.Has("id", "publicKeys", "skills")
}

// parseA2ACard parses a card of 1.0 or 0.3. Names of members count exactly.
func parseA2ACard(raw []byte) (*wire.AgentCard, error) {
	var members map[string]jsonx.Value
	if err := jsonx.Decode(raw, &members); err != nil {
		return nil, err
	}
	if members["name"].Kind() != '"' || members["skills"].Kind() != '[' ||
		members["supportedInterfaces"] == nil && members["url"] == nil {
		return nil, errors.New("it lacks name, skills, or supportedInterfaces (0.3: url)")
	}
	card, err := a2av0.NewAgentCardParser()(raw)
	if err != nil {
		return nil, err
	}
	if members["supportedInterfaces"] == nil && inspect.Decoded(members["preferredTransport"]) == "" {
		// 0.3: JSON-RPC then
		card.SupportedInterfaces = append(card.SupportedInterfaces, &wire.AgentInterface{
			URL: inspect.Decoded(members["url"]), ProtocolBinding: wire.TransportProtocolJSONRPC,
			ProtocolVersion: wire.ProtocolVersion(cmp.Or(inspect.Decoded(members["protocolVersion"]), bridge.V03))})
	}
	card.SupportedInterfaces = slices.DeleteFunc(card.SupportedInterfaces, func(i *wire.AgentInterface) bool {
		return i == nil
	})
	for _, i := range card.SupportedInterfaces {
		i.ProtocolVersion = wire.ProtocolVersion(inspect.A2ARelease(string(i.ProtocolVersion)))
	}
	return card, nil
}

// getA2A reads a document. As the hub does, it follows redirects within one origin alone.
func getA2A(ctx context.Context, transport http.RoundTripper, at, version string) (body []byte, status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Accept", "application/json")
	if version != "" {
		r.Header.Set(wire.SvcParamVersion, version)
	}
	c := &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > netguard.DefaultMaxRedirects || originOf(r.URL.String()) != originOf(at) {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	resp, err := c.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err = netguard.ReadAll(resp.Body, maxA2ACard)
	return body, resp.StatusCode, err
}

// pasteA2A are the lines with which an A2A client calls through the hub.
func pasteA2A(public, name string, id admin.NewIdentity) []paste {
	if id.URL != "" {
		return nil
	}
	agent := strings.TrimRight(public, "/") + bridge.Base + "NAME"
	why := "so that it calls the agent NAME through the hub; `parley agents` lists those that are exposed in a2a"
	return []paste{
		{"for its token, at the hub", "shell", "parley tokens add " + strings.ReplaceAll(name, "/", "-") + "-a2a --agent " +
			name},
		{why, "header", "Authorization: Bearer TOKEN"},
		{why, "card", agent + bridge.CardPath},
		{why, "Python", fmt.Sprintf("client = await create_client(%q, client_config=ClientConfig(httpx_client="+
			"httpx.AsyncClient(headers={\"Authorization\": \"Bearer TOKEN\"})))", agent)},
		{why, "shell", "parley send --protocol a2a --url " + agent + " --token-file FILE 'Hello'"},
	}
}

// sendA2A calls an A2A agent directly, by the official SDK.
func (a *app) sendA2A(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	switch {
	case s.url == "":
		return usage("say which agent: --url URL, below which its card is")
	case s.from != "" || s.to != "" || s.as != "" || s.keyFile != "":
		return usage("--from and --to are for messages through a hub, --key and --as for protocols with keys: an A2A caller " +
			"shows a token, --token-file FILE")
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
	card, _, err := readA2ACard(ctx, credentials, i.URL, s.version)
	if refused, ok := errors.AsType[*notACard](err); ok {
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
