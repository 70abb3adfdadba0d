package admin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// MessageFilter chooses messages of the journal; what is zero is not asked for.
type MessageFilter = index.Filter

// ConversationFilter chooses conversations.
type ConversationFilter = index.ConversationFilter

// Reason is why something failed.
type Reason = index.Reason

// Summary is what lists say of a message.
type Summary index.Message

// DeliveryInfo is one message to one recipient.
type DeliveryInfo = index.Delivery

// DeliveryStep is one change of a delivery.
type DeliveryStep = index.Step

// Recorded is a message as the journal holds it.
type Recorded struct {
	Summary
	Node     string            `json:"node,omitzero"`     // the hub that recorded it
	Content  *Message          `json:"content,omitzero"`  // missing where it is no longer kept
	Header   map[string]string `json:"header,omitzero"`   // of the transport, as far as it is kept
	Raw      []byte            `json:"raw,omitzero"`      // the envelope as received; only when asked for
	RawBytes int               `json:"rawBytes,omitzero"` // its size
	Erased   *Erasure          `json:"erased,omitzero"`   // its content was erased
}

// MessagePage is some of the messages that a filter chooses; Next is the
// cursor of what follows.
type MessagePage struct {
	Messages []Summary `json:"messages"`
	Next     string    `json:"next,omitzero"`
}

// ConversationInfo is what lists say of a conversation.
type ConversationInfo index.Conversation

// ConversationPage is some of the conversations that a filter chooses.
type ConversationPage struct {
	Conversations []ConversationInfo `json:"conversations"`
	Next          string             `json:"next,omitzero"`
}

// Conversation is a conversation with a page of its messages, the oldest
// first.
type Conversation struct {
	ConversationInfo
	History []Summary `json:"history"`
	Next    string    `json:"next,omitzero"`
}

// IndexStats tells how the index of messages is.
type IndexStats = index.Stats

func (a *Admin) viewIndex() *IndexStats {
	if a.c.Index == nil {
		return nil
	}
	s := a.c.Index.Stats()
	return &s
}

func viewSummary(by Actor, m index.Message) Summary {
	v := Summary(m)
	return *forActor(by, &v)
}

func viewSummaries(by Actor, list []index.Message) []Summary {
	out := []Summary{}
	for i := range list {
		out = append(out, viewSummary(by, list[i]))
	}
	return out
}

func viewConversation(by Actor, c index.Conversation) ConversationInfo {
	v := ConversationInfo(c)
	return *forActor(by, &v)
}

// indexed gives the index to who may read it.
func (a *Admin) indexed(by Actor) (*index.Index, error) {
	if err := by.may(Observe); err != nil {
		return nil, err
	}
	if a.c.Index == nil {
		return nil, parley.Refuse(parley.Unsupported, "this hub keeps no index of its messages")
	}
	return a.c.Index, nil
}

// fresh gives the index when it holds what was recorded before the call, or
// after freshness at the latest: a list that is a little behind is better than
// none.
func (a *Admin) fresh(ctx context.Context, by Actor) (*index.Index, error) {
	x, err := a.indexed(by)
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, freshness)
	defer cancel()
	if err := x.Wait(wait); err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return x, nil
}

const freshness = 2 * time.Second

// fromIndex says in the API's words what the index did not do.
func fromIndex(err error, what, id string) error {
	switch {
	case errors.Is(err, index.ErrFilter):
		return parley.Refuse(parley.Malformed, "%s", strings.TrimPrefix(err.Error(), index.ErrFilter.Error()+": "))
	case errors.Is(err, index.ErrNotFound):
		return parley.Refuse(notFound, "no %s %.40q in the journal", what, id)
	case errors.Is(err, index.ErrAmbiguous):
		return parley.Refuse(parley.Conflict, "more than one %s begins with %.40q; give more of it", what, id)
	}
	return err
}

// Messages lists messages of the journal, the newest first.
func (a *Admin) Messages(ctx context.Context, by Actor, f MessageFilter) (MessagePage, error) {
	if err := by.maySearch(&f); err != nil {
		return MessagePage{}, err
	}
	if err := a.named(&f.Agent, &f.From, &f.To); err != nil {
		return MessagePage{}, err
	}
	x, err := a.fresh(ctx, by)
	if err != nil {
		return MessagePage{}, err
	}
	page, err := x.Messages(ctx, f)
	if err != nil {
		return MessagePage{}, fromIndex(err, "message", "")
	}
	return MessagePage{viewSummaries(by, page.Messages), page.Next}, nil
}

// Message finds one by its id, or by at least the first 8 digits of it.
func (a *Admin) Message(ctx context.Context, by Actor, id string, raw bool) (Recorded, error) {
	x, err := a.fresh(ctx, by)
	if err != nil {
		return Recorded{}, err
	}
	m, err := x.Message(ctx, id)
	if err != nil {
		return Recorded{}, fromIndex(err, "message", id)
	}
	out := Recorded{Summary: viewSummary(by, m)}
	r, err := a.c.Hub.Journal().Read(ctx, m.Position)
	if errors.Is(err, journal.ErrNotFound) || err == nil && r.Message == nil {
		return out, nil // it was removed since
	}
	if err != nil {
		return out, err
	}
	out.Erased = a.erasure(ctx, r)
	masked := a.masked(r.Message)
	o := &masked.Origin
	out.Node, out.Content, out.Header, out.RawBytes = r.Node, viewMessage(by, masked), o.Header, len(o.Raw)
	if raw {
		out.Raw = o.Raw
	}
	return *forActor(by, &out), nil
}

// Conversations lists conversations, the one with the newest message first.
func (a *Admin) Conversations(ctx context.Context, by Actor, f ConversationFilter) (ConversationPage, error) {
	x, err := a.fresh(ctx, by)
	if err != nil {
		return ConversationPage{}, err
	}
	if err := a.named(&f.Agent); err != nil {
		return ConversationPage{}, err
	}
	page, err := x.Conversations(ctx, f)
	if err != nil {
		return ConversationPage{}, fromIndex(err, "conversation", "")
	}
	out := ConversationPage{Conversations: []ConversationInfo{}, Next: page.Next}
	for _, c := range page.Conversations {
		out.Conversations = append(out.Conversations, viewConversation(by, c))
	}
	return out, nil
}

// Conversation finds one by its id, or by at least the first 8 digits of it,
// with a page of its messages behind cursor.
func (a *Admin) Conversation(ctx context.Context, by Actor, id, cursor string, limit int) (Conversation, error) {
	x, err := a.fresh(ctx, by)
	if err != nil {
		return Conversation{}, err
	}
	c, err := x.Conversation(ctx, id)
	if err != nil {
		return Conversation{}, fromIndex(err, "conversation", id)
	}
	page, err := x.History(ctx, c.ID, cursor, limit)
	if err != nil {
		return Conversation{}, fromIndex(err, "conversation", id)
	}
	return Conversation{viewConversation(by, c), viewSummaries(by, page.Messages), page.Next}, nil
}

// An Event is something that just happened; exactly one of its pointers is
// set.
type Event struct {
	Message  *Summary      // was recorded
	Delivery *DeliveryNews // moved on
	Refusal  *Refusal      // was turned away before it was recorded
	Dropped  *Dropped      // nothing more comes: the reader was too slow
}

// DeliveryNews is one step of one delivery.
type DeliveryNews struct {
	Message   parley.ID            `json:"message"`
	To        string               `json:"to"`
	State     parley.DeliveryState `json:"state"`
	Attempt   int                  `json:"attempt,omitzero"`
	Postponed bool                 `json:"postponed,omitzero"`
	Next      time.Time            `json:"next,omitzero"`
	Error     *Reason              `json:"error,omitzero"`
	Reply     parley.ID            `json:"reply,omitzero"`
	Position  journal.Position     `json:"position"`
	Time      time.Time            `json:"time"`
}

// Dropped is the end of a reader that was too slow.
type Dropped struct {
	Reason string `json:"reason"`
}

// name and id of the server-sent event.
func (e *Event) name() (name, id string, v any) {
	switch {
	case e.Message != nil:
		return "message", e.Message.Position.String(), e.Message
	case e.Delivery != nil:
		return "delivery", e.Delivery.Position.String(), e.Delivery
	case e.Refusal != nil:
		return "refused", e.Refusal.Ref, e.Refusal
	}
	return "dropped", "", e.Dropped
}

const (
	tailQueue    = 1024                   // records that wait for one reader
	tailRefusals = 500 * time.Millisecond // between looks for new refusals
)

// Tail yields what happens from now on: messages and deliveries that the
// filter chooses, and, unless it asks for what a refusal does not have, what is
// refused. Started, if not nil, is called when nothing can be missed any more.
func (a *Admin) Tail(ctx context.Context, by Actor, f MessageFilter, started func()) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		err := by.maySearch(&f)
		if err == nil {
			err = a.named(&f.Agent, &f.From, &f.To)
		}
		if err != nil {
			yield(Event{}, err)
			return
		}
		x, err := a.indexed(by)
		if err != nil {
			yield(Event{}, err)
			return
		}
		leave, err := a.enter()
		if err != nil {
			yield(Event{}, err)
			return
		}
		defer leave()
		news := make(chan *journal.Record, tailQueue)
		slow := make(chan struct{}, 1)
		stop := a.c.Hub.Journal().Watch(func(r *journal.Record) {
			select {
			case news <- r:
			default:
				select {
				case slow <- struct{}{}:
				default:
				}
			}
		})
		defer stop()
		refused := a.c.Hub.Stats().Refused
		look := time.NewTicker(tailRefusals)
		defer look.Stop()
		if started != nil {
			started()
		}
		for {
			select {
			case <-slow:
				yield(Event{Dropped: &Dropped{"the reader was too slow: more than " + strconv.Itoa(tailQueue) + " records waited for it"}}, nil)
				return
			default:
			}
			select {
			case r := <-news:
				if !a.tell(ctx, by, x, &f, r, yield) {
					return
				}
			case <-look.C:
				var list []Refusal
				list, refused = a.refusedSince(by, &f, refused)
				if !each(list, func(r Refusal) bool { return yield(Event{Refusal: &r}, nil) }) {
					return
				}
			case <-ctx.Done():
				return
			case <-a.ended:
				return
			}
		}
	}
}

func each[T any](list []T, f func(T) bool) bool {
	for _, v := range list {
		if !f(v) {
			return false
		}
	}
	return true
}

// tell yields what the filter chooses of a record.
func (a *Admin) tell(ctx context.Context, by Actor, x *index.Index, f *MessageFilter, r *journal.Record,
	yield func(Event, error) bool) bool {
	if m, ok := x.Of(r); ok && f.Matches(&m) {
		v := viewSummary(by, m)
		if !yield(Event{Message: &v}, nil) {
			return false
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if !a.wanted(ctx, x, f, s) {
			continue
		}
		d := &DeliveryNews{Message: s.Message, To: s.To, State: s.State, Attempt: s.Attempt, Postponed: s.Postponed, Next: s.Next, Reply: s.Reply, Position: r.Position, Time: r.Time}
		if s.Error != nil {
			d.Error = &Reason{Code: s.Error.Code, Text: s.Error.Text}
		}
		if !yield(Event{Delivery: forActor(by, d)}, nil) {
			return false
		}
	}
	return true
}

// wanted reports whether a filter chooses a step: by itself where that is
// enough, else by its message.
func (a *Admin) wanted(ctx context.Context, x *index.Index, f *MessageFilter, s *journal.Step) bool {
	if f.Refused || f.State != 0 && s.State != f.State || f.To != "" && s.To != f.To || f.Failed && s.State < parley.Dead {
		return false
	}
	rest := *f
	rest.State, rest.To, rest.Failed, rest.Cursor, rest.Limit, rest.Oldest, rest.Since, rest.Until = 0, "", false, "", 0, false, time.Time{}, time.Time{}
	if rest.Agent == s.To {
		rest.Agent = ""
	}
	if rest == (MessageFilter{}) {
		return true
	}
	m, err := x.Message(ctx, s.Message.String())
	if errors.Is(err, index.ErrNotFound) && x.Wait(ctx) == nil {
		m, err = x.Message(ctx, s.Message.String())
	}
	return err == nil && rest.Matches(&m)
}

// refusedSince gives the refusals after the first n that a filter chooses, the
// oldest first.
func (a *Admin) refusedSince(by Actor, f *MessageFilter, n uint64) ([]Refusal, uint64) {
	total := a.c.Hub.Stats().Refused
	if total == n {
		return nil, n
	}
	var out []Refusal
	if f.Conversation.IsZero() && f.InReplyTo.IsZero() && f.Trace == "" && f.Kind == 0 && f.State == 0 {
		list := a.c.Hub.Refused(int(min(total-n, 10_000)))
		for i := len(list) - 1; i >= 0; i-- {
			r := viewRefusal(by, list[i])
			if f.Agent != "" && r.Claim != f.Agent && r.To != f.Agent || f.From != "" && r.Claim != f.From || f.To != "" && r.To != f.To ||
				f.Protocol != "" && r.Protocol != f.Protocol || f.Text != "" && !strings.Contains(strings.ToLower(r.Text+" "+r.Cause), strings.ToLower(f.Text)) {
				continue
			}
			out = append(out, r)
		}
	}
	return out, total
}

// EndStreams ends what [Admin.Tail] yields, so that a server that shuts down
// need not wait for those who read it.
func (a *Admin) EndStreams() { a.endOnce.Do(func() { close(a.ended) }) }

// A param is a parameter of a filter. To is the member that it is, a pointer.
type param struct {
	name string
	to   any
}

func messageParams(f *MessageFilter) []param {
	return []param{{"agent", &f.Agent}, {"from", &f.From}, {"to", &f.To}, {"conversation", &f.Conversation}, {"trace", &f.Trace},
		{"kind", &f.Kind}, {"state", &f.State}, {"protocol", &f.Protocol}, {"since", &f.Since}, {"until", &f.Until},
		{"failed", &f.Failed}, {"refused", &f.Refused}, {"q", &f.Text}}
}

func conversationParams(f *ConversationFilter) []param {
	return []param{{"agent", &f.Agent}, {"since", &f.Since}, {"until", &f.Until}, {"open", &f.Open}, {"failed", &f.Failed},
		{"cursor", &f.Cursor}, {"limit", &f.Limit}}
}

// params reads the parameters of a call; it may have no others.
func (c *call) params(list ...param) error {
	var names []string
	for _, p := range list {
		names = append(names, p.name)
	}
	q, err := c.query(names...)
	for i := 0; i < len(list) && err == nil; i++ {
		p := list[i]
		s := q.Get(p.name)
		malformed := func(bad error, want string) error {
			if s == "" || bad == nil {
				return nil
			}
			return parley.Refuse(parley.Malformed, "%s=%.40q: want %s", p.name, s, want)
		}
		switch to := p.to.(type) {
		case *string:
			*to = s
		case *bool:
			*to, err = flag(q, p.name)
		case *int:
			*to, err = number(q, p.name, 0)
		case *time.Time:
			*to, err = moment(q, p.name)
		case *parley.ID:
			err = malformed(to.UnmarshalText([]byte(s)), "an id")
		case *parley.Kind:
			err = malformed(to.UnmarshalText([]byte(s)), "request, event, response, error, notice or cancel")
		case *parley.DeliveryState:
			err = malformed(to.UnmarshalText([]byte(s)), "waiting, delivering, delivered, answered, dead, dropped, expired or abandoned")
		}
	}
	return err
}

// values writes parameters as params reads them.
func values(list ...param) url.Values {
	q := url.Values{}
	for _, p := range list {
		var s string
		switch v := reflect.ValueOf(p.to).Elem(); {
		case v.IsZero():
			continue
		case v.Type() == reflect.TypeFor[time.Time]():
			s = v.Interface().(time.Time).UTC().Format(time.RFC3339Nano)
		default:
			s = fmt.Sprint(v.Interface())
		}
		q.Set(p.name, s)
	}
	return q
}

func getMessages(a *Admin, c *call) (*answer, error) {
	var f MessageFilter
	if err := c.params(append(messageParams(&f), param{"cursor", &f.Cursor}, param{"limit", &f.Limit})...); err != nil {
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
	var f ConversationFilter
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
	var f MessageFilter
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
		// If nobody is there any more, the first event finds that out.
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
	q, err := c.query("content", "format")
	if err != nil {
		return nil, err
	}
	switch f := q.Get("format"); f {
	case "", "hub":
	case "asp":
		if q.Has("content") {
			return nil, parley.Refuse(parley.Malformed, "content is for the format hub: a transcript is whole")
		}
		return nil, a.getTranscript(c, f)
	default:
		return nil, parley.Refuse(parley.Malformed, "format %.40q: want hub or asp", f)
	}
	content := true
	if q.Has("content") {
		if content, err = flag(q, "content"); err != nil {
			return nil, err
		}
	}
	e, err := a.export(c.r.Context(), c.by, c.r.PathValue("id"), content)
	if err != nil {
		return nil, err
	}
	c.w.Header().Set("Content-Type", ExportMediaType)
	c.w.Header().Set("Content-Disposition", `attachment; filename="conversation-`+e.conversation.ID.String()+`.jsonl"`)
	out := http.NewResponseController(c.w)
	if err := e.write(c.r.Context(), &slowWriter{c.w, out}); err != nil {
		// The status is sent; without its last line the file says itself that
		// it is not whole.
		a.c.Logger.Warn("an export broke off", "conversation", e.conversation.ID, "error", err)
	}
	return nil, nil
}

func (a *Admin) getTranscript(c *call, protocol string) error {
	write, session, err := a.transcript(c.r.Context(), c.by, c.r.PathValue("id"), protocol)
	if err != nil {
		return err
	}
	c.w.Header().Set("Content-Type", "application/json")
	c.w.Header().Set("Content-Disposition", `attachment; filename="`+protocol+`-`+session+`.json"`)
	if err := write(c.r.Context(), &slowWriter{c.w, http.NewResponseController(c.w)}); err != nil {
		// As with an export, what is not whole does not verify.
		a.c.Logger.Warn("a transcript broke off", "session", session, "error", err)
	}
	return nil
}

// slowWriter gives each write its own time.
type slowWriter struct {
	w   http.ResponseWriter
	out *http.ResponseController
}

func (w *slowWriter) Write(b []byte) (int, error) {
	// Writers that know no deadline do without.
	_ = w.out.SetWriteDeadline(time.Now().Add(sseWrite))
	return w.w.Write(b)
}

// Messages lists messages of the journal, the newest first.
func (c *Client) Messages(ctx context.Context, f MessageFilter) (MessagePage, error) {
	var v MessagePage
	err := c.do(ctx, "GET", "/messages", values(append(messageParams(&f), param{"cursor", &f.Cursor}, param{"limit", &f.Limit})...), nil, &v)
	return v, err
}

// Message finds one by its id, or by at least the first 8 digits of it.
func (c *Client) Message(ctx context.Context, id string, raw bool) (Recorded, error) {
	var v Recorded
	err := c.do(ctx, "GET", "/messages/"+url.PathEscape(id), values(param{"raw", &raw}), nil, &v)
	return v, err
}

// Conversations lists conversations, the one with the newest message first.
func (c *Client) Conversations(ctx context.Context, f ConversationFilter) (ConversationPage, error) {
	var v ConversationPage
	err := c.do(ctx, "GET", "/conversations", values(conversationParams(&f)...), nil, &v)
	return v, err
}

// Conversation finds one by its id, or by at least the first 8 digits of it,
// with a page of its messages behind cursor.
func (c *Client) Conversation(ctx context.Context, id, cursor string, limit int) (Conversation, error) {
	var v Conversation
	q := values(param{"cursor", &cursor}, param{"limit", &limit})
	err := c.do(ctx, "GET", "/conversations/"+url.PathEscape(id), q, nil, &v)
	return v, err
}

// Tail yields what happens from now on, until ctx ends, the loop breaks off or
// the hub says Dropped. Started, if not nil, is called when nothing can be
// missed any more.
func (c *Client) Tail(ctx context.Context, f MessageFilter, started func()) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		req, err := c.request(ctx, "GET", "/events", values(messageParams(&f)...), nil)
		if err != nil {
			yield(Event{}, err)
			return
		}
		for e, err := range c.events(req) {
			var v Event
			if err == nil {
				var to any
				switch e.name {
				case "started":
					if started != nil {
						started()
					}
					continue
				case "message":
					v.Message = &Summary{}
					to = v.Message
				case "delivery":
					v.Delivery = &DeliveryNews{}
					to = v.Delivery
				case "refused":
					v.Refusal = &Refusal{}
					to = v.Refusal
				case "dropped":
					v.Dropped = &Dropped{}
					to = v.Dropped
				default:
					continue // of a later version
				}
				err = jsonx.Decode(e.data, to)
			}
			if err != nil {
				yield(Event{}, err)
				return
			}
			if !yield(v, nil) || v.Dropped != nil {
				return
			}
		}
	}
}

// Export writes a conversation as a file that proves itself; see
// [VerifyExport]. Without content it has digests in place of bytes.
func (c *Client) Export(ctx context.Context, id string, content bool, w io.Writer) error {
	q := url.Values{}
	if !content {
		q.Set("content", "false")
	}
	return c.export(ctx, id, q, w)
}

// Transcript writes the one session in which a conversation was held in the
// form that its protocol, asp, has for that.
func (c *Client) Transcript(ctx context.Context, id, protocol string, w io.Writer) error {
	return c.export(ctx, id, url.Values{"format": {protocol}}, w)
}

func (c *Client) export(ctx context.Context, id string, q url.Values, w io.Writer) error {
	req, err := c.request(ctx, "GET", "/conversations/"+url.PathEscape(id)+"/export", q, nil)
	if err != nil {
		return err
	}
	resp, err := c.send(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(w, resp.Body); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return &UnreachableError{c.Base, err}
	}
	return nil
}
