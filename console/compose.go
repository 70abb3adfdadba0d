package console

import (
	"cmp"
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/readable"
)

// This file makes the right side of the workbench, Compose. What it sends enters by the API, as any message of the
// token does: nothing is signed for an agent.

const (
	maxComposed   = 4 << 20 // bytes of a content
	suggested     = 200     // names that a field suggests
	defaultWait   = 30      // seconds
	longestWait   = 300
	sentKept      = 50 // messages in the history of a session
	commandLength = 4096
)

// Compose is the right side.
type Compose struct {
	Form    composition
	Key     string // idempotency key: the same form sends once
	As      []string
	Fixed   bool     // the token speaks as one agent only
	Many    bool     // there are more than a menu shows: the field is a text
	Agents  []string // to which the speaker may send
	Skills  []string // of the recipient
	Enters  []Entrance
	Look    *Look // what the hub would do with it; nil: not asked for
	Text    Echo
	Problem *admin.Problem // why the form was not sent
	Sent    *Outcome
	History []SentRow
}

// A composition is what the form says.
type composition struct {
	As, To, Kind, Skill, Content string
	Wait                         int // seconds; 0: not at all
}

// compose fills the form.
func (c *Console) compose(q *request, v *Compose, f composition) {
	v.Form, v.Text, v.Key = f, echo(f.Content), cmp.Or(v.Key, rand.Text())
	v.Form.Kind = cmp.Or(f.Kind, parley.Request.String())
	if f.Kind == "" {
		v.Form.Wait = defaultWait
	}
	who, err := c.admin.Speakers(q.by)
	if err != nil {
		return // names can be written without suggestions
	}
	v.As, v.Many = who.Agents, who.More > 0
	v.Fixed = len(who.Patterns) == 1 && len(v.As) == 1 && who.Patterns[0] == v.As[0]
	v.Form.As = cmp.Or(v.Form.As, who.Default)
	if v.Fixed {
		v.Form.As = v.As[0]
	} else if f.As != "" && !slices.Contains(v.As, f.As) { // it stays chosen
		v.As = append([]string{f.As}, v.As...)
	}
	page, err := c.admin.Agents(q.r.Context(), q.by, admin.AgentFilter{Limit: suggested,
		CallableBy: cmp.Or(v.Form.As, v.As[0])})
	if err == nil {
		for _, a := range page.Agents {
			v.Agents = append(v.Agents, a.Name)
		}
	}
	if f.To == "" {
		return
	}
	if a, err := c.admin.Agent(q.r.Context(), q.by, f.To, 0); err == nil {
		for _, s := range a.Skills[:min(len(a.Skills), suggested)] {
			v.Skills = append(v.Skills, s.ID)
		}
		if info, err := c.admin.Info(q.by); err == nil {
			v.Enters = entrances(&a, &info, &v.Form)
		}
	}
}

// composed reads the form.
func composed(form url.Values) (f composition, s admin.Send, err error) {
	get := func(name string) string { return strings.TrimSpace(form.Get(name)) }
	f = composition{As: get("as"), To: get("to"), Kind: get("kind"), Skill: get("skill"),
		Content: strings.ReplaceAll(form.Get("content"), "\r\n", "\n")}
	s = admin.Send{From: f.As, To: f.To, Skill: f.Skill, IdempotencyKey: form.Get("key")}
	if err = s.Kind.UnmarshalText([]byte(f.Kind)); err != nil || s.Kind != parley.Request && s.Kind != parley.Notice {
		return f, s, parley.Refuse(parley.Malformed, "the kind is %.40q: want request or notice", f.Kind)
	}
	if f.Wait, err = strconv.Atoi(cmp.Or(get("wait"), "0")); err != nil || f.Wait < 0 || f.Wait > longestWait {
		return f, s, parley.Refuse(parley.Malformed, "wait %.40q: want 0 to %d seconds", get("wait"), longestWait)
	}
	switch {
	case f.To == "":
		return f, s, parley.Refuse(parley.Malformed, "choose the recipient first")
	case s.IdempotencyKey == "":
		return f, s, parley.Refuse(parley.Malformed, "the form has no key, without which it could be sent twice; reload "+
			"the page")
	case !utf8.ValidString(f.Content):
		return f, s, parley.Refuse(parley.Malformed, "the content is not text in UTF-8")
	case len(f.Content) > maxComposed:
		return f, s, parley.Refuse(parley.TooLarge, "the content has %d bytes; at most %d are sent from here",
			len(f.Content), maxComposed)
	}
	if body := []byte(strings.TrimSpace(f.Content)); len(body) > 0 && jsonx.Valid(body, 0) == nil {
		s.JSON = body
	} else if f.Content != "" {
		s.Text = &f.Content
	}
	if s.Kind == parley.Request && f.Wait > 0 {
		s.Timeout = (time.Duration(f.Wait) * time.Second).String()
	}
	return f, s, nil
}

// send sends the message of the form, once, and leads to its outcome.
func (c *Console) send(q *request) error {
	f, s, err := composed(q.r.PostForm)
	var r admin.Receipt
	if err == nil {
		// A browser that submits the form again breaks its first request off. The message goes on: the second one gets
		// its answer.
		ctx, stop := context.WithTimeout(context.WithoutCancel(q.r.Context()), (longestWait+defaultWait)*time.Second)
		defer stop()
		deliver := c.admin.Send
		if s.Timeout != "" {
			deliver = c.admin.Ask
		}
		r, err = deliver(ctx, q.by, s)
	}
	if err != nil {
		c.notSent(q, f, s.IdempotencyKey, err)
		return nil
	}
	link := workbenchPath + "?sent=" + r.ID.String() + "&wait=" + strconv.Itoa(f.Wait)
	if r.Replayed {
		link += "&again=1"
	} else {
		sentOf(q).add(SentRow{When: Moment{q.now, q.now}, To: f.To, What: sentWords(f), Link: link,
			Bad: r.Reply != nil && r.Reply.Kind == parley.Failure})
	}
	http.Redirect(q.w, q.r, link+"#sent", http.StatusSeeOther)
	return nil
}

// sentWords say in the history what a message was.
func sentWords(f composition) string {
	return strings.TrimSpace(cut(f.Kind, 16) + " " + cut(f.Skill, 64))
}

// notSent answers a refused form with the same form. After a refusal the form has a new key, so that the corrected
// message is sent. If the hub may have recorded the message, the key stays.
func (c *Console) notSent(q *request, f composition, key string, err error) {
	v := c.bench(q)
	p, status := problemOf(err)
	v.Compose.Problem = p
	if p.Code == parley.Internal || p.Code == parley.Cancelled || p.Code == parley.TimedOut {
		v.Compose.Key = key
	}
	if p.Ref != "" {
		sentOf(q).add(SentRow{When: Moment{q.now, q.now}, To: cut(f.To, nameBytes), What: sentWords(f),
			Link: inspectLink(p.Ref), Bad: true})
		v.Compose.History = sentOf(q).rows(q.now)
	}
	f.Kind = cmp.Or(f.Kind, parley.Request.String())
	c.compose(q, &v.Compose, f)
	c.render(q.w, q.r, q, "workbench", "Workbench", v, status)
}

// An Outcome is a message that was sent from here, and its result.
type Outcome struct {
	*Chosen
	Answer  *Chosen // the reply; nil: none yet
	Again   bool    // the form was sent before: nothing new was sent
	Class   string  // of the verdict
	Icon    string
	Verdict string
	Advice  string
	Last    *admin.Attempt
	Status  string // of the last attempt, and how long it took
	Wait    int    // seconds, of the form
	Command string // that sends the same
	Curl    string
}

// outcome reads the result of a message that this token sent from the record. For any other message the page leads to
// the conversation: a link must not prepare a form with the content of another token.
func (c *Console) outcome(q *request, id string) (*Outcome, error) {
	r, err := c.admin.Message(q.r.Context(), q.by, id, true)
	if err != nil {
		return nil, err
	}
	m := r.Content
	if m == nil || m.Origin.Protocol != "api" || m.Origin.Peer != q.by.Name {
		return nil, &redirect{messageLink(r.ID)}
	}
	v := &Outcome{Again: q.r.URL.Query().Get("again") != "", Wait: defaultWait}
	if n, err := strconv.ParseUint(q.r.URL.Query().Get("wait"), 10, 16); err == nil && n <= longestWait {
		v.Wait = int(n)
	}
	if v.Chosen, err = c.chosen(q.r.Context(), q, &r); err != nil {
		return nil, err
	}
	if v.Reply != nil {
		reply, err := c.admin.Message(q.r.Context(), q.by, v.Reply.ID.String(), true)
		if err != nil {
			return nil, err
		}
		if v.Answer, err = c.chosen(q.r.Context(), q, &reply); err != nil {
			return nil, err
		}
	}
	for _, list := range r.Course.Attempts {
		if len(list) > 0 {
			v.Last = &list[len(list)-1]
		}
	}
	if v.Last != nil {
		v.Status = strings.Trim(cut(v.Last.Status, 128)+", "+took(time.Duration(v.Last.Took)), ", ")
	}
	v.verdict()
	v.Command, v.Curl = v.command(), v.curl(q)
	return v, nil
}

// verdict sets the headline.
func (v *Outcome) verdict() {
	v.Class, v.Icon = "", "dot"
	v.Verdict = "Recorded, to " + cut(v.To, nameBytes)
	switch {
	case v.Answer != nil && v.Answer.Error == nil:
		v.Class, v.Icon = "okverdict", "check"
		v.Verdict = "Answered in " + cmp.Or(took(time.Duration(v.Summary.Answer)), "0 ms") + " by " +
			cut(v.Answer.From, nameBytes)
		return
	case v.Answer != nil:
		v.failed(v.Answer.From, &v.Answer.Recorded)
		return
	case v.Error != nil:
		v.failed(v.To, &v.Recorded)
		return
	}
	for i := range v.Deliveries {
		d := &v.Deliveries[i]
		s := signOf(d.State)
		v.Icon = s.Icon
		v.Verdict = "Recorded; to " + cut(d.To, nameBytes) + ": " + s.Word
		if d.Error != nil {
			v.Class, v.Icon = "refusedbox", "x"
			v.Verdict += ", " + admin.Cause(d.To, &admin.Problem{Code: d.Error.Code, Text: d.Error.Text,
				Source: d.Error.Source, Reason: d.Error.Reason, Detail: d.Error.Detail}, "")
			v.Advice = v.Chosen.Advice[d.To]
		}
	}
}

// failed sets the headline of a message that ended with an error.
func (v *Outcome) failed(agent string, r *admin.Recorded) {
	v.Class, v.Icon = "refusedbox", "x"
	v.Verdict = admin.Cause(agent, &admin.Problem{Code: r.Error.Code, Text: r.Error.Text, Source: r.Error.Source,
		Reason: r.Error.Reason, Detail: r.Error.Detail}, "")
	v.Advice = r.Advice[""]
}

// content is the content as the form has it.
func (v *Outcome) content() string {
	if v.Content == nil || len(v.Content.Parts) != 1 {
		return ""
	}
	if p := v.Content.Parts[0]; p.Text != nil {
		return *p.Text
	}
	return string(v.Content.Parts[0].JSON)
}

// form is the form that sent it.
func (v *Outcome) form() composition {
	return composition{As: v.From, To: v.To, Kind: v.Kind.String(), Skill: v.Skill, Content: v.content(), Wait: v.Wait}
}

// command sends the same from a shell.
func (v *Outcome) command() string {
	out := "parley send --from " + readable.ShellWord(v.From) + " --to " + readable.ShellWord(v.To)
	if v.Skill != "" {
		out += " --skill " + readable.ShellWord(v.Skill)
	}
	switch n := v.Wait; {
	case v.Kind == parley.Notice:
		out += " --kind notice"
	case n == 0:
		out += " --no-wait"
	case n != defaultWait:
		out += " --wait " + strconv.Itoa(n) + "s"
	}
	content := v.content()
	if v.Content != nil && len(v.Content.Parts) == 1 && v.Content.Parts[0].Text != nil &&
		jsonx.Valid([]byte(content), 0) == nil {
		out += " --text"
	}
	return withContent(out, content)
}

// curl is the curl command that sends the same.
func (v *Outcome) curl(q *request) string {
	s := admin.Send{From: v.From, To: v.To, Kind: v.Kind, Skill: v.Skill}
	if v.Content != nil && len(v.Content.Parts) == 1 {
		s.Text, s.JSON = v.Content.Parts[0].Text, v.Content.Parts[0].JSON
	}
	if v.Kind == parley.Request && v.Wait > 0 {
		s.Timeout = (time.Duration(v.Wait) * time.Second).String()
	}
	return curlOf(q, s)
}

// curlOf is a message as a curl command for the hub as this browser reaches it; "" if there is none.
func curlOf(q *request, s admin.Send) string {
	base := "http://"
	if secure(q.r) {
		base = "https://"
	}
	text, err := (&admin.Client{Base: base + q.r.Host}).Curl(s, s.Timeout != "")
	if err != nil {
		return ""
	}
	return text
}

// A SentRow is one message in the history. Its content is in the record only.
type SentRow struct {
	When     Moment
	To, What string
	Link     string
	Bad      bool
}

// sentLog is what a session sent, in memory. It ends with the session.
type sentLog struct {
	mu   sync.Mutex
	sent []SentRow // the newest last
}

// sentKey is the key of the history in a session's memory.
type sentKey struct{}

// sentOf gives the history of a session.
func sentOf(q *request) *sentLog {
	v, _ := q.session.Memory.LoadOrStore(sentKey{}, &sentLog{})
	l, _ := v.(*sentLog) // nothing else has this key
	return l
}

func (l *sentLog) add(r SentRow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.sent) == sentKept {
		l.sent = slices.Delete(l.sent, 0, 1)
	}
	l.sent = append(l.sent, r)
}

// rows gives the history, the newest first.
func (l *sentLog) rows(now time.Time) []SentRow {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Clone(l.sent)
	slices.Reverse(out)
	for i := range out {
		out[i].When.Now = now
	}
	return out
}
