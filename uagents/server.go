package uagents

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Headers of the protocol and of this hub.
const (
	headerAddress    = "X-Uagents-Address"
	headerConnection = "X-Uagents-Connection"
	headerStatus     = "X-Uagents-Status"
	headerHint       = "X-Uagents-Response-Time-Hint"

	// RefHeader carries the reference of a refusal, for the operator.
	RefHeader = "Parley-Ref"

	responseTimeHint = "5"

	defaultWait = 30 * time.Second
)

// A Handler handles a message and returns the answer. The answer is the body of the
// HTTP response for a waiting sender ([Request.Sync]), else another envelope in the
// same session. An error becomes an ErrorMessage. The context ends when the answer
// would be too late.
type Handler func(ctx context.Context, r *Request) (Response, error)

// A Response is a handler's answer; the zero value means no answer.
type Response struct {
	Message
	// Envelope, when set, takes the place of Message for a waiting sender: an
	// envelope that the agent itself made. It is written unchanged.
	Envelope *Envelope
	// Header goes with the HTTP response to a waiting sender.
	Header http.Header
	// After, when set, runs after the answer was sent: for further messages with
	// [Request.Send].
	After func(ctx context.Context)
}

// Answer is the Response of one message.
func Answer(m Message) Response { return Response{Message: m} }

// A Request is a verified envelope for an agent served here.
type Request struct {
	*Verified
	Agent  *Agent      // set by [Request.Admit]; nil when the target is unknown
	Sync   bool        // the sender waits for the answer in the HTTP response
	Header http.Header // as received; must not be changed
	Remote string      // host:port of the connection
	// Refusal says why the envelope will be refused; nil when it will be accepted.
	Refusal *Error
	// Handler is the agent's. [Server.Accept] may set another after Admit, or nil for
	// an async message that needs no handling.
	Handler Handler

	server  *Server
	chat    *ChatMessage // set by Chat
	release func()       // gives back the room that Admit took
}

// Chat decodes the request's chat message, once, as [DecodeChatMessage] does. The
// caller must not change it.
func (r *Request) Chat() (*ChatMessage, error) {
	if r.chat == nil {
		m, err := DecodeChatMessage(r.Content.Payload)
		if err != nil {
			return nil, err
		}
		r.chat = m
	}
	return r.chat, nil
}

// Send sends a further message to the sender, in the same session. It needs
// [Server.Client] and the agent's identity.
func (r *Request) Send(ctx context.Context, m Message) error {
	return r.server.send(ctx, r, m)
}

// An Agent is one agent that a [Server] answers for.
type Agent struct {
	Address string
	// Identity signs answers. Without it sync answers are unsigned, like the
	// reference's, and async answers cannot be sent.
	Identity *Identity
	// Handler handles messages. nil: [Server.Accept] delivers them.
	Handler Handler
	// Models gives the model of a schema digest, or nil for an unknown one. A message
	// that does not fit its known model is refused. See [Models].
	Models func(digest string) *Model
	// Unsigned says which messages unsigned senders may send; nil: none.
	Unsigned func(digest string) bool
}

// Models is a look-up of models for [Agent].
func Models(models ...*Model) func(digest string) *Model {
	all := make(map[string]*Model, len(models))
	for _, m := range models {
		if m.err == nil {
			all[m.digest] = m
		}
	}
	return func(digest string) *Model { return all[digest] }
}

// A Refusal is a request that a [Server] refused.
type Refusal struct {
	Err      *Error
	Envelope *Envelope // nil when the body was no envelope
	Verified *Verified // nil unless the sender was authenticated, or well-formed and unsigned
	Remote   string
	Size     int // bytes of the body read
}

// A Server takes envelopes for any number of agents: POST, HEAD and OPTIONS
// on /submit, REST routes, and /agent_info (asgi.py). The zero value serves
// no agent. Fields must not change once it is in use.
//
// The order of a POST is: content type, size, JSON, envelope, signature,
// policy of the [Verifier], target, message against model, assurance; then the
// record; then the answer and the handler.
type Server struct {
	// Verifier checks envelopes; nil: a zero one. Resolve and [Agent.Unsigned] take
	// the place of its Self and AllowUnsigned.
	Verifier *Verifier
	// Resolve gives the agent of an address, or nil when it is not served here. See
	// [Serve].
	Resolve func(ctx context.Context, address string) (*Agent, error)
	// Accept, when set, replaces the Verifier's Memory, and for a POST also Resolve.
	// It is called once for each envelope whose sender was authenticated (or is
	// well-formed and unsigned), before the answer and the handler. Unless the
	// envelope has a Refusal already, Accept finds the agent and calls
	// [Request.Admit]; then it records the envelope, and may record a refused one too.
	// prior reports that the envelope was recorded before: it is answered as the
	// protocol answers duplicates, and not handled again. An error is answered in
	// place of the Refusal (an *Error with its own text, an ErrorAnswer as described
	// there, others with 500).
	//
	// By default a refused envelope is not remembered, so that it may be accepted
	// later, when its target is there.
	Accept func(ctx context.Context, r *Request) (prior bool, err error)
	// Refused, when set, is called for every refusal and gives it a reference,
	// sent as [RefHeader] unless empty.
	Refused func(ctx context.Context, r *Refusal) (ref string)
	// Client sends messages other than the answer in the HTTP response; nil: none.
	Client *Client
	// Routes are REST endpoints.
	Routes []Route
	// Info answers GET /agent_info; address is that of the header
	// X-Uagents-Address, or empty. Nil, or a nil result: 404.
	Info func(ctx context.Context, address string) (*AgentInfo, error)
	// Local serves /messages, /connect and /disconnect to callers on this
	// machine; nil: not served.
	Local http.Handler
	Log   *slog.Logger     // nil: slog.Default()
	Now   func() time.Time // nil: the Verifier's

	Wait          time.Duration // longest sync wait; default 30 s
	HandlerTime   time.Duration // longest run of a handler for async messages; default 5 min
	MaxWaiting    int           // sync requests at a time; default 1024
	MaxQueued     int           // async messages accepted and not handled yet; default 1024
	UnsignedRate  float64       // unsigned messages per second; default 20, negative for none at all
	UnsignedBurst int           // default 40

	init     sync.Once
	verifier *Verifier
	unsigned *rate.Limiter
	waiting  chan struct{}
	queued   chan struct{}

	mu       sync.Mutex
	lanes    map[string][]func()
	running  sync.WaitGroup
	draining bool
}

// Serve is a [Server.Resolve] for a fixed set of agents.
func Serve(agents ...*Agent) func(context.Context, string) (*Agent, error) {
	all := make(map[string]*Agent, len(agents))
	for _, a := range agents {
		all[a.Address] = a
	}
	return func(_ context.Context, address string) (*Agent, error) { return all[address], nil }
}

func (s *Server) start() {
	s.init.Do(func() {
		s.verifier = s.Verifier
		if s.verifier == nil {
			s.verifier = &Verifier{Now: s.Now}
		}
		s.unsigned = rate.NewLimiter(rate.Limit(max(0, cmp.Or(s.UnsignedRate, 20))), cmp.Or(s.UnsignedBurst, 40))
		if s.UnsignedRate < 0 {
			s.unsigned.SetBurst(0)
		}
		s.waiting = make(chan struct{}, cmp.Or(s.MaxWaiting, 1024))
		s.queued = make(chan struct{}, cmp.Or(s.MaxQueued, 1024))
		s.lanes = map[string][]func(){}
	})
}

func (s *Server) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return s.verifier.now()
}

func (s *Server) log() *slog.Logger { return cmp.Or(s.Log, slog.Default()) }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.start()
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "*")
	h.Set("Access-Control-Allow-Credentials", "false")
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if s.serveREST(w, r) {
		return
	}
	if r.URL.Path != "/submit" {
		s.refuse(w, r, &Refusal{Err: ErrNotFound})
		return
	}
	switch r.Method {
	case http.MethodHead:
		s.probe(w, r)
	case http.MethodGet:
		// For browsers. A POST without content type gets an error below; the reference
		// says OK and drops it.
		switch {
		case r.Header.Get("Content-Type") != "":
			s.refuse(w, r, &Refusal{Err: ErrMethod})
		case r.Header.Get("User-Agent") != "":
			writeJSON(w, http.StatusOK, object("status", "OK - Agent is running"))
		default:
			s.refuse(w, r, &Refusal{Err: ErrNoContentType})
		}
	case http.MethodPost:
		s.post(w, r)
	default:
		h.Set("Allow", "GET, HEAD, OPTIONS, POST")
		s.refuse(w, r, &Refusal{Err: ErrMethod})
	}
}

// post takes a POST of an envelope, whatever its path.
func (s *Server) post(w http.ResponseWriter, r *http.Request) {
	contentType := r.Header.Get("Content-Type")
	if contentType == "" {
		s.refuse(w, r, &Refusal{Err: ErrNoContentType})
		return
	}
	// The reference looks for the words anywhere in the header. But a web page can put
	// any parameters into a request that needs no CORS preflight.
	if media, _, _ := strings.Cut(contentType, ";"); !strings.Contains(media, "application/json") {
		s.refuse(w, r, &Refusal{Err: ErrContentType})
		return
	}
	body, err := readBody(w, r, s.verifier.Limits.body())
	if err != nil {
		s.refuse(w, r, &Refusal{Err: AsError(err), Size: len(body)})
		return
	}
	s.submit(w, r, body)
}

// readBody reads at most max bytes. The error is ErrTooLarge or ErrMalformed.
func readBody(w http.ResponseWriter, r *http.Request, max int) ([]byte, error) {
	if r.ContentLength > int64(max) {
		return nil, ErrTooLarge
	}
	r.Body = http.MaxBytesReader(w, r.Body, int64(max))
	// A claimed length reserves memory only when it is small.
	if n := r.ContentLength; n > 0 && n <= 16<<10 {
		b := make([]byte, n)
		if got, err := io.ReadFull(r.Body, b); err != nil {
			return b[:got], ErrMalformed.Because(err)
		}
		return b, nil
	}
	b, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return b, ErrTooLarge
	case err != nil:
		return b, ErrMalformed.Because(err)
	}
	return b, nil
}

// probe answers HEAD /submit.
func (s *Server) probe(w http.ResponseWriter, r *http.Request) {
	status := "not-ready"
	switch address := r.Header.Get(headerAddress); {
	case s.isDraining():
	case len(r.Header.Values(headerAddress)) == 0:
		status = "indeterminate"
	default:
		if a, err := s.resolve(r.Context(), address); err == nil && a != nil {
			status = "ready"
			w.Header().Set(headerHint, responseTimeHint)
		}
	}
	w.Header().Set(headerStatus, status)
	w.WriteHeader(http.StatusOK)
}

func (s *Server) resolve(ctx context.Context, address string) (*Agent, error) {
	if s.Resolve == nil {
		return nil, nil
	}
	return s.Resolve(ctx, address)
}

// refuse answers an error; a verified sync request may get an ErrorMessage.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, x *Refusal) {
	s.reference(w, r, x)
	WriteError(w, x.Err)
}

func (s *Server) reference(w http.ResponseWriter, r *http.Request, x *Refusal) {
	if s.Refused == nil {
		return
	}
	x.Remote = r.RemoteAddr
	if ref := s.Refused(r.Context(), x); ref != "" {
		w.Header().Set(RefHeader, ref)
	}
}

// submit takes the body of a POST.
func (s *Server) submit(w http.ResponseWriter, r *http.Request, body []byte) {
	e, err := Decode(body)
	if err != nil {
		s.refuse(w, r, &Refusal{Err: AsError(err), Size: len(body)})
		return
	}
	verified, err := s.verifier.check(e, true)
	refusal := AsError(err)
	if verified == nil {
		s.refuse(w, r, &Refusal{Err: refusal, Envelope: e, Size: len(body)})
		return
	}
	req := &Request{
		Verified: verified, server: s, Header: r.Header, Remote: r.RemoteAddr,
		Sync: r.Header.Get(headerConnection) == "sync", Refusal: refusal,
	}
	x := &Refusal{Envelope: e, Verified: verified, Size: len(body)}
	if verified.Verdict.Assurance == Unsigned && !s.unsigned.AllowN(s.now(), 1) {
		x.Err = ErrRate
		s.refuse(w, r, x)
		return
	}
	prior, err := s.accept(r.Context(), req)
	if req.release != nil && (err != nil || prior) {
		req.release()
	}
	switch {
	case err != nil:
		x.Err = AsError(err)
		s.reference(w, r, x)
		var said ErrorAnswer
		if errors.As(err, &said) {
			s.refuseVerified(w, req, x.Err, true)
		} else {
			WriteError(w, x.Err)
		}
	case prior:
		s.duplicate(w, req)
	case req.Refusal != nil:
		x.Err = req.Refusal
		s.reference(w, r, x)
		s.refuseVerified(w, req, req.Refusal, false)
	case req.Sync:
		s.answer(w, r, req)
	default:
		s.enqueue(req)
		writeBody(w, http.StatusOK, []byte("{}"))
	}
}

// accept finds the agent of an envelope, checks it and records it.
func (s *Server) accept(ctx context.Context, req *Request) (prior bool, err error) {
	if s.Accept != nil {
		prior, err = s.Accept(ctx, req)
		if err == nil && !prior && req.Refusal == nil && req.release == nil {
			err = errInternal.Because(errors.New("Accept did not admit the envelope"))
		}
		return prior, err
	}
	if req.Refusal != nil {
		return false, nil
	}
	agent, err := s.resolve(ctx, req.Target)
	if err != nil {
		return false, err
	}
	if err := req.Admit(agent); err != nil {
		known, failed := s.verifier.memory().Known(ctx, req.ReplayKey())
		if failed == nil && known {
			return true, nil
		}
		return false, err
	}
	if req.Refusal != nil {
		return false, nil
	}
	fresh, err := s.verifier.memory().Seen(ctx, req.ReplayKey(), req.Until)
	return !fresh, err
}

// Admit checks the message against its target (nil: there is no such agent), which may
// give the request a Refusal. If not, it reserves room for the message, so that a
// recorded message will be handled; the error is ErrBusy.
// Call it in [Server.Accept] for a request without a Refusal, before the record.
func (r *Request) Admit(agent *Agent) error {
	r.Refusal = r.check(agent)
	if r.Refusal != nil {
		return nil
	}
	r.Handler = agent.Handler
	r.release = r.server.room(r.Sync)
	if r.release == nil {
		return ErrBusy
	}
	return nil
}

func (r *Request) check(agent *Agent) *Error {
	if agent == nil {
		return ErrUnknownAgent
	}
	r.Agent = agent
	// A null or empty message stops the reference agent, whatever its schema.
	if len(r.Content.Payload) == 0 {
		return ErrContent.Because(errors.New("message is empty"))
	}
	model := builtIn(r.SchemaDigest)
	if agent.Models != nil {
		if m := agent.Models(r.SchemaDigest); m != nil {
			model = m
		}
	}
	if model != nil {
		if err := r.fits(model); err != nil {
			e := AsError(err)
			var field *FieldError
			if errors.As(err, &field) {
				e = e.Saying(e.Text + ": " + field.Error())
			}
			return e
		}
	}
	if r.Verdict.Assurance == Unsigned && (agent.Unsigned == nil || !agent.Unsigned(r.SchemaDigest)) {
		return ErrVerifiedOnly
	}
	return nil
}

// fits checks the message against its model. A chat message is decoded on the way.
func (r *Request) fits(model *Model) error {
	if r.SchemaDigest != ChatMessageDigest || model.err != nil {
		return model.Validate(r.Content.Payload)
	}
	n, duplicate, err := model.read(r.Content.Payload)
	if err != nil {
		return err
	}
	if n.kind != '{' {
		return model.validate(n)
	}
	if r.chat, err = chatOf(n); err != nil {
		return ErrContent.Because(err)
	}
	r.chat.duplicate = duplicate
	return nil
}

// builtIn is the model of a message that the library defines: of the chat, where an
// unknown key stops the reference agent too, of its other protocols, and ErrorMessage.
func builtIn(digest string) *Model {
	if strict := strictOf(digest); strict != nil {
		return &Model{name: "ChatMessage", digest: digest, strict: strict}
	}
	return builtInModels()[digest]
}

var builtInModels = sync.OnceValue(func() map[string]*Model {
	m := ModelOf[ErrorMessage]()
	out := map[string]*Model{m.Digest(): m}
	for _, p := range []*Protocol{PaymentProtocol(), SubscriptionProtocol()} {
		for _, i := range p.Interactions {
			out[i.Request.Digest()] = i.Request
		}
	}
	return out
})

// refuseVerified answers a refusal to an authenticated sender. A waiting sender gets an
// ErrorMessage for an expired, unfit or unproved message, as from the reference; with
// said, for every refusal.
func (s *Server) refuseVerified(w http.ResponseWriter, req *Request, refusal *Error, said bool) {
	if req.Sync && req.SchemaDigest != ErrorMessageDigest {
		switch {
		case errors.Is(refusal, ErrStale):
			s.writeAnswer(w, req, NewErrorMessage(ErrTimeout.Text))
			return
		case said, errors.Is(refusal, ErrContent), errors.Is(refusal, ErrVerifiedOnly):
			s.writeAnswer(w, req, NewErrorMessage(refusal.Text))
			return
		}
	}
	WriteError(w, refusal)
}

// duplicate answers an envelope that was processed before.
func (s *Server) duplicate(w http.ResponseWriter, req *Request) {
	if req.Sync && req.SchemaDigest != ErrorMessageDigest {
		// {} would be a broken answer to a waiting sender.
		s.writeAnswer(w, req, NewErrorMessage(ErrReplay.Text))
		return
	}
	writeBody(w, http.StatusOK, []byte("{}"))
}

// writeAnswer puts a message into the response of a sync request.
func (s *Server) writeAnswer(w http.ResponseWriter, req *Request, m Message) {
	e, err := NewEnvelope(req.Target, req.Sender, req.Session, m, time.Time{})
	if err == nil && req.Agent != nil && req.Agent.Identity != nil && req.Agent.Identity.address == e.Sender {
		err = e.Sign(req.Agent.Identity)
	}
	var b []byte
	if err == nil {
		e.ProtocolDigest = nil
		b, err = e.encodeAnswer()
	}
	if err != nil {
		s.log().Error("uagents: answer could not be made", "session", req.Session, "error", err)
		WriteError(w, ErrHandler)
		return
	}
	if len(b) > s.verifier.Limits.body() {
		s.log().Warn("uagents: answer is too large", "session", req.Session, "bytes", len(b))
		s.writeAnswer(w, req, NewErrorMessage(ErrAnswerSize.Text))
		return
	}
	writeBody(w, http.StatusOK, b)
}

// writeEnvelope answers with an envelope that the agent itself made.
func (s *Server) writeEnvelope(w http.ResponseWriter, req *Request, e *Envelope) {
	b := e.Raw()
	if b == nil {
		var err error
		if b, err = e.encodeAnswer(); err != nil {
			s.log().Error("uagents: answer could not be made", "session", req.Session, "error", err)
			WriteError(w, ErrHandler)
			return
		}
	}
	writeBody(w, http.StatusOK, b)
}

// isLocal reports whether the caller is on this machine. Forwarding headers
// never make a caller local; any of them means that a proxy stands between.
// UAG-058.
func isLocal(r *http.Request) bool {
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip"} {
		if len(r.Header.Values(h)) > 0 {
			return false
		}
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Unmap().IsLoopback()
}
