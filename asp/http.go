package asp

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// The HTTP binding, transports/http-sse. Paths, headers and the error object are
// the vendor's. Answers, the event stream, registration, the inbox and the
// transcript are the project's, because those pages cannot be read.
//
//	GET    /v1/asp/discover?capability=&min_trust=
//	POST   /v1/asp/sessions                          the invitation
//	GET    /v1/asp/sessions                          own sessions
//	GET    /v1/asp/sessions/{id}
//	DELETE /v1/asp/sessions/{id}                     body: a signed CLOSE, or none
//	POST   /v1/asp/sessions/{id}/messages
//	GET    /v1/asp/sessions/{id}/messages?cursor=&limit=&since_sequence=
//	GET    /v1/asp/sessions/{id}/messages/{messageId}
//	GET    /v1/asp/sessions/{id}/events              text/event-stream
//	GET    /v1/asp/sessions/{id}/ws                  WebSocket
//	GET    /v1/asp/sessions/{id}/transcript
//	POST   /v1/asp/sessions/{id}/disputes
//	GET    /v1/asp/agents/{agentId}/card
//	GET    /v1/asp/agents/{agentId}/inbox            text/event-stream
//	POST   /v1/asp/agents                            register
//	POST   /oauth/token
//	GET    /.well-known/asp-agent.json

// endpoint handles one resource; args are the decoded parts of the path.
type endpoint func(s *Server, w http.ResponseWriter, r *http.Request, c *caller, args []string) error

// access is the authentication that a request needs.
type access int

const (
	open   access = iota // nothing
	proved               // an access token and an unused proof
	// carries is proved for a request that only carries a signed message. Since the
	// server deduplicates messages, it remembers the proof in this process only, not
	// in the Store.
	carries
)

// route is a row of the table of resources. "*" matches one part.
type route struct {
	method string
	path   []string
	access access
	serve  endpoint
}

var routes = []route{
	{"GET", []string{"v1", "asp", "discover"}, proved, (*Server).serveDiscover},
	{"POST", []string{"v1", "asp", "sessions"}, carries, (*Server).serveCreate},
	{"GET", []string{"v1", "asp", "sessions"}, proved, (*Server).serveSessions},
	{"GET", []string{"v1", "asp", "sessions", "*"}, proved, (*Server).serveSession},
	{"DELETE", []string{"v1", "asp", "sessions", "*"}, proved, (*Server).serveClose},
	{"POST", []string{"v1", "asp", "sessions", "*", "messages"}, carries, (*Server).serveSend},
	{"GET", []string{"v1", "asp", "sessions", "*", "messages"}, proved, (*Server).serveList},
	{"GET", []string{"v1", "asp", "sessions", "*", "messages", "*"}, proved, (*Server).serveMessage},
	{"GET", []string{"v1", "asp", "sessions", "*", "events"}, proved, (*Server).serveEvents},
	{"GET", []string{"v1", "asp", "sessions", "*", "ws"}, open, (*Server).serveWebSocket},
	{"GET", []string{"v1", "asp", "sessions", "*", "transcript"}, proved, (*Server).serveTranscript},
	{"POST", []string{"v1", "asp", "sessions", "*", "disputes"}, proved, (*Server).serveDispute},
	{"GET", []string{"v1", "asp", "agents", "*", "card"}, proved, (*Server).serveCard},
	{"GET", []string{"v1", "asp", "agents", "*", "inbox"}, proved, (*Server).serveInbox},
	{"POST", []string{"v1", "asp", "agents"}, open, (*Server).serveRegister},
	{"POST", []string{"oauth", "token"}, open, (*Server).serveToken},
	{"GET", []string{".well-known", "asp-agent.json"}, open, (*Server).serveWellKnown},
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.init()
	c, session, err := s.serve(w, r)
	if err == nil {
		return
	}
	agent := ""
	if c != nil {
		agent = c.agent.ID
	}
	e := asError(err)
	if e.Reference == "" { // a refused message has a reference already
		e = s.refused(r.Context(), agent, session, nil, err)
	}
	if l, ok := e.Details["limit"].(int); ok {
		w.Header().Set("X-RateLimit-Limit", strconv.Itoa(l))
		w.Header().Set("X-RateLimit-Remaining", "0")
		if at, ok := e.Details["reset"].(int64); ok {
			w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(at, 10))
		}
	}
	WriteError(w, e)
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) (c *caller, session string, err error) {
	parts := pathParts(r.URL.EscapedPath())
	known := false
	for i := range routes {
		args, ok := match(routes[i].path, parts)
		if !ok {
			continue
		}
		known = true
		if routes[i].method != r.Method {
			continue
		}
		if a := routes[i].access; a != open {
			used := Memory(s.store)
			if a == carries {
				used = s.passing
			}
			if c, err = s.authenticate(r, used); err != nil {
				return nil, "", err
			}
		}
		if len(parts) > 3 && parts[2] == "sessions" {
			session = args[0]
			if !ValidUUID(session) {
				return c, "", refuse("session_not_found", "")
			}
			if h := r.Header.Values("Asp-Session-Id"); len(h) > 1 || len(h) == 1 && h[0] != session {
				return c, session, refuse("session_mismatch", "Asp-Session-Id")
			}
		}
		return c, session, routes[i].serve(s, w, r, c, args)
	}
	if known {
		return nil, "", refuse("bad_method", "")
	}
	return nil, "", refuse("not_found", "")
}

// pathParts splits an escaped path. An agent URI in it may be escaped as one part,
// or not.
func pathParts(path string) []string {
	const agents = "/v1/asp/agents/agent://"
	if strings.HasPrefix(path, agents) {
		last := strings.LastIndexByte(path, '/')
		return []string{"v1", "asp", "agents", url.PathEscape(path[len("/v1/asp/agents/"):last]), path[last+1:]}
	}
	return strings.Split(strings.TrimPrefix(path, "/"), "/")
}

func match(pattern, parts []string) (args []string, ok bool) {
	if len(pattern) != len(parts) {
		return nil, false
	}
	for i, p := range pattern {
		if p == "*" {
			arg, err := url.PathUnescape(parts[i])
			if err != nil || arg == "" {
				return nil, false
			}
			args = append(args, arg)
		} else if p != parts[i] {
			return nil, false
		}
	}
	return args, true
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	b, err := jsonx.Encode(v)
	if err != nil {
		return err
	}
	answerHeader(w, "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // an error means that the peer is gone
	return nil
}

// answerHeader sets the header of an answer. No cache may store it.
func answerHeader(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Cache-Control", "no-store")
}

// readBody reads at most limit bytes.
func readBody(r *http.Request, limit int) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, refuse("message_too_large", "").at(1)
	}
	// Content-Length is only a claim: reserve little memory for it.
	b := bytes.NewBuffer(make([]byte, 0, bytes.MinRead+int(min(max(r.ContentLength, 0), 16<<10))))
	if _, err := b.ReadFrom(io.LimitReader(r.Body, int64(limit)+1)); err != nil {
		return nil, refuseCause("malformed_json", "", err)
	}
	if b.Len() > limit {
		return nil, refuse("message_too_large", "").at(1)
	}
	return b.Bytes(), nil
}

// messageFormat reads the Content-Type of a message.
func messageFormat(r *http.Request) (Format, error) {
	given := r.Header.Get("Content-Type")
	if given == string(JSON) {
		return JSON, nil
	}
	t, _, err := mime.ParseMediaType(given)
	switch {
	case err != nil:
	case t == string(JSON) || t == "application/json":
		return JSON, nil
	case t == string(MessagePack):
		return MessagePack, nil
	}
	return "", refuse("format_mismatch", "Content-Type")
}

// receive takes a message; only, unless empty, is its required performative. It
// answers with status, or with 200 for a duplicate.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, c *caller, session string, only Performative,
	status int) error {
	f, err := messageFormat(r)
	if err != nil {
		return err
	}
	b, err := readBody(r, maxMessage)
	if err != nil {
		return err
	}
	if only != "" {
		if e, err := f.Decode(b); err == nil && e.Performative != only {
			return refuse("invalid_field", "performative").at(3)
		}
	}
	t := Transport{Format: f, Agent: c.agent.ID, AccessToken: c.token}
	receipt, err := s.Ingest(r.Context(), b, t, session)
	if err != nil {
		return err
	}
	if receipt.Duplicate {
		status = http.StatusOK
	}
	return writeJSON(w, status, receipt)
}

func (s *Server) serveCreate(w http.ResponseWriter, r *http.Request, c *caller, _ []string) error {
	return s.receive(w, r, c, "", "", http.StatusCreated)
}

func (s *Server) serveSend(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	return s.receive(w, r, c, args[0], "", http.StatusAccepted)
}

// sessionView is the part of a ledger that participants see.
type sessionView struct {
	SessionID    string            `json:"sessionId"`
	Version      string            `json:"version"`
	State        State             `json:"state"`
	Format       Format            `json:"format"`
	Participants []participantView `json:"participants"`
	LastSequence int64             `json:"lastSequence"`
	Head         string            `json:"head"`
	MessageCount int64             `json:"messageCount"`
	Opened       time.Time         `json:"opened"`
	Deadline     time.Time         `json:"deadline,omitzero"`
	Reason       string            `json:"reason,omitempty"`
	Commitments  []Commitment      `json:"commitments,omitempty"`
}

type participantView struct {
	AgentID            string `json:"agentId"`
	OrgID              string `json:"orgId"`
	NextSequenceNumber int64  `json:"nextSequenceNumber"`
}

func viewOf(l *Ledger) sessionView {
	v := sessionView{SessionID: l.ID, Version: l.Version, State: l.State, Format: l.Format,
		LastSequence: l.Head.Count - 1, Head: l.Head.Hash, MessageCount: l.Messages, Opened: l.Opened,
		Deadline: l.Deadline, Reason: l.Reason, Commitments: l.Commitments}
	for _, p := range l.Participants {
		v.Participants = append(v.Participants, participantView{p.AgentID, p.OrgID, p.Next})
	}
	return v
}

func (s *Server) serveSession(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	l, err := s.Session(r.Context(), args[0], c.agent.ID)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, viewOf(l))
}

func (s *Server) serveSessions(w http.ResponseWriter, r *http.Request, c *caller, _ []string) error {
	q := r.URL.Query()
	limit, err := pageLimit(q)
	if err != nil {
		return err
	}
	own := LedgerQuery{Participant: c.agent.ID, Live: q.Get("live") == "true"}
	page, err := s.store.Ledgers(r.Context(), own, q.Get("cursor"), limit)
	if err != nil {
		return err
	}
	views, next := []sessionView{}, ""
	for _, l := range page {
		views = append(views, viewOf(l))
	}
	if len(page) == limit {
		next = page[limit-1].ID
	}
	return writeJSON(w, http.StatusOK, struct {
		Sessions []sessionView `json:"sessions"`
		Next     string        `json:"nextCursor,omitempty"`
	}{views, next})
}

func (s *Server) serveClose(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	if r.ContentLength == 0 {
		if err := s.CloseSession(r.Context(), args[0], c.agent.ID, ""); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return s.receive(w, r, c, args[0], Close, http.StatusAccepted)
}

// Pages of messages: 50, at most 200 (transports/http-sse), and at most 4 MiB
// (project).
const (
	pageDefault = 50
	pageMax     = 200
	pageBytes   = 4 << 20
)

func pageLimit(q url.Values) (int, error) {
	if !q.Has("limit") {
		return pageDefault, nil
	}
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n < 1 {
		return 0, refuse("invalid_field", "limit")
	}
	return min(n, pageMax), nil
}

// since gives the position from which to list: cursor, or since_sequence + 1.
func since(q url.Values) (int64, error) {
	for add, name := range [...]string{"cursor", "since_sequence"} { // since_sequence is ignored where both are given
		if q.Has(name) {
			n, err := strconv.ParseInt(q.Get(name), 10, 64)
			if err != nil || n < -1 || n > 1<<53 {
				return 0, refuse("invalid_field", name)
			}
			return max(n+int64(add), 0), nil
		}
	}
	return 0, nil
}

func (s *Server) serveList(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	q := r.URL.Query()
	limit, err1 := pageLimit(q)
	from, err2 := since(q)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if _, err := s.Session(r.Context(), args[0], c.agent.ID); err != nil {
		return err
	}
	records, err := s.store.Records(r.Context(), args[0], from, limit)
	if err != nil {
		return err
	}
	messages, positions, next := []byte{}, []int64{}, ""
	for i, rec := range records {
		if len(messages) > pageBytes {
			next = strconv.FormatInt(rec.Position, 10)
			break
		}
		if i == limit-1 {
			next = strconv.FormatInt(rec.Position+1, 10)
		}
		if rec.Kind != RecordMessage {
			continue
		}
		text, err := s.deliverJSON(r, rec)
		if err != nil {
			return err
		}
		if len(positions) > 0 {
			messages = append(messages, ',')
		}
		messages = append(messages, text...) // with the sender's spelling
		positions = append(positions, rec.Position)
	}
	rest, err := jsonx.Encode(struct {
		Positions []int64 `json:"positions"`
		Next      string  `json:"nextCursor,omitempty"`
	}{positions, next})
	if err != nil {
		return err
	}
	answerHeader(w, "application/json")
	for _, part := range [][]byte{[]byte(`{"messages":[`), messages, []byte(`],`), rest[1:]} {
		if _, err := w.Write(part); err != nil {
			return nil // the peer is gone
		}
	}
	return nil
}

// deliver gives the form of a recorded message for recipients.
func (s *Server) deliver(r *http.Request, rec *Record) ([]byte, error) {
	a, err := s.store.Agent(r.Context(), rec.Sender)
	if err != nil {
		return nil, err
	}
	return rec.withTrustScore(a.Score()), nil
}

// deliverJSON is [Server.deliver] for transports of text. Hash and signature are
// valid for both forms.
func (s *Server) deliverJSON(r *http.Request, rec *Record) ([]byte, error) {
	b, err := s.deliver(r, rec)
	if err == nil && rec.Format == MessagePack {
		return msgpackAsJSON(b)
	}
	return b, err
}

func (s *Server) serveMessage(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	if _, err := s.Session(r.Context(), args[0], c.agent.ID); err != nil {
		return err
	}
	rec, err := s.store.Message(r.Context(), args[0], args[1])
	if errors.Is(err, ErrNotFound) {
		return refuse("message_not_found", "")
	}
	if err != nil {
		return err
	}
	b, err := s.deliver(r, rec)
	if err != nil {
		return err
	}
	answerHeader(w, string(rec.Format))
	_, _ = w.Write(b)
	return nil
}

func (s *Server) serveDispute(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	b, err := readBody(r, maxCard)
	if err != nil {
		return err
	}
	if _, err := parseJSON(b); err != nil {
		return err
	}
	var d Dispute
	if err := jsonx.Decode(b, &d); err != nil {
		return refuseCause("invalid_field", "", err)
	}
	if d.FiledBy != c.agent.ID || d.SessionID != args[0] {
		return refuse("sender_mismatch", "filedBy")
	}
	if d.DisputeID == "" || len(d.DisputeID) > maxID {
		return refuse("invalid_field", "disputeId")
	}
	if err := s.FileDispute(r.Context(), d); err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, d)
}

func (s *Server) serveDiscover(w http.ResponseWriter, r *http.Request, _ *caller, _ []string) error {
	q := r.URL.Query()
	if q.Get("capability") == "" {
		return refuse("missing_field", "capability")
	}
	least := 0
	if q.Has("min_trust") {
		n, err := strconv.Atoi(q.Get("min_trust"))
		if err != nil || n < 0 || n > 100 {
			return refuse("invalid_field", "min_trust")
		}
		least = n
	}
	limit, err := pageLimit(q)
	if err != nil {
		return err
	}
	able := AgentQuery{Capability: q.Get("capability"), MinTrust: float64(least)}
	list, err := s.store.Agents(r.Context(), able, q.Get("cursor"), limit)
	if err != nil {
		return err
	}
	cards, next := []jsonx.Value{}, ""
	for _, a := range list {
		b, err := s.cardOf(a)
		if err != nil {
			return err
		}
		cards = append(cards, b)
	}
	if len(list) == limit {
		next = list[limit-1].ID
	}
	return writeJSON(w, http.StatusOK, struct {
		Agents []jsonx.Value `json:"agents"`
		Next   string        `json:"nextCursor,omitempty"`
	}{cards, next})
}

// cardOf gives an agent's card with the trust score of this server in place of the
// card's own.
func (s *Server) cardOf(a *Agent) ([]byte, error) {
	card, err := a.Card()
	if err != nil {
		return nil, err
	}
	var members map[string]jsonx.Value
	if err := jsonx.Decode(card.raw, &members); err != nil {
		return nil, err
	}
	components, err := jsonx.Encode(a.Components)
	if err != nil {
		return nil, err
	}
	members["trustScore"] = appendNumber(nil, a.Score())
	members["trustLevel"] = strconv.AppendInt(nil, int64(trustLevel(a.Score())), 10)
	members["trustComponents"] = components
	return jsonx.Encode(members)
}

func (s *Server) serveCard(w http.ResponseWriter, r *http.Request, _ *caller, args []string) error {
	a, err := s.agent(r.Context(), args[0])
	if errors.Is(err, ErrNotFound) && !strings.Contains(args[0], "/") { // a bare name, if only one agent has it
		list, listErr := s.store.Agents(r.Context(), AgentQuery{Name: args[0]}, "", 2)
		if listErr == nil && len(list) == 1 {
			a, err = list[0], nil
		}
	}
	if errors.Is(err, ErrNotFound) {
		return refuse("agent_not_found", "")
	}
	if err != nil {
		return err
	}
	b, err := s.cardOf(a)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, jsonx.Value(b))
}

func (s *Server) serveWellKnown(w http.ResponseWriter, _ *http.Request, _ *caller, _ []string) error {
	if s.Identity == nil {
		return refuse("not_found", "")
	}
	b, err := s.Identity.Card().JSON()
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, jsonx.Value(b))
}
