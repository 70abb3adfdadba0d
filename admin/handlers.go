package admin

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/index"
)

// table is the whole API, path by path.
func table() []route {
	return []route{
		{"/v1/health", map[string]endpoint{"GET": {"", getHealth}}},
		{"/v1/ready", map[string]endpoint{"GET": {"", getReady}}},
		{"/v1/openapi.json", map[string]endpoint{"GET": {"", getOpenAPI}}},
		{"/v1/info", map[string]endpoint{"GET": {Observe, plain((*Admin).Info)}}},
		{"/v1/stats", map[string]endpoint{"GET": {Observe, plain((*Admin).Stats)}}},
		{"/v1/agents", map[string]endpoint{"GET": {Observe, getAgents},
			"POST": {Administer, create((*Admin).AddAgent)}}},
		{"/v1/agents/{name}", map[string]endpoint{"GET": {Observe, getAgent}, "DELETE": {Administer, deleteAgent}}},
		{"/v1/agents/{name}/pause", map[string]endpoint{"POST": {Operate, pause(true)}}},
		{"/v1/agents/{name}/resume", map[string]endpoint{"POST": {Operate, pause(false)}}},
		{"/v1/agents/{name}/expose", map[string]endpoint{"POST": {Administer, postExpose}}},
		{"/v1/agents/{name}/link", map[string]endpoint{"POST": {Administer, postLink}}},
		{"/v1/agents/{name}/inbox", map[string]endpoint{"GET": {Operate, getInbox}}},
		{"/v1/messages", map[string]endpoint{"GET": {Observe, getMessages}, "POST": {Operate, postMessages}}},
		{"/v1/messages/{id}", map[string]endpoint{"GET": {Observe, getMessage}}},
		{"/v1/conversations", map[string]endpoint{"GET": {Observe, getConversations}}},
		{"/v1/conversations/{id}", map[string]endpoint{"GET": {Observe, getConversation}}},
		{"/v1/conversations/{id}/export", map[string]endpoint{"GET": {Read, getExport}}},
		{"/v1/events", map[string]endpoint{"GET": {Observe, getEvents}}},
		{"/v1/dead", map[string]endpoint{"GET": {Observe, getDead}}},
		{"/v1/dead/retry", map[string]endpoint{"POST": {Operate, change((*Admin).RetryAll)}}},
		{"/v1/dead/drop", map[string]endpoint{"POST": {Operate, change((*Admin).DropAll)}}},
		{"/v1/dead/{id}", map[string]endpoint{"GET": {Observe, getDeadLetter}}},
		{"/v1/dead/{id}/retry", map[string]endpoint{"POST": {Operate, postRetry}}},
		{"/v1/dead/{id}/drop", map[string]endpoint{"POST": {Operate, postDrop}}},
		{"/v1/refused", map[string]endpoint{"GET": {Observe, getRefused}}},
		{"/v1/refused/{ref}", map[string]endpoint{"GET": {Observe, getRefusal}}},
		{"/v1/keys", map[string]endpoint{"GET": {Observe, plain((*Admin).Keys)}, "POST": {Administer, create(enroll)},
			"DELETE": {Administer, deleteKeys}}},
		{"/v1/keys/own", map[string]endpoint{"POST": {Administer, create((*Admin).NewKey)}}},
		{"/v1/keys/passphrase", map[string]endpoint{"POST": {Administer, change((*Admin).Passphrase)}}},
		{"/v1/keys/rotate", map[string]endpoint{"POST": {Administer, change((*Admin).Rotate)}}},
		{"/v1/reload", map[string]endpoint{"POST": {Administer, postReload}}},
		{"/v1/audit", map[string]endpoint{"GET": {Administer, getAudit}}},
		{"/v1/backup", map[string]endpoint{"GET": {Administer, getBackup}}},
		{"/v1/forget", map[string]endpoint{"POST": {Administer, change((*Admin).Forget)}}},
		{"/v1/erasures", map[string]endpoint{"GET": {Observe, getErasures}}},
	}
}

// plain serves a method that needs to know only the caller.
func plain[R any](method func(*Admin, Actor) (R, error)) handler {
	return func(a *Admin, c *call) (*answer, error) { return reply(method(a, c.by)) }
}

// change serves a method that takes the JSON body of the request.
func change[B, R any](method func(*Admin, context.Context, Actor, B) (R, error)) handler {
	return func(a *Admin, c *call) (*answer, error) {
		var b B
		if err := c.body(&b, false); err != nil {
			return nil, err
		}
		return reply(method(a, c.r.Context(), c.by, b))
	}
}

// create is change for a method that makes something: the status is 201.
func create[B, R any](method func(*Admin, context.Context, Actor, B) (R, error)) handler {
	return func(a *Admin, c *call) (*answer, error) {
		out, err := change(method)(a, c)
		if err == nil {
			out.status = http.StatusCreated
		}
		return out, err
	}
}

func reply[T any](v T, err error) (*answer, error) {
	if err != nil {
		return nil, err
	}
	return ok(v), nil
}

func getHealth(*Admin, *call) (*answer, error) {
	return ok(map[string]string{"status": "ok"}), nil
}

func getReady(a *Admin, c *call) (*answer, error) {
	err := a.Ready()
	if err == nil {
		return ok(map[string]any{"ready": true}), nil
	}
	body := map[string]any{"ready": false}
	if _, denied := a.Authenticate(c.r); denied == nil {
		body["reason"] = err.Error()
	}
	return &answer{http.StatusServiceUnavailable, body}, nil
}

func postReload(a *Admin, c *call) (*answer, error) {
	if err := c.body(&struct{}{}, true); err != nil {
		return nil, err
	}
	return reply(a.Reload(c.r.Context(), c.by))
}

func getOpenAPI(_ *Admin, c *call) (*answer, error) {
	c.w.Header().Set("Content-Type", "application/json")
	// If the write fails, the caller is gone.
	_, _ = c.w.Write(openAPI)
	return nil, nil
}

type agentList struct {
	Agents []Agent `json:"agents"`
}

func getAgents(a *Admin, c *call) (*answer, error) {
	list, err := a.Agents(c.by)
	return reply(agentList{list}, err)
}

func getAgent(a *Admin, c *call) (*answer, error) {
	var wait time.Duration
	if err := c.params(param{"wait", &wait}); err != nil {
		return nil, err
	}
	return reply(a.Agent(c.r.Context(), c.by, c.r.PathValue("name"), wait))
}

func deleteAgent(a *Admin, c *call) (*answer, error) {
	name := c.r.PathValue("name")
	return reply(map[string]string{"removed": name}, a.RemoveAgent(c.r.Context(), c.by, name))
}

func pause(paused bool) handler {
	return func(a *Admin, c *call) (*answer, error) {
		return reply(a.Pause(c.r.Context(), c.by, c.r.PathValue("name"), paused))
	}
}

type exposure struct {
	Protocols []string `json:"protocols"`
}

func postExpose(a *Admin, c *call) (*answer, error) {
	var e exposure
	if err := c.body(&e, false); err != nil {
		return nil, err
	}
	return reply(a.Expose(c.r.Context(), c.by, c.r.PathValue("name"), e.Protocols))
}

func postLink(a *Admin, c *call) (*answer, error) {
	var i NewIdentity
	if err := c.body(&i, false); err != nil {
		return nil, err
	}
	return reply(a.Link(c.r.Context(), c.by, c.r.PathValue("name"), i))
}

type messageList struct {
	Messages []*Message `json:"messages"`
}

func getInbox(a *Admin, c *call) (*answer, error) {
	var wait time.Duration
	var limit int
	if err := c.params(param{"wait", &wait}, param{"max", &limit}); err != nil {
		return nil, err
	}
	name, ctx := c.r.PathValue("name"), c.r.Context()
	if strings.Contains(c.r.Header.Get("Accept"), "text/event-stream") {
		if err := a.mayRead(c.by, name); err != nil {
			return nil, err
		}
		s := newSSE(c)
		defer s.close()
		for m, err := range a.Inbox(ctx, c.by, name) {
			if err != nil {
				s.fail(err)
				break
			}
			if s.send("message", m.ID.String(), m) != nil {
				break
			}
		}
		return nil, nil
	}
	list, err := a.collect(ctx, c.by, name, limit, wait)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil || writeBody(c.w, http.StatusOK, messageList{a.showAttempts(c.by, list)}) != nil {
		a.unreadOf(name).putBack(list)
	}
	return nil, nil
}

func postMessages(a *Admin, c *call) (*answer, error) {
	var wait, stream bool
	if err := c.params(param{"wait", &wait}, param{"stream", &stream}); err != nil {
		return nil, err
	}
	var s Send
	if err := c.body(&s, false); err != nil {
		return nil, err
	}
	if keys := c.r.Header.Values("Idempotency-Key"); len(keys) > 1 {
		return nil, parley.Refuse(parley.Malformed, "the header Idempotency-Key is there twice")
	} else if len(keys) == 1 {
		if keys[0] == "" {
			return nil, parley.Refuse(parley.Malformed, "the header Idempotency-Key is empty")
		}
		s.IdempotencyKey = keys[0]
	}
	ctx := c.r.Context()
	if stream {
		return nil, a.stream(ctx, c, s)
	}
	send := a.Send
	if wait {
		send = a.Ask
	}
	r, err := send(ctx, c.by, s)
	if err == nil && r.Reply == nil {
		return &answer{http.StatusAccepted, r}, nil
	}
	return reply(r, err)
}

// stream answers with server-sent events: accepted, event…, reply; or error.
// What is refused before it is recorded is answered with its status.
func (a *Admin) stream(ctx context.Context, c *call, s Send) error {
	var out *sse
	defer func() {
		if out != nil {
			out.close()
		}
	}()
	for m, err := range a.Stream(ctx, c.by, s, func(r Receipt) {
		out = newSSE(c)
		// If the caller is gone, the first event finds that out.
		_ = out.send("accepted", "", r)
	}) {
		switch {
		case err != nil && out == nil:
			return err
		case err != nil:
			out.fail(err)
			return nil
		}
		name := "event"
		if m.Kind.Terminal() {
			name = "reply"
		}
		if out.send(name, m.ID.String(), m) != nil {
			return nil
		}
	}
	return nil
}

func getMessages(a *Admin, c *call) (*answer, error) {
	var f index.Filter
	if err := c.params(pageParams(&f)...); err != nil {
		return nil, err
	}
	return reply(a.Messages(c.r.Context(), c.by, f))
}

func getMessage(a *Admin, c *call) (*answer, error) {
	var raw bool
	if err := c.params(param{"raw", &raw}); err != nil {
		return nil, err
	}
	return reply(a.Message(c.r.Context(), c.by, c.r.PathValue("id"), raw))
}

func getConversations(a *Admin, c *call) (*answer, error) {
	var f index.ConversationFilter
	if err := c.params(conversationParams(&f)...); err != nil {
		return nil, err
	}
	return reply(a.Conversations(c.r.Context(), c.by, f))
}

func getConversation(a *Admin, c *call) (*answer, error) {
	var cursor string
	var limit int
	if err := c.params(param{"cursor", &cursor}, param{"limit", &limit}); err != nil {
		return nil, err
	}
	return reply(a.Conversation(c.r.Context(), c.by, c.r.PathValue("id"), cursor, limit))
}

func getEvents(a *Admin, c *call) (*answer, error) {
	var f index.Filter
	if err := c.params(messageParams(&f)...); err != nil {
		return nil, err
	}
	var out *sse
	defer func() {
		if out != nil {
			out.close()
		}
	}()
	for e, err := range a.Tail(c.r.Context(), c.by, f, func() {
		out = newSSE(c)
		// If the caller is gone, the first event finds that out.
		_ = out.send("started", "", struct{}{})
	}) {
		if err != nil {
			return nil, err
		}
		if out.send(e.name()) != nil {
			break
		}
	}
	return nil, nil
}

func getExport(a *Admin, c *call) (*answer, error) {
	content, format := true, "hub"
	if err := c.params(param{"content", &content}, param{"format", &format}); err != nil {
		return nil, err
	}
	if format != "hub" {
		if a.protocol(format).Transcript == nil {
			return nil, parley.Refuse(parley.Malformed,
				"format %.40q: want hub, or a protocol whose sessions have transcripts, as asp", format)
		}
		if c.r.URL.Query().Has("content") {
			return nil, parley.Refuse(parley.Malformed, "content is for the format hub: a transcript is whole")
		}
		return nil, a.getTranscript(c, format)
	}
	e, err := a.export(c.r.Context(), c.by, c.r.PathValue("id"), content)
	if err != nil {
		return nil, err
	}
	id := e.conversation.ID.String()
	w := c.attachment(exportMediaType, "conversation-"+id+".jsonl")
	if err := e.write(c.r.Context(), w); err != nil {
		if w.begin != nil {
			return nil, err
		}
		// The status is sent. A file without its last line is known to be incomplete.
		a.c.Logger.Warn("an export broke off", "conversation", id, "error", err)
	}
	return nil, nil
}

func (a *Admin) getTranscript(c *call, protocol string) error {
	write, session, err := a.transcript(c.r.Context(), c.by, c.r.PathValue("id"), protocol)
	if err != nil {
		return err
	}
	w := c.attachment("application/json", protocol+"-"+session+".json")
	if err := write(c.r.Context(), w); err != nil {
		if w.begin != nil {
			return err
		}
		// The status is sent. An incomplete transcript does not verify.
		a.c.Logger.Warn("a transcript broke off", "session", session, "error", err)
	}
	return nil
}

// A slowWriter gives each write of a long answer its own deadline.
type slowWriter struct {
	w     http.ResponseWriter
	out   *http.ResponseController
	begin func() // called before the first write, then nil
}

// attachment is the body of an answer that a browser saves as a file. The
// headers are set with the first bytes: an earlier failure has its own status.
func (c *call) attachment(mediaType, name string) *slowWriter {
	return &slowWriter{c.w, http.NewResponseController(c.w), func() {
		c.w.Header().Set("Content-Type", mediaType)
		c.w.Header().Set("Content-Disposition", `attachment; filename="`+name+`"`)
	}}
}

func (w *slowWriter) Write(b []byte) (int, error) {
	if w.begin != nil {
		w.begin()
		w.begin = nil
	}
	// A writer without deadlines returns an error, which changes nothing.
	_ = w.out.SetWriteDeadline(time.Now().Add(sseWrite))
	return w.w.Write(b)
}

func getDead(a *Admin, c *call) (*answer, error) {
	f := DeadFilter{Limit: 1000}
	if err := c.params(deadParams(&f)...); err != nil {
		return nil, err
	}
	list, err := a.Dead(c.by, f)
	return reply(deadList{list}, err)
}

type deadList struct {
	Dead []DeadLetter `json:"dead"`
}

// dead gives the id and the recipient that a request names.
func (c *call) dead() (id parley.ID, to string, err error) {
	if err := c.params(param{"to", &to}); err != nil {
		return id, "", err
	}
	if id, err = parley.ParseID(c.r.PathValue("id")); err != nil {
		return id, "", parley.Refuse(parley.Malformed, "%.40q is not the id of a message", c.r.PathValue("id"))
	}
	return id, to, nil
}

func getDeadLetter(a *Admin, c *call) (*answer, error) {
	id, to, err := c.dead()
	if err != nil {
		return nil, err
	}
	return reply(a.DeadLetter(c.r.Context(), c.by, id, to))
}

func postRetry(a *Admin, c *call) (*answer, error) {
	id, to, err := c.dead()
	if err != nil {
		return nil, err
	}
	return reply(a.Retry(c.r.Context(), c.by, id, to))
}

func postDrop(a *Admin, c *call) (*answer, error) {
	id, to, err := c.dead()
	if err != nil {
		return nil, err
	}
	var why struct {
		Reason string `json:"reason,omitzero"`
	}
	if err := c.body(&why, true); err != nil {
		return nil, err
	}
	return reply(a.Drop(c.r.Context(), c.by, id, to, why.Reason))
}

type refusalList struct {
	Refused []Refusal `json:"refused"`
}

func getRefused(a *Admin, c *call) (*answer, error) {
	n := 100
	if err := c.params(param{"last", &n}); err != nil {
		return nil, err
	}
	list, err := a.Refused(c.by, n)
	return reply(refusalList{list}, err)
}

func getRefusal(a *Admin, c *call) (*answer, error) {
	return reply(a.Refusal(c.by, c.r.PathValue("ref")))
}

func enroll(a *Admin, ctx context.Context, by Actor, e Enrolment) (map[string]string, error) {
	return map[string]string{"enrolled": e.Agent}, a.Enroll(ctx, by, e)
}

func deleteKeys(a *Admin, c *call) (*answer, error) {
	var agent, protocol, keyID string
	if err := c.params(param{"agent", &agent}, param{"protocol", &protocol}, param{"keyId", &keyID}); err != nil {
		return nil, err
	}
	return reply(map[string]string{"unenrolled": agent}, a.Unenroll(c.r.Context(), c.by, agent, protocol, keyID))
}

type auditList struct {
	Audit []AuditEntry `json:"audit"`
}

func getAudit(a *Admin, c *call) (*answer, error) {
	n := 100
	if err := c.params(param{"limit", &n}); err != nil {
		return nil, err
	}
	list, err := a.Audit(c.by, n)
	return reply(auditList{list}, err)
}

func getBackup(a *Admin, c *call) (*answer, error) {
	if err := c.params(); err != nil {
		return nil, err
	}
	w := c.attachment(backupMediaType, "parley.backup")
	if _, err := a.Backup(c.r.Context(), c.by, w); err != nil {
		if w.begin != nil {
			return nil, err
		}
		// The status is sent. A backup without its end is known to be incomplete.
		a.c.Logger.Warn("a backup broke off", "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil, nil
}

type erasureList struct {
	Erasures []Erasure `json:"erasures"`
}

func getErasures(a *Admin, c *call) (*answer, error) {
	list, err := a.Erasures(c.r.Context(), c.by)
	return reply(erasureList{list}, err)
}
