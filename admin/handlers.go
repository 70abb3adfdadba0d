package admin

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/index"
)

// table is the whole API: the methods of each path.
func table() map[string]methods {
	return map[string]methods{
		"/v1/health":       {"GET": {"", getHealth}},
		"/v1/ready":        {"GET": {"", getReady}},
		"/v1/openapi.json": {"GET": {"", getOpenAPI}},

		"/v1/info":   {"GET": {Observe, plain((*Admin).Info)}},
		"/v1/status": {"GET": {Observe, plain((*Admin).Status)}},
		"/v1/stats":  {"GET": {Observe, plain((*Admin).Stats)}},
		"/v1/reload": {"POST": {Administer, postReload}},
		"/v1/audit":  {"GET": {Administer, getAudit}},
		"/v1/backup": {"GET": {Administer, getBackup}},

		"/v1/console/links": {"POST": {Observe, postConsoleLink}},

		"/v1/agents": {"GET": {Observe, filtered(agentParams, (*Admin).Agents)},
			"POST": {Administer, create((*Admin).AddAgent)}},
		"/v1/agents/{name}": {"GET": {Observe, one("name", "wait", (*Admin).Agent)},
			"DELETE": {Administer, deleteAgent}},
		"/v1/agents/{name}/state":    {"GET": {Observe, getAgentState}},
		"/v1/agents/{name}/removal":  {"GET": {Administer, getRemoval}},
		"/v1/agents/{name}/ways":     {"GET": {Observe, getWays}},
		"/v1/agents/{name}/doctor":   {"POST": {Operate, postDoctor}},
		"/v1/agents/{name}/delivery": {"POST": {Administer, changeAgent((*Admin).SetDelivery)}},
		"/v1/agents/{name}/pause":    {"POST": {Operate, postPause}},
		"/v1/agents/{name}/resume":   {"POST": {Operate, postResume}},
		"/v1/agents/{name}/expose":   {"POST": {Administer, changeAgent(expose)}},
		"/v1/agents/{name}/record":   {"POST": {Administer, changeAgent(record)}},
		"/v1/agents/{name}/link":     {"POST": {Administer, changeAgent((*Admin).Link)}},
		"/v1/agents/{name}/tools": {"GET": {Observe, getTools},
			"POST": {Administer, changeAgent(approveTools)}},
		"/v1/agents/{name}/inbox": {"GET": {Operate, getInbox}},

		"/v1/agents/{name}/expose/preview": {"POST": {Administer, changeAgent(previewExpose)}},
		"/v1/preview":                      {"POST": {Administer, change((*Admin).PreviewAgent)}},
		"/v1/agents/{name}/link/preview":   {"POST": {Administer, changeAgent((*Admin).PreviewLink)}},
		"/v1/keys/enroll/preview":          {"POST": {Administer, change((*Admin).PreviewEnroll)}},
		"/v1/keys/rotate/preview":          {"POST": {Administer, change((*Admin).PreviewRotate)}},

		"/v1/messages": {"GET": {Observe, filtered(pageParams, (*Admin).Messages)},
			"POST": {Operate, postMessages}},
		"/v1/messages/{id}":             {"GET": {Observe, one("id", "raw", (*Admin).Message)}},
		"/v1/conversations":             {"GET": {Observe, filtered(conversationParams, (*Admin).Conversations)}},
		"/v1/conversations/{id}":        {"GET": {Observe, getConversation}},
		"/v1/conversations/{id}/export": {"GET": {Read, getExport}},
		"/v1/events":                    {"GET": {Observe, getEvents}},
		"/v1/refused":                   {"GET": {Observe, latest("refused", "last", (*Admin).Refused)}},
		"/v1/refused/{ref}":             {"GET": {Observe, getRefusal}},

		"/v1/timeline":                   {"GET": {Observe, filtered(timelineParams, (*Admin).Timeline)}},
		"/v1/counts":                     {"GET": {Observe, filtered(timelineParams, (*Admin).Counts)}},
		"/v1/hidden":                     {"GET": {Observe, getHidden}},
		"/v1/watch":                      {"GET": {Observe, getWatch}},
		"/v1/conversations/{id}/trace":   {"GET": {Observe, getTrace}},
		"/v1/conversations/{id}/refused": {"GET": {Observe, getRefusalsAround}},
		"/v1/checklists": {"GET": {Observe, list("checklists", (*Admin).Checklists)},
			"POST": {Administer, create((*Admin).Connect)}},
		"/v1/checklists/{name}": {"GET": {Observe, getChecklist}},
		"/v1/inspect":           {"POST": {Observe, change((*Admin).Inspect)}},
		"/v1/foresee":           {"POST": {Operate, change((*Admin).Foresee)}},
		"/v1/speakers":          {"GET": {Observe, plain((*Admin).Speakers)}},
		"/v1/undelivered":       {"GET": {Observe, filtered(undeliveredParams, (*Admin).Undelivered)}},
		"/v1/jobs":              {"GET": {Observe, list("jobs", (*Admin).Jobs)}},
		"/v1/jobs/{id}":         {"GET": {Observe, getJob}, "DELETE": {Operate, deleteJob}},

		"/v1/dead":            {"GET": {Observe, getDead}},
		"/v1/dead/retry":      {"POST": {Operate, change((*Admin).RetryAll)}},
		"/v1/dead/drop":       {"POST": {Operate, change((*Admin).DropAll)}},
		"/v1/dead/{id}":       {"GET": {Observe, deadLetter((*Admin).DeadLetter)}},
		"/v1/dead/{id}/retry": {"POST": {Operate, deadLetter((*Admin).Retry)}},
		"/v1/dead/{id}/drop":  {"POST": {Operate, postDrop}},

		"/v1/keys": {"GET": {Observe, getKeys}, "POST": {Administer, create(enroll)},
			"DELETE": {Administer, deleteKeys}},
		"/v1/keys/own":        {"POST": {Administer, create((*Admin).NewKey)}},
		"/v1/keys/passphrase": {"POST": {Administer, change((*Admin).Passphrase)}},
		"/v1/keys/rotate":     {"POST": {Administer, change((*Admin).Rotate)}},

		"/v1/tokens": {"GET": {Administer, list("tokens", (*Admin).Tokens)},
			"POST": {Administer, create((*Admin).IssueToken)}},
		"/v1/tokens/{name}": {"DELETE": {Administer, deleteToken}},

		"/v1/forget":   {"POST": {Administer, change((*Admin).Forget)}},
		"/v1/erasures": {"GET": {Observe, getErasures}},
	}
}

// plain serves a method that needs to know only the caller.
func plain[R any](method func(*Admin, Actor) (R, error)) handler {
	return func(a *Admin, c *call) (any, error) { return method(a, c.by) }
}

// list serves a method that lists everything, as a member of that name.
func list[T any](name string, method func(*Admin, Actor) ([]T, error)) handler {
	return func(a *Admin, c *call) (any, error) {
		out, err := method(a, c.by)
		return map[string]any{name: out}, err
	}
}

// latest serves a method that lists the newest, 100 unless the parameter says another number.
func latest[T any](name, number string, method func(*Admin, Actor, int) ([]T, error)) handler {
	return func(a *Admin, c *call) (any, error) {
		n := 100
		if err := c.params(param{number, &n}); err != nil {
			return nil, err
		}
		out, err := method(a, c.by, n)
		return map[string]any{name: out}, err
	}
}

// deadLetter serves a method on the dead letter that the request names.
func deadLetter(method func(a *Admin, ctx context.Context, by Actor, id, to string) (DeadLetter, error)) handler {
	return func(a *Admin, c *call) (any, error) {
		id, to, err := c.dead()
		if err != nil {
			return nil, err
		}
		return method(a, c.r.Context(), c.by, id, to)
	}
}

// filtered serves a method that takes a filter, whose fields are parameters of the request.
func filtered[F, R any](params func(*F) []param, method func(*Admin, context.Context, Actor, F) (R, error)) handler {
	return func(a *Admin, c *call) (any, error) {
		var f F
		if err := c.params(params(&f)...); err != nil {
			return nil, err
		}
		return method(a, c.r.Context(), c.by, f)
	}
}

// one serves a method on the thing that the path names, with one parameter.
func one[P, R any](path, name string, method func(*Admin, context.Context, Actor, string, P) (R, error)) handler {
	return func(a *Admin, c *call) (any, error) {
		var p P
		if err := c.params(param{name, &p}); err != nil {
			return nil, err
		}
		return method(a, c.r.Context(), c.by, c.r.PathValue(path), p)
	}
}

// changeAgent is change for a method on the agent that the path names.
func changeAgent[B, R any](method func(*Admin, context.Context, Actor, string, B) (R, error)) handler {
	return func(a *Admin, c *call) (any, error) {
		return change(func(a *Admin, ctx context.Context, by Actor, b B) (R, error) {
			return method(a, ctx, by, c.r.PathValue("name"), b)
		})(a, c)
	}
}

// change serves a method that takes the JSON body of the request.
func change[B, R any](method func(*Admin, context.Context, Actor, B) (R, error)) handler {
	return func(a *Admin, c *call) (any, error) {
		var b B
		if err := c.body(&b, false); err != nil {
			return nil, err
		}
		return method(a, c.r.Context(), c.by, b)
	}
}

// create is change for a method that makes something: the status is 201.
func create[B, R any](method func(*Admin, context.Context, Actor, B) (R, error)) handler {
	return func(a *Admin, c *call) (any, error) {
		c.status = http.StatusCreated
		return change(method)(a, c)
	}
}

func getHealth(*Admin, *call) (any, error) {
	return map[string]string{"status": "ok"}, nil
}

func getReady(a *Admin, c *call) (any, error) {
	err := a.Ready()
	if err == nil {
		return map[string]any{"ready": true}, nil
	}
	body := map[string]any{"ready": false}
	if _, denied := a.Authenticate(c.r); denied == nil {
		body["reason"] = err.Error()
	}
	c.status = http.StatusServiceUnavailable
	return body, nil
}

func postReload(a *Admin, c *call) (any, error) {
	if err := c.body(&struct{}{}, true); err != nil {
		return nil, err
	}
	return a.Reload(c.r.Context(), c.by)
}

func getOpenAPI(_ *Admin, c *call) (any, error) {
	c.w.Header().Set("Content-Type", "application/json")
	// If the write fails, the caller is gone.
	_, _ = c.w.Write(openAPI)
	return nil, nil
}

func deleteAgent(a *Admin, c *call) (any, error) {
	name := c.r.PathValue("name")
	return map[string]string{"removed": name}, a.RemoveAgent(c.r.Context(), c.by, name)
}

func getWays(a *Admin, c *call) (any, error) {
	ways, err := a.Ways(c.r.Context(), c.by, c.r.PathValue("name"))
	return map[string]any{"ways": ways}, err
}

func getAgentState(a *Admin, c *call) (any, error) {
	if err := c.params(); err != nil {
		return nil, err
	}
	return a.AgentState(c.by, c.r.PathValue("name"))
}

type exposure struct {
	Protocols []string `json:"protocols"`
}

func expose(a *Admin, ctx context.Context, by Actor, name string, e exposure) (Agent, error) {
	return a.Expose(ctx, by, name, e.Protocols)
}

func previewExpose(a *Admin, ctx context.Context, by Actor, name string, e exposure) (Preview, error) {
	return a.PreviewExpose(ctx, by, name, e.Protocols)
}

type recording struct {
	Record parley.Recording `json:"record"`
}

func record(a *Admin, ctx context.Context, by Actor, name string, r recording) (Agent, error) {
	return a.Record(ctx, by, name, r.Record)
}

func getInbox(a *Admin, c *call) (any, error) {
	var wait time.Duration
	var limit int
	if err := c.params(param{"wait", &wait}, param{"max", &limit}); err != nil {
		return nil, err
	}
	name, err := a.inboxOf(c.by, c.r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	ctx := c.r.Context()
	if strings.Contains(c.r.Header.Get("Accept"), "text/event-stream") {
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
	list, err := a.collect(ctx, name, limit, wait)
	if err != nil {
		return nil, err
	}
	body := map[string]any{"messages": viewAll(c.by, list, a.showAttempt)}
	if ctx.Err() != nil || writeBody(c.w, http.StatusOK, body) != nil {
		a.unreadOf(name).putBack(list)
	}
	return nil, nil
}

func postMessages(a *Admin, c *call) (any, error) {
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
	if r.Reply == nil {
		c.status = http.StatusAccepted
	}
	return r, err
}

// stream answers with server-sent events: accepted, event…, reply; or error.
// A message that is refused before it is recorded is answered with its status.
func (a *Admin) stream(ctx context.Context, c *call, s Send) error {
	var out *sse
	defer func() { out.close() }()
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

func getConversation(a *Admin, c *call) (any, error) {
	var cursor, message string
	var limit int
	if err := c.params(param{"cursor", &cursor}, param{"m", &message}, param{"limit", &limit}); err != nil {
		return nil, err
	}
	if message != "" {
		return a.ConversationAround(c.r.Context(), c.by, c.r.PathValue("id"), message, limit)
	}
	return a.Conversation(c.r.Context(), c.by, c.r.PathValue("id"), cursor, limit)
}

func getEvents(a *Admin, c *call) (any, error) {
	var f index.Filter
	if err := c.params(messageParams(&f)...); err != nil {
		return nil, err
	}
	var out *sse
	defer func() { out.close() }()
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

func getExport(a *Admin, c *call) (any, error) {
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
	// The missing last line shows that the file is incomplete.
	return nil, w.result(a, e.write(c.r.Context(), w), "an export broke off", "conversation", id)
}

func (a *Admin) getTranscript(c *call, protocol string) error {
	write, session, err := a.transcript(c.r.Context(), c.by, c.r.PathValue("id"), protocol)
	if err != nil {
		return err
	}
	w := c.attachment("application/json", protocol+"-"+session+".json")
	// An incomplete transcript does not verify.
	return w.result(a, write(c.r.Context(), w), "a transcript broke off", "session", session)
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

// result gives the error if nothing of the answer has been sent. A later error can only be logged.
func (w *slowWriter) result(a *Admin, err error, text string, about ...any) error {
	if err == nil || w.begin != nil {
		return err
	}
	a.c.Logger.Warn(text, append(about, "error", err)...)
	return nil
}

func getAudit(a *Admin, c *call) (any, error) {
	f := AuditFilter{Limit: 100}
	if err := c.params(auditParams(&f)...); err != nil {
		return nil, err
	}
	list, err := a.Audit(c.by, f)
	return map[string]any{"audit": list}, err
}

func deleteToken(a *Admin, c *call) (any, error) {
	force, name := false, c.r.PathValue("name")
	if err := c.params(param{"force", &force}); err != nil {
		return nil, err
	}
	return map[string]string{"revoked": name}, a.RevokeToken(c.r.Context(), c.by, name, force)
}

func getDead(a *Admin, c *call) (any, error) {
	f := DeadFilter{Limit: 1000}
	if err := c.params(deadParams(&f)...); err != nil {
		return nil, err
	}
	list, err := a.Dead(c.by, f)
	return map[string]any{"dead": list}, err
}

// dead gives the id and the recipient that a request names.
func (c *call) dead() (id, to string, err error) {
	err = c.params(param{"to", &to})
	return c.r.PathValue("id"), to, err
}

func postDrop(a *Admin, c *call) (any, error) {
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
	return a.Drop(c.r.Context(), c.by, id, to, why.Reason)
}

func getRefusal(a *Admin, c *call) (any, error) {
	return a.Refusal(c.by, c.r.PathValue("ref"))
}

func enroll(a *Admin, ctx context.Context, by Actor, e Enrolment) (map[string]string, error) {
	return map[string]string{"enrolled": e.Agent}, a.Enroll(ctx, by, e)
}

func getKeys(a *Admin, c *call) (any, error) {
	var agent string
	if err := c.params(param{"agent", &agent}); err != nil {
		return nil, err
	}
	return a.Keys(c.r.Context(), c.by, agent)
}

func deleteKeys(a *Admin, c *call) (any, error) {
	var agent, protocol, keyID string
	if err := c.params(param{"agent", &agent}, param{"protocol", &protocol}, param{"keyId", &keyID}); err != nil {
		return nil, err
	}
	return map[string]string{"unenrolled": agent}, a.Unenroll(c.r.Context(), c.by, agent, protocol, keyID)
}

func getBackup(a *Admin, c *call) (any, error) {
	if err := c.params(); err != nil {
		return nil, err
	}
	w := c.attachment(backupMediaType, "parley.backup")
	if _, err := a.Backup(c.r.Context(), c.by, w); err != nil {
		if w.begin != nil {
			return nil, err
		}
		// The status has been sent. The missing end shows that the backup is incomplete.
		a.c.Logger.Warn("a backup broke off", "error", err)
		panic(http.ErrAbortHandler)
	}
	return nil, nil
}

func getErasures(a *Admin, c *call) (any, error) {
	list, err := a.Erasures(c.r.Context(), c.by)
	return map[string]any{"erasures": list}, err
}
