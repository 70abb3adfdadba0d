package console

import (
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// This file makes the screen Workbench and its left side, Inspect. compose.go has the right side.

// workbenchPath is the address of the screen.
const workbenchPath = Base + "workbench"

// spoken are the protocols, in the order of the documentation.
var spoken = []string{"samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp"}

// maxInspected bounds the fields that the page shows of one message.
const maxInspected = 200

// Workbench is the content of the screen.
type Workbench struct {
	Inspect InspectForm
	Compose Compose
}

// InspectForm is the left side.
type InspectForm struct {
	Pasted    Echo
	At        string // as typed
	Protocol  string
	Protocols []string
	Problem   *admin.Problem // why nothing is explained
	Found     *Explained
}

// Explained is an inspected message. Texts are cut.
type Explained struct {
	admin.Inspected
	Title   string
	Class   string // of the verdict
	Icon    string
	Judged  Moment
	Steps   []SignedStep
	Differs []Differing
	More    int  // fields that are left out
	Cut     bool // a text is not shown whole
}

// A SignedStep is one step on the way to the signed bytes, with the difference marked.
type SignedStep struct {
	Step string
	Text template.HTML
}

// A Differing is a part of the signed bytes that differs from the sent bytes.
type Differing struct {
	Part         string
	Signed, Sent template.HTML
}

// workbench is the screen Workbench. It sends nothing.
func (c *Console) workbench(q *request) (any, error) {
	query := q.r.URL.Query()
	v := c.bench(q)
	if name := query.Get("inspect"); name != "" {
		found, err := c.admin.Inspect(q.r.Context(), q.by, admin.Inspection{ID: strings.TrimSpace(name)})
		if err != nil {
			return nil, err
		}
		v.Inspect.Pasted, v.Inspect.Found = echo(name), explained(&found, q.now)
	}
	f := composition{As: query.Get("as"), To: query.Get("to"), Skill: query.Get("skill")}
	var err error
	if id := query.Get("sent"); id != "" {
		v.Compose.Sent, err = c.outcome(q, id)
		if err != nil {
			return nil, err
		}
		f = v.Compose.Sent.form()
	}
	c.compose(q, &v.Compose, f)
	return v, nil
}

// bench is the empty workbench.
func (c *Console) bench(q *request) *Workbench {
	return &Workbench{Inspect: InspectForm{Protocols: spoken},
		Compose: Compose{History: sentOf(q).rows(q.now)}}
}

// inspect explains the pasted message, on the page that answers the form. Nothing of it is sent or kept.
func (c *Console) inspect(q *request) error {
	v := c.bench(q)
	f := &v.Inspect
	input := pasted(q)
	f.Pasted, f.At, f.Protocol = echo(string(input)), q.r.PostForm.Get("at"), q.r.PostForm.Get("protocol")
	c.compose(q, &v.Compose, composition{})
	at, err := judgedAt(f.At, q.now)
	var found admin.Inspected
	if err == nil {
		found, err = c.admin.Inspect(q.r.Context(), q.by, admin.Inspection{Input: input, At: at,
			Protocol: f.Protocol})
	}
	status := http.StatusOK
	if err != nil {
		f.Problem, status = problemOf(err)
	} else {
		f.Found = explained(&found, q.now)
	}
	c.render(q.w, q.r, q, "workbench", "Workbench", v, status)
	return nil
}

// pasted is the message in the form.
func pasted(q *request) []byte {
	// Browsers send every line end of a textarea as CRLF. A body that was signed has LF far more often.
	return []byte(strings.ReplaceAll(q.r.PostForm.Get("input"), "\r\n", "\n"))
}

// problemOf is an error as the page shows it, and the status of the page.
func problemOf(err error) (*admin.Problem, int) {
	e := parley.AsError(err)
	p := admin.ProblemOf(e)
	return &p, admin.StatusOf(e)
}

// judgedAt reads the time for which freshness is judged; "": the hub's.
func judgedAt(s string, now time.Time) (time.Time, error) {
	if s = strings.TrimSpace(s); s == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.DateTime, s); err == nil {
		return t, nil
	}
	t, err := momentOf(s, now)
	if err != nil {
		return t, parley.Refuse(parley.Malformed, "“judged at” is %.40q: %s", s, err)
	}
	return t, nil
}

// Echo is a text of a submitted form. The field shows it again if the browser would send it back unchanged; otherwise
// it is shown below the field.
type Echo struct {
	Field string
	Below string // the first 64 KiB
	Size  int
}

func echo(s string) Echo {
	e := Echo{Field: s, Size: len(s)}
	if len(s) > shownContent || !utf8.ValidString(s) || strings.ContainsFunc(s, hidden) {
		e.Field, e.Below = "", strings.ToValidUTF8(s[:min(len(s), shownContent)], "\ufffd")
	}
	return e
}

// Cut reports whether Below is not all of it.
func (e Echo) Cut() bool { return e.Size > shownContent }

// explained makes the view of an inspected message.
func explained(f *admin.Inspected, now time.Time) *Explained {
	v := &Explained{Inspected: *f, Judged: Moment{f.At, now}}
	left := shownContent
	short := func(s string) string {
		out := s
		if len(s) > left {
			out, v.Cut = strings.ToValidUTF8(s[:left], "")+"…", true
		}
		left -= min(left, len(s))
		return out
	}
	v.Sentence, v.Fix = short(f.Sentence), short(f.Fix)
	v.Checks, v.Fields = nil, nil
	for _, k := range f.Checks {
		k.Detail = short(k.Detail)
		v.Checks = append(v.Checks, k)
	}
	for _, s := range f.Signed {
		v.Steps = append(v.Steps, SignedStep{s.Step, marked(short(s.Text), f.Differs)})
	}
	for _, d := range f.Differs {
		signed, sent := short(d.Signed), short(d.Sent)
		v.Differs = append(v.Differs, Differing{d.Part, differing(signed, sent), differing(sent, signed)})
	}
	v.More = max(0, len(f.Fields)-maxInspected)
	for _, k := range f.Fields[:len(f.Fields)-v.More] {
		k.Name, k.Value = short(k.Name), short(k.Value)
		v.Fields = append(v.Fields, k)
	}
	v.verdict()
	return v
}

// verdict sets the headline and its sign.
func (v *Explained) verdict() {
	name := strings.TrimSpace(protocolName(v.Protocol) + " " + v.Version)
	v.Title, v.Icon = name+", "+v.Form, "dot"
	for _, k := range v.Checks {
		if k.State == admin.CheckFailed {
			v.Title, v.Class, v.Icon = name+", refused at the "+k.Name, "refusedbox", "refused"
			return
		}
	}
	switch {
	case v.Refusal != nil:
		v.Title, v.Class, v.Icon = name+", refused at the "+v.Refusal.Step, "refusedbox", "refused"
	case v.Message != nil && v.Message.Error != nil:
		v.Title, v.Class, v.Icon = name+", "+v.Message.Kind.String()+": "+string(v.Message.Error.Code), "refusedbox", "x"
	case v.Verified:
		v.Title, v.Class, v.Icon = name+", proved", "okverdict", "signed"
	}
}

// marked escapes the text of a step. In a line of the signature base it marks the piece that was sent
// in another form than signed.
func marked(text string, list []admin.Difference) template.HTML {
	var b strings.Builder
	for line := range strings.SplitAfterSeq(text, "\n") {
		b.WriteString(string(markedLine(line, list)))
	}
	return template.HTML(b.String())
}

func markedLine(line string, list []admin.Difference) template.HTML {
	e := template.HTMLEscapeString
	for _, d := range list {
		name := `"` + d.Part + `": `
		value, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), name)
		if !ok || value != d.Sent && value != d.Signed {
			continue
		}
		other, note := d.Signed, "← signed: "+d.Signed
		if value == d.Signed {
			other, note = d.Sent, "← sent: "+d.Sent
		} else if _, more, _ := difference(d.Sent, d.Signed); len(more)+len(d.Signed) == len(d.Sent) {
			note = "← holds without " + more
		}
		return template.HTML(e(name)) + differing(value, other) +
			template.HTML(`     <span class="c">`+e(cut(note, nameBytes))+"</span>"+line[len(name)+len(value):])
	}
	return template.HTML(e(line))
}

// differing escapes a text, and marks its piece that the other text lacks.
func differing(s, other string) template.HTML {
	e := template.HTMLEscapeString
	before, piece, after := difference(s, other)
	if piece == "" {
		return template.HTML(e(s))
	}
	return template.HTML(e(before) + `<span class="x">` + e(piece) + `</span>` + e(after))
}

// difference divides s: piece is the part that other lacks. The ends are compared first, since a proxy changes the
// beginning of a path.
func difference(s, other string) (before, piece, after string) {
	n := 0
	for n < min(len(s), len(other)) && s[len(s)-1-n] == other[len(other)-1-n] {
		n++
	}
	for n > 0 && !utf8.RuneStart(s[len(s)-n]) {
		n--
	}
	s, other, after = s[:len(s)-n], other[:len(other)-n], s[len(s)-n:]
	n = 0
	for n < min(len(s), len(other)) && s[n] == other[n] {
		n++
	}
	for n > 0 && n < len(s) && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n], s[n:], after
}

// inspectLink is the address at which a recorded message or a refusal is explained.
func inspectLink(name string) string {
	return workbenchPath + "?" + url.Values{"inspect": {name}}.Encode()
}
