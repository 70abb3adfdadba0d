package console

import (
	"bytes"
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
)

// functions are those of the templates.
var functions = template.FuncMap{
	"icon": icon, "mid": mid, "cut": cut, "protocol": protocolName, "size": size, "took": took, "ago": ago,
	"proof": proofOf, "sign": signOf, "query": with, "dict": dict, "list": func(v ...any) []any { return v }, "may": may,
	"advice": advice, "grouped": func(n int) string { return grouped(int64(n)) },
	"grouped64": func(n uint64) string { return grouped(int64(n)) },
	"sizeof":    func(n int) string { return size(int64(n)) },
	"cut8":      func(s string) string { return s[:min(8, len(s))] },
	"spaced":    func(s any) string { return strings.ReplaceAll(fmt.Sprint(s), "_", " ") }, // no_reader
	"tail":      tail, "moment": moment, "mlink": messageLink, "statesign": stateSign,
	"short8": short8, "plural": plural, "role": role, "size64": func(n uint64) string { return size(int64(n)) },
}

// icon is a sign of parts.html.
func icon(name string) template.HTML {
	return template.HTML(`<svg class="i" viewBox="0 0 14 14" aria-hidden="true"><use href="#i-` +
		template.HTMLEscapeString(name) + `"/></svg>`)
}

// A Moment is a time as pages show it: by the hub's clock, in UTC, beside its age at Now.
type Moment struct{ At, Now time.Time }

// IsZero reports whether there is no time.
func (m Moment) IsZero() bool { return m.At.IsZero() }

// Clock is the time of day: 14:31:25.902.
func (m Moment) Clock() string { return m.At.UTC().Format("15:04:05.000") }

// Seconds is the time of day without milliseconds.
func (m Moment) Seconds() string { return m.At.UTC().Format("15:04:05") }

// ISO is the value of datetime.
func (m Moment) ISO() string { return m.At.UTC().Format("2006-01-02T15:04:05.000Z") }

// Date is the day: 22 Nov 2026.
func (m Moment) Date() string { return m.At.UTC().Format("2 Jan 2006") }

// Ago is the age: "2 s", "38 min", "3 h", "12 days".
func (m Moment) Ago() string { return ago(m.Now.Sub(m.At)) }

// Age is the age as a row shows it: "2 s", "4 min", "3 h". The page's script counts on in the same words.
func (m Moment) Age() string {
	d := m.Now.Sub(m.At)
	switch {
	case d >= time.Minute && d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d >= time.Hour && d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return ago(d)
}

// ago writes a duration in its largest unit.
func ago(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 5*time.Minute:
		return fmt.Sprintf("%d min %d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 5*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

// took writes how long something took: "412 ms", "5.2 s".
func took(d time.Duration) string {
	switch {
	case d <= 0:
		return ""
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return ago(d)
}

// size writes a number of bytes: "1,204 B", "3.1 MB".
func size(n int64) string {
	switch {
	case n < 10_000:
		return grouped(n) + " B"
	case n < 1_000_000:
		return fmt.Sprintf("%.1f KB", float64(n)/1e3)
	case n < 1_000_000_000:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%.1f GB", float64(n)/1e9)
}

// grouped writes a number with commas.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// plural writes a number and its noun: "1 message", "21 messages".
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return grouped(int64(n)) + " " + many
}

// protocolNames are the protocols as people write them.
var protocolNames = map[string]string{"samvad": "SAMVAD", "uagents": "uAgents", "a2e": "A2E", "agh": "AGH",
	"asp": "ASP", "a2a": "A2A", "mcp": "MCP", "go": "Go", "api": "API"}

func protocolName(p string) string {
	if name, ok := protocolNames[p]; ok {
		return name
	}
	return p
}

// A Proof is how sure the hub is of a sender: a word, and the sign of the same name.
type Proof string

func proofOf(a parley.Assurance) Proof { return Proof(a.String()) }

// A Sign is the state of a delivery: its class, its icon and its word.
type Sign struct{ Class, Icon, Word string }

// signs of delivery states: colour is for exceptions.
var signs = map[parley.DeliveryState]Sign{
	parley.Waiting:    {"waiting", "clock", "waiting"},
	parley.Delivering: {"quiet", "fwd", "delivering"},
	parley.Delivered:  {"quiet", "check", "delivered"},
	parley.Answered:   {"quiet", "check", "answered"},
	parley.Dead:       {"bad", "x", "dead"},
	parley.Dropped:    {"bad", "x", "dropped"},
	parley.Expired:    {"bad", "x", "expired"},
	parley.Abandoned:  {"bad", "x", "abandoned"},
}

func signOf(s parley.DeliveryState) Sign { return signs[s] }

// nameBytes bounds a name in a page.
const nameBytes = 512

// cut shortens a text of a guest to at most n bytes, and says so.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "… (" + size(int64(len(s))) + ")"
}

// mid writes a name so that a narrow column cuts its middle: copying gives all of it.
func mid(s string) template.HTML {
	s = cut(s, nameBytes)
	e := template.HTMLEscapeString
	if utf8.RuneCountInString(s) <= 28 {
		return template.HTML(`<span class="short">` + e(s) + `</span>`)
	}
	at := len(s)
	for range 10 {
		_, n := utf8.DecodeLastRuneInString(s[:at])
		at -= n
	}
	return template.HTML(`<span class="mid" title="` + e(s) + `"><span>` + e(s[:at]) + `</span><span>` + e(s[at:]) +
		`</span></span>`)
}

// short8 is the beginning of an id, as lists show it.
func short8(id fmt.Stringer) string {
	s := id.String()
	return s[:min(8, len(s))]
}

// may reports whether an actor has a role: for a button, which is disabled otherwise.
func may(by *admin.Actor, role string) bool { return by != nil && by.May(admin.Role(role)) }

// dict makes the arguments of a template: pairs of a name and a value.
func dict(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m[fmt.Sprint(pairs[i])] = pairs[i+1]
	}
	return m
}

// with sets a parameter of a query; "" removes it. A changed filter begins at the first page.
func with(q url.Values, pairs ...string) string {
	out := url.Values{}
	for k, v := range q {
		out[k] = v
	}
	for _, k := range []string{"before", "cursor", "m", "page"} {
		out.Del(k)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			out.Del(pairs[i])
		} else {
			out.Set(pairs[i], pairs[i+1])
		}
	}
	return "?" + out.Encode()
}

// visible escapes control characters and direction marks in a whole page: \u202e.
func visible(page []byte) []byte {
	if !bytes.ContainsFunc(page, hidden) {
		return page
	}
	var b bytes.Buffer
	for _, r := range string(page) {
		if hidden(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.Bytes()
}

// hidden reports whether a character changes what others look like, or has no look of its own.
func hidden(r rune) bool {
	if r >= ' ' && r < 0x7f { // most of a page
		return false
	}
	switch {
	case r == '\n', r == '\t', r == '\r':
		return false
	case r == 0x061c, r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff:
		return r != 0x200d // joins emoji
	}
	return unicode.Is(unicode.Cc, r)
}
