package samvad

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/internal/source"
	"github.com/parley-hub/parley/internal/sse"
)

// A Handler runs a skill. Its context ends at the deadline of the mode, and
// for sync and stream when the client is gone. An [*Error] it returns is sent
// as it is (code and text); any other error becomes AGENT_UNAVAILABLE with a
// generic text.
type Handler func(ctx context.Context, req *Request) (Response, error)

// A Response is the answer of a skill.
type Response struct {
	Result json.RawMessage // a JSON object; nil = {}
	SpanID string          // of the responder; "" = a fresh one
	Tokens int             // used, for the sender's daily budget
}

// A Request is a verified message on its way to a skill.
type Request struct {
	*Verified
	Agent      *Agent
	Endpoint   Mode            // how the sender wants the answer: the endpoint it posted to
	Skill      *Skill          // of the agent's card; nil if it has none of that id
	Payload    json.RawMessage // validated and fitted to the input schema; numbers as written
	Delegation *Delegation     // of a valid delegation token, else nil
	TaskID     string          // of an async request, once it is accepted
	Header     http.Header     // of the HTTP request
	Remote     string          // network address of the client

	server   *Server
	w        http.ResponseWriter
	cancel   context.CancelFunc // of the context of a stream
	accepted bool
	out      *sse.Writer // of a stream that was accepted
	chunks   int
	progress func(float64) error
}

// Accept is for [Server.Handle]: it says that the request is recorded. It
// answers an async request with the id of its task, and begins the stream of a
// stream request.
func (r *Request) Accept(taskID string) {
	r.accepted, r.TaskID = true, taskID
	switch r.Endpoint {
	case ModeAsync:
		writeAccepted(r.w, taskID)
	case ModeStream:
		r.startStream()
	}
}

// Chunk sends a piece of the result (any JSON value) when the request is a
// stream, and does nothing otherwise. An error means that the client is gone.
func (r *Request) Chunk(v json.RawMessage) error {
	if r.out == nil {
		return nil
	}
	r.chunks++
	return r.write(chunkEvent(v))
}

// Progress notes how much of a task is done, 0 to 1, and does nothing for
// other requests.
func (r *Request) Progress(done float64) error {
	if r.progress == nil {
		return nil
	}
	return r.progress(done)
}

// Defaults of [Server].
const (
	DefaultSyncTimeout  = 28 * time.Second // Python clients give up at 30 s (SAM-154)
	DefaultTaskTimeout  = time.Hour        // of tasks and streams
	DefaultKeepAlive    = 15 * time.Second // SAM-142
	DefaultMaxRunning   = 10000            // handlers at work
	DefaultWriteTimeout = 30 * time.Second // of one event of a stream
)

// A Server serves the seven endpoints of SAMVAD 1.2 §6 for one agent or for many. It
// takes any base path: the part of the request path before /agent/… or /.well-known/…
// is the prefix that [Server.Resolve] sees. It never redirects (SAM-023). Mount it at
// "/" of an http.Server directly or of a mux that does not clean paths.
//
// Its fields must not change while it serves; it must not be copied.
type Server struct {
	// Agent is the one agent that is served, at any host and prefix.
	Agent *Agent
	// Resolve finds the agent of a request by its host (r.Host) and prefix
	// ("" or "/a/bob", no slash at the end); nil means that there is none.
	Resolve func(r *http.Request, prefix string) *Agent

	Verifier *Verifier // nil refuses every sender; Self is taken from the agent
	Limiter  *Limiter  // nil: the server's own
	Tasks    Tasks     // nil: [MemoryTasks]
	Webhook  *Webhook  // nil: the default

	// Handle takes over every request whose signature and limits are in order, in
	// place of the agents' Handlers: it records the request, calls [Request.Accept],
	// and gives the answer, within a time that it bounds itself. The client gets
	// nothing before Accept. An error before it refuses the request; [ErrReplay] says
	// that the same [Envelope.ReplayKey] was recorded before. Where Handle succeeds,
	// only tasks need Accept. Refusal is the error of the checks that follow the
	// limits: Handle records such a request and returns without an error, and the
	// server answers. Nil reserves the nonce in the verifier's memory and runs the
	// Handler.
	Handle func(ctx context.Context, req *Request, refusal *Error) (Response, error)

	// Refused is called for every request that is refused before its skill runs.
	// Its result goes to the client in the header Parley-Ref.
	Refused func(r *http.Request, claim Claim, err *Error) (ref string)

	SyncTimeout time.Duration // of a Handler; 0 = [DefaultSyncTimeout]
	TaskTimeout time.Duration // of a Handler; 0 = [DefaultTaskTimeout]
	KeepAlive   time.Duration // 0 = [DefaultKeepAlive]

	// WriteTimeout is how long a client of a stream may take to read on; the
	// stream of one that takes longer ends. 0 = [DefaultWriteTimeout].
	WriteTimeout time.Duration

	MaxRunning int      // Handlers at work at once; 0 = [DefaultMaxRunning]
	CORS       []string // origins of browsers that may call; "*" = any; none by default

	once     sync.Once
	verifier *Verifier // the defaults where the fields above are nil
	limiter  *Limiter
	tasks    Tasks
	webhook  *Webhook

	start   time.Time
	base    context.Context
	stop    context.CancelFunc
	running atomic.Int64
	mu      sync.Mutex
	closed  bool
	wg      sync.WaitGroup
}

// A Claim holds the unproved statements of a refused request about itself.
type Claim struct {
	Agent    string // identity of the addressed agent; "" if there is none
	Endpoint string // the path
	From     string // "" if the envelope could not be read
	Skill    string
	Nonce    string
	Size     int // bytes of the body, as far as it was read
}

func (s *Server) init() {
	s.once.Do(func() {
		s.verifier, s.limiter = cmp.Or(s.Verifier, &Verifier{}), cmp.Or(s.Limiter, &Limiter{})
		s.webhook, s.tasks = cmp.Or(s.Webhook, &Webhook{Now: s.now}), s.Tasks
		if s.tasks == nil {
			s.tasks = &MemoryTasks{Now: s.now}
		}
		s.start = s.now()
		s.base, s.stop = context.WithCancel(context.Background())
	})
}

func (s *Server) now() time.Time { return s.verifier.now() }

// Close ends the tasks of the server and their webhooks: it waits for them until ctx
// ends, then cancels them and waits for their return. New tasks are refused; other
// requests end with the http.Server.
func (s *Server) Close(ctx context.Context) error {
	s.init()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	defer s.stop()
	inTime := context.AfterFunc(ctx, s.stop)
	s.wg.Wait()
	if !inTime() {
		return ctx.Err()
	}
	return nil
}

// endpoint is one row of the table of §6.
type endpoint struct {
	suffix string
	method string
	serve  func(s *Server, w http.ResponseWriter, r *http.Request, a *Agent, path string)
}

var endpoints = [...]endpoint{
	{pathMessage, http.MethodPost, post(ModeSync)},
	{pathTask, http.MethodPost, post(ModeAsync)},
	{pathStream, http.MethodPost, post(ModeStream)},
	{cardPath, http.MethodGet, (*Server).serveCard},
	{pathIntro, http.MethodGet, (*Server).serveIntro},
	{pathHealth, http.MethodGet, (*Server).serveHealth},
}

var taskEndpoint = endpoint{pathTask + "/{taskId}", http.MethodGet, (*Server).serveTask}

func post(mode Mode) func(*Server, http.ResponseWriter, *http.Request, *Agent, string) {
	return func(s *Server, w http.ResponseWriter, r *http.Request, a *Agent, path string) {
		s.post(w, r, a, mode, path)
	}
}

// find gives the endpoint of a path, and the prefix before it; nil if there is none.
func find(path string) (e *endpoint, prefix string) {
	for i := range endpoints {
		if prefix, ok := strings.CutSuffix(path, endpoints[i].suffix); ok {
			return &endpoints[i], prefix
		}
	}
	if i := strings.LastIndex(path, pathTask+"/"); i >= 0 && !strings.Contains(path[i+len(pathTask)+1:], "/") {
		return &taskEndpoint, path[:i]
	}
	return nil, ""
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.init()
	path := requestPath(r)
	if len(s.CORS) > 0 && s.cors(w, r) {
		return
	}
	e, prefix := find(path)
	var a *Agent
	if e != nil {
		a = s.resolve(r, prefix)
	}
	switch {
	case a == nil:
		s.refuse(w, r, Claim{Endpoint: path}, refuse(ErrNotFound, "", nil))
	case r.Method == e.method || e.method == http.MethodGet && r.Method == http.MethodHead:
		e.serve(s, w, r, a, path)
	default:
		w.Header().Set("Allow", e.method)
		s.refuse(w, r, Claim{Endpoint: path, Agent: a.id()}, refuse(ErrMethod, "", nil))
	}
}

func (s *Server) resolve(r *http.Request, prefix string) *Agent {
	a := s.Agent
	if s.Resolve != nil {
		a = s.Resolve(r, strings.TrimRight(prefix, "/"))
	}
	if a != nil && a.Card == nil {
		return nil
	}
	return a
}

// cors answers preflights and marks answers for browsers (SAM-160).
func (s *Server) cors(w http.ResponseWriter, r *http.Request) (done bool) {
	h := w.Header()
	h.Add("Vary", "Origin")
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	switch {
	case slices.Contains(s.CORS, "*"):
		h.Set("Access-Control-Allow-Origin", "*")
	case slices.Contains(s.CORS, origin):
		h.Set("Access-Control-Allow-Origin", origin)
	default:
		return false
	}
	h.Set("Access-Control-Expose-Headers", "Retry-After, "+refHeader)
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "Content-Type, Content-Digest, Signature-Input, Signature")
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

const refHeader = "Parley-Ref"

// refuse answers an error that arose before the skill ran.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, c Claim, e *Error) {
	if s.Refused != nil {
		if m := e.envelope; m != nil {
			c.From, c.Skill, c.Nonce = m.From, m.Skill, m.Nonce
		}
		if ref := s.Refused(r, c, e); ref != "" {
			w.Header().Set(refHeader, ref)
		}
	}
	WriteError(w, e)
}

func (s *Server) serveCard(w http.ResponseWriter, _ *http.Request, a *Agent, _ string) {
	if err := a.prepare(); err != nil {
		WriteError(w, because(ErrUnavailable, err))
		return
	}
	w.Header().Set("Cache-Control", "public, max-age="+strconv.Itoa(a.Card.ttl()))
	writeJSON(w, http.StatusOK, a.encoded)
}

func (s *Server) serveIntro(w http.ResponseWriter, _ *http.Request, a *Agent, _ string) {
	w.Header().Set("Content-Type", "text/markdown; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	var b bytes.Buffer
	c := a.Card
	fmt.Fprintf(&b, "# %s\n\n%s\n\nSAMVAD %s, `%s`, %s\n\n## Skills\n\n", c.Name, c.Description, Version, c.ID, c.URL)
	for _, k := range c.Skills {
		fmt.Fprintf(&b, "- **%s** (`%s`): %s\n", k.Name, k.ID, k.Description)
	}
	_, _ = w.Write(b.Bytes())
}

func (s *Server) serveHealth(w http.ResponseWriter, _ *http.Request, a *Agent, _ string) {
	type load struct {
		ActiveRequests int64 `json:"activeRequests"`
		QueuedTasks    int64 `json:"queuedTasks"`
	}
	writeValue(w, http.StatusOK, struct {
		Status          string  `json:"status"`
		ProtocolVersion string  `json:"protocolVersion"`
		AgentVersion    string  `json:"agentVersion"`
		Uptime          float64 `json:"uptime"`
		Load            load    `json:"load"`
	}{"ok", Version, cmp.Or(a.Card.Version, "1.0.0"), max(0, s.now().Sub(s.start).Seconds()),
		load{s.running.Load(), 0}})
}

func (s *Server) serveTask(w http.ResponseWriter, r *http.Request, a *Agent, path string) {
	t, err := s.tasks.Get(r.Context(), a.id(), path[strings.LastIndexByte(path, '/')+1:])
	if err == nil {
		var b []byte
		if b, err = t.Encode(); err == nil {
			w.Header().Set("Cache-Control", "no-store")
			writeJSON(w, http.StatusOK, b)
			return
		}
	}
	if errors.Is(err, ErrNotFound) {
		err = refuse(ErrNotFound, "Task not found.", err)
	}
	WriteError(w, err)
}

// post takes a message through all checks in the order of §6 and on to its
// skill.
func (s *Server) post(w http.ResponseWriter, r *http.Request, a *Agent, mode Mode, path string) {
	ctx := r.Context()
	claim := Claim{Agent: a.id(), Endpoint: path}
	if err := a.prepare(); err != nil {
		s.refuse(w, r, claim, AsError(because(ErrUnavailable, err)))
		return
	}
	v := s.verifier
	in, err := v.read(r)
	if err != nil {
		s.refuse(w, r, claim, AsError(err))
		return
	}
	claim.Size = len(in.Body)
	in.Self = a.id()

	m, anonymous := a.lightweight(in, mode, v.now())
	if !anonymous {
		if m, err = v.CheckMessage(ctx, in); err != nil {
			s.refuse(w, r, claim, AsError(err))
			return
		}
	}
	sender := m.From
	if anonymous {
		sender = "ip " + source.Host(r.RemoteAddr)
	}
	if err := s.limiter.Allow(a.id(), sender, a.limit, v.now()); err != nil {
		s.refuse(w, r, claim, m.fail(StepLimits, err))
		return
	}
	m.pass(StepLimits)

	req := &Request{
		Verified: m, Agent: a, Endpoint: mode, Skill: a.Card.Skill(m.Envelope.Skill),
		Payload: m.Envelope.Payload, Header: r.Header, Remote: r.RemoteAddr, server: s, w: w,
	}
	if mode == ModeStream {
		ctx, req.cancel = context.WithCancel(ctx)
		defer req.cancel()
	}
	if isNull(req.Payload) {
		req.Payload = json.RawMessage("{}")
	}
	refusal := s.check(ctx, req)
	resp, err := s.handle(ctx, req, refusal)
	switch {
	case err == nil && refusal == nil:
		if !req.accepted {
			req.Accept("")
		}
	case err == nil && (refusal.Step != StepPayload || mode == ModeSync):
		s.refuse(w, r, claim, refusal)
		return
	// The client looks for the refusal of a payload in the status of the task, or in
	// the stream (SAM-090).
	case err == nil && mode == ModeAsync:
		err = s.startTask(ctx, req, refusal)
	case err == nil:
		req.Accept("")
		err = refusal
	}
	if err != nil && !req.accepted {
		step := StepRecord
		if errors.Is(err, ErrReplay) {
			step = StepReplay
		}
		s.refuse(w, r, claim, m.fail(step, err))
		return
	}
	req.answer(resp, err)
}
