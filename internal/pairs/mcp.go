package pairs

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley/node"
)

// mcpPeer is a server of the official Go SDK, unmodified, with the tool "talk", and a client of that SDK with a token
// of the hub. Both speak revision 2026-07-28, in which a call is one HTTP request, and its end is a withdrawal.
type mcpPeer struct {
	common
	door  *door
	calls sync.Map // chan struct{} by idempotency key: closed when the call is over

	turn     sync.Mutex
	sessions map[string]*mcp.ClientSession // of the calls without progress, by endpoint; guarded by turn
	tools    sync.Map                      // name by the name of the agent, at the joined hub
}

// Members of _meta: what the hub adds to a call, a caller to its call, and the hub to a result.
const (
	mcpKey          = "hub.parley/idempotencyKey"
	mcpProvenance   = "hub.parley/provenance"
	mcpHandle       = "hub.parley/handle"
	mcpConversation = "hub.parley/conversation"
)

// mcpRevision is the first one without sessions.
const mcpRevision = "2026-07-28"

func newMCP(name string) (Peer, error) {
	d, err := newDoor()
	return &mcpPeer{common: newCommon("mcp", name), door: d, sessions: map[string]*mcp.ClientSession{}}, err
}

// Agent says that the tool may be called again: a restart of the hub ends the hub's calls.
func (p *mcpPeer) Agent(string) (node.Agent, error) {
	return node.Agent{MCP: &node.MCPAgent{URL: "http://" + p.door.addr + "/mcp", Repeatable: []string{"talk"}}}, nil
}

func (p *mcpPeer) Join(ctx context.Context, at Place, away bool) error {
	p.Leave()
	life := p.begin(at)
	p.tools.Clear()
	if err := p.enlist(ctx, at); err != nil || away {
		return err
	}
	s := mcp.NewServer(&mcp.Implementation{Name: p.name, Title: p.title, Version: "1.0.0"},
		&mcp.ServerOptions{Capabilities: &mcp.ServerCapabilities{}})
	s.AddTool(&mcp.Tool{Name: "talk", Title: p.title, Description: cmp.Or(p.title, "Does what the text says."),
		InputSchema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`)},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return p.serve(ctx, life, r)
		})
	return p.door.open(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s },
		&mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}))
}

func (p *mcpPeer) Leave() {
	p.door.shut()
	p.end()
	p.turn.Lock()
	defer p.turn.Unlock()
	for _, s := range p.sessions {
		_ = s.Close() // the hub may be gone
	}
	clear(p.sessions)
	p.hangUp()
}

// serve is the tool "talk".
func (p *mcpPeer) serve(ctx, life context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var q struct{ Text string }
	if err := json.Unmarshal(r.Params.Arguments, &q); err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	h := mcpHeard(r.Params.Meta, q.Text)
	// A call with a key that is known comes when the earlier one was lost: that one's end is heard first.
	over := make(chan struct{})
	defer close(over)
	if earlier, ok := p.calls.Swap(h.ID, over); ok {
		select {
		case <-earlier.(chan struct{}):
		case <-ctx.Done():
		}
	}
	defer p.calls.CompareAndDelete(h.ID, over)
	gate := p.begins()
	p.hear(h)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(life, stop)()
	var res *mcp.CallToolResult
	answer := func(failed bool) func(string) error {
		return func(text string) error {
			res = &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}, IsError: failed}
			return nil
		}
	}
	pieces, token := 0., r.Params.GetProgressToken()
	err := p.respond(ctx, q.Text, responder{gate: gate, fail: answer(true), complete: answer(false),
		piece: func(text string) error {
			if pieces++; token == nil {
				return nil
			}
			return r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: token, Progress: pieces,
				Message: text})
		}})
	if err == nil && res == nil { // nobody reads the result
		if err = errCancelled; life.Err() == nil {
			p.hear(Heard{ID: h.ID, Cancel: true, Trace: h.Trace})
		}
	}
	return res, err
}

// mcpHeard is a call of the peer's tool, with what the hub states of it.
func mcpHeard(meta mcp.Meta, text string) Heard {
	h := Heard{Text: text}
	h.ID, _ = meta[mcpKey].(string)
	h.Trace, _ = meta["traceparent"].(string)
	b, err := json.Marshal(meta[mcpProvenance])
	var stated struct{ Deadline time.Time }
	if err == nil && json.Unmarshal(b, &stated) == nil {
		h.Provenance, h.Deadline = string(b), stated.Deadline
	}
	return h
}

// bearer shows the hub a token.
type bearer struct {
	http.RoundTripper
	token string
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	if b.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return b.RoundTripper.RoundTrip(r)
}

// mcpAll is the endpoint of the hub for all agents, and mcpOf that of one agent.
const mcpAll = "/mcp"

func mcpOf(agent string) string { return mcpAll + "/agents/" + agent }

// connect opens a session at an endpoint of the hub. events gets every piece of progress; it may be nil.
func (p *mcpPeer) connect(ctx context.Context, endpoint string, events func(string)) (*mcp.ClientSession, error) {
	at, web := p.place()
	o := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}}
	if events != nil {
		o.ProgressNotificationHandler = func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			for _, text := range mcpPieces(r.Params.Message) {
				events(text)
			}
		}
	}
	s, err := mcp.NewClient(&mcp.Implementation{Name: p.name, Version: "1.0.0"}, o).Connect(ctx,
		&mcp.StreamableClientTransport{Endpoint: at.HTTP + endpoint,
			HTTPClient: &http.Client{Transport: bearer{web.Transport, p.credential()}}}, nil)
	if err == nil && s.InitializeResult().ProtocolVersion < mcpRevision { // the SDK's way when the hub goes away meanwhile
		_ = s.Close()
		err = errors.New("pairs: the hub did not answer to " + mcpRevision)
	}
	return s, err
}

// mcpPieces are the pieces that a progress notification tells: a text, or JSON values that the hub has joined.
func mcpPieces(message string) []string {
	var out []string
	for d := json.NewDecoder(strings.NewReader(message)); ; {
		var v json.RawMessage
		if d.Decode(&v) != nil {
			break
		}
		text, err := textOf(v)
		if err != nil {
			break
		}
		out = append(out, text)
	}
	if len(out) == 0 {
		return []string{message}
	}
	return out
}

// with uses the session that calls without progress share, and a new one if that broke in an earlier call.
func (p *mcpPeer) with(ctx context.Context, endpoint string, use func(*mcp.ClientSession) error) error {
	for {
		p.turn.Lock()
		s, err := p.sessions[endpoint], error(nil)
		if s == nil {
			if s, err = p.connect(ctx, endpoint, nil); err == nil {
				p.sessions[endpoint] = s
			}
		}
		p.turn.Unlock()
		if err == nil {
			err = use(s)
		}
		if !errors.Is(err, mcp.ErrConnectionClosed) || ctx.Err() != nil {
			return err
		}
		p.turn.Lock()
		if p.sessions[endpoint] == s {
			delete(p.sessions, endpoint)
			_ = s.Close()
		}
		p.turn.Unlock()
	}
}

// tool gives the name of an agent's tool at its endpoint: talk, or its only one.
func (p *mcpPeer) tool(ctx context.Context, agent string) (string, error) {
	if known, ok := p.tools.Load(agent); ok {
		return known.(string), nil
	}
	var list *mcp.ListToolsResult
	err := p.with(ctx, mcpOf(agent), func(s *mcp.ClientSession) (err error) {
		list, err = s.ListTools(ctx, nil)
		return err
	})
	if err != nil {
		return "", err
	}
	name := ""
	for _, t := range list.Tools {
		if t.Name == "talk" || name == "" && t.Name != mcpResult {
			name = t.Name
		}
	}
	if name == "" {
		return "", &Failure{Text: "the agent has no tool for this caller", Refused: true}
	}
	p.tools.Store(agent, name)
	return name, nil
}

// call calls a tool. With events it does so in a session of its own: its end is behind all progress.
func (p *mcpPeer) call(ctx context.Context, endpoint string, c mcp.CallToolParams, events func(string)) (
	r *mcp.CallToolResult, err error) {
	c.Meta = maps.Clone(c.Meta) // the SDK writes to it
	do := func(s *mcp.ClientSession) error {
		r, err = s.CallTool(ctx, &c)
		return err
	}
	if events == nil {
		return r, p.with(ctx, endpoint, do)
	}
	s, err := p.connect(ctx, endpoint, events)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	c.SetProgressToken("1")
	return r, do(s)
}

// mcpCall is a call with a new trace and a key of its own, so that the same call again is the same request.
func mcpCall(tool string, arguments map[string]any) mcp.CallToolParams {
	return mcp.CallToolParams{Name: tool, Arguments: arguments,
		Meta: mcp.Meta{mcpKey: rand.Text(), "traceparent": newTraceParent()}}
}

// Ask calls an agent's tool. What a call that ends without an answer leaves open, the next one takes up: the same call
// again when the connection broke, and parley_result where the hub gave a handle.
func (p *mcpPeer) Ask(ctx context.Context, q Question) (Answer, error) {
	p.mu.Lock()
	life := p.ctx
	p.mu.Unlock()
	asking, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(life, stop)()
	var c mcp.CallToolParams
	h := mcpRequest{endpoint: mcpOf(q.To.Name())}
	for {
		var r *mcp.CallToolResult
		var err error
		if c.Name == "" {
			var tool string
			if tool, err = p.tool(asking, q.To.Name()); err == nil {
				c = mcpCall(tool, map[string]any{"text": q.Text})
			}
		}
		if err == nil {
			r, err = p.call(asking, h.endpoint, c, q.Events)
		}
		switch f := mcpFailure(err); {
		case life.Err() != nil:
			return Answer{}, errors.New("pairs: the peer left")
		case ctx.Err() != nil && h.id == "": // the hub sees the end of the call
			return Answer{}, context.Cause(ctx)
		case ctx.Err() != nil:
			return Answer{}, cmp.Or(p.withdraw(context.WithoutCancel(ctx), h), context.Cause(ctx))
		case f != nil:
			return Answer{}, f
		case err != nil: // the hub is away
			pause(asking)
		case !mcpWorking(r):
			return mcpAnswer(r)
		case h.id == "":
			h.id, _ = r.Meta[mcpHandle].(string)
			h.conversation, _ = r.Meta[mcpConversation].(string)
			c = h.result()
			q.taken()
		}
	}
}

// mcpRequest is a request of which the hub gave a handle.
type mcpRequest struct{ endpoint, id, conversation string }

const mcpResult = "parley_result"

// result is the call that waits for the answer.
func (h mcpRequest) result() mcp.CallToolParams {
	return mcp.CallToolParams{Name: mcpResult, Arguments: map[string]any{"id": h.id}}
}

// withdraw ends calls of parley_result until the caller's conversation has its cancel, or the request is over. The end
// of a call that the hub has not begun yet says nothing, and no end of a call is answered.
func (p *mcpPeer) withdraw(ctx context.Context, h mcpRequest) error {
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for {
		one, stop := context.WithTimeout(ctx, 300*time.Millisecond)
		r, err := p.call(one, h.endpoint, h.result(), nil)
		stop()
		if mcpFailure(err) != nil || err == nil && !mcpWorking(r) {
			return nil // it is over
		}
		cancelled := false
		_ = p.with(ctx, h.endpoint, func(s *mcp.ClientSession) error { // it is read again
			t, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: "parley://conversations/" + h.conversation})
			cancelled = err == nil && len(t.Contents) == 1 && strings.Contains(t.Contents[0].Text, `"kind":"cancel"`)
			return err
		})
		switch {
		case cancelled:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("pairs: withdraw the question: %w", context.Cause(ctx))
		}
		pause(ctx)
	}
}

// Tell sends a notice. To a server that is a call whose result nobody reads.
func (p *mcpPeer) Tell(ctx context.Context, to Peer, text string) error {
	c := mcpCall("parley_send", map[string]any{"agent": to.Name(), "content": text})
	r, err := p.call(ctx, mcpAll, c, nil)
	if f := mcpFailure(err); f != nil {
		return f
	}
	if err == nil && r.IsError {
		_, err = mcpAnswer(r)
	}
	return err
}

// mcpWorking reports whether a result is a handle: the request is open.
func mcpWorking(r *mcp.CallToolResult) bool {
	return r.Meta[mcpHandle] != nil && r.Meta[mcpProvenance] == nil
}

// mcpAnswer is the answer that a result gives. A refusal is about no recorded request.
func mcpAnswer(r *mcp.CallToolResult) (Answer, error) {
	var texts []string
	for _, c := range r.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			texts = append(texts, t.Text)
		}
	}
	text := strings.Join(texts, "\n")
	if r.IsError {
		return Answer{}, &Failure{Text: text, Refused: r.Meta[mcpHandle] == nil}
	}
	if r.StructuredContent != nil {
		b, err := json.Marshal(r.StructuredContent)
		if err == nil {
			text, err = textOf(b)
		}
		return Answer{Text: text}, err
	}
	return Answer{Text: text}, nil
}

// mcpFailure tells the hub's refusals from a hub that is away; nil: no refusal. Of an HTTP status before the hub has
// read the request, the SDK gives the text alone.
func mcpFailure(err error) error {
	if err == nil {
		return nil
	}
	if f, ok := errors.AsType[*Failure](err); ok {
		return f
	}
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok && (e.Code < -32005 || e.Code > -32003) { // these are the SDK's own
		return &Failure{Text: e.Message, Refused: true}
	}
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound,
		http.StatusRequestEntityTooLarge} {
		if strings.HasSuffix(err.Error(), ": "+http.StatusText(status)) {
			return &Failure{Text: err.Error(), Refused: true}
		}
	}
	return nil
}
