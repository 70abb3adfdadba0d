package console

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

// This file reads the filters of lists from a URL, and shows them: as chips, menus and links that lead to the same list
// with another filter.

// A parameter is a filter of a list, by its name in the URL.
type parameter struct {
	name string
	read func(f *admin.TimelineFilter, value string, now time.Time) error
}

// parameters are those of Messages, in the order of their chips.
var parameters = []parameter{
	{"text", func(f *admin.TimelineFilter, v string, _ time.Time) error { f.Text = v; return nil }},
	{"show", func(f *admin.TimelineFilter, v string, _ time.Time) error { f.Show = admin.Show(v); return nil }},
	{"agent", func(f *admin.TimelineFilter, v string, _ time.Time) error { f.Agent = v; return nil }},
	{"from", func(f *admin.TimelineFilter, v string, _ time.Time) error { f.From = v; return nil }},
	{"to", func(f *admin.TimelineFilter, v string, _ time.Time) error { f.To = v; return nil }},
	{"protocol", func(f *admin.TimelineFilter, v string, _ time.Time) error { f.Protocol = v; return nil }},
	{"via", func(f *admin.TimelineFilter, v string, _ time.Time) error { f.Via = v; return nil }},
	{"proof", func(f *admin.TimelineFilter, v string, _ time.Time) error { return f.Proof.UnmarshalText([]byte(v)) }},
	{"kind", func(f *admin.TimelineFilter, v string, _ time.Time) error { return f.Kind.UnmarshalText([]byte(v)) }},
	{"state", func(f *admin.TimelineFilter, v string, _ time.Time) error { return f.State.UnmarshalText([]byte(v)) }},
	{"slow", func(f *admin.TimelineFilter, v string, _ time.Time) (err error) {
		f.Slow, err = time.ParseDuration(v)
		return err
	}},
	{"trace", func(f *admin.TimelineFilter, v string, _ time.Time) error { f.Trace = v; return nil }},
	{"since", func(f *admin.TimelineFilter, v string, now time.Time) (err error) {
		f.Since, err = momentOf(v, now)
		return err
	}},
	{"until", func(f *admin.TimelineFilter, v string, now time.Time) (err error) {
		f.Until, err = momentOf(v, now)
		return err
	}},
}

// maxParameter bounds a parameter in a URL, in bytes.
const maxParameter = 1024

// known gives the parameters of a URL that have one of these names and a value.
func known(q url.Values, names ...string) (url.Values, error) {
	out := url.Values{}
	for _, name := range names {
		v := strings.TrimSpace(q.Get(name))
		if len(v) > maxParameter {
			return nil, parley.Refuse(parley.Malformed, "the parameter %s has more than %d bytes", name, maxParameter)
		}
		if v != "" {
			out.Set(name, v)
		}
	}
	return out, nil
}

// timelineFilter reads the filter of Messages.
func timelineFilter(u url.Values, now time.Time) (f admin.TimelineFilter, q url.Values, err error) {
	names := []string{"before", "m"}
	for _, p := range parameters {
		names = append(names, p.name)
	}
	if q, err = known(u, names...); err != nil {
		return f, q, err
	}
	for _, p := range parameters {
		v := q.Get(p.name)
		if v == "" {
			continue
		}
		if err := p.read(&f, v, now); err != nil {
			return f, q, parley.Refuse(parley.Malformed, "the filter %s=%.40q has a wrong value: %s", p.name, v, err)
		}
	}
	f.Before, f.Limit, f.Now = q.Get("before"), pageRows, now
	return f, q, nil
}

// momentOf reads a time: as in RFC 3339, or as how long ago it was: "24h", "7d".
func momentOf(s string, now time.Time) (time.Time, error) {
	if d, ok := lately(s); ok {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, fmt.Errorf("want a time such as 2026-11-20T15:04:05Z, or how long ago, such as 24h or 7d")
	}
	return t, nil
}

func lately(s string) (time.Duration, bool) {
	if n, ok := strings.CutSuffix(s, "d"); ok {
		days, err := strconv.ParseUint(n, 10, 16)
		return time.Duration(days) * 24 * time.Hour, err == nil && days > 0
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d > 0
}

// spans are the choices of the menu Time.
var spans = [][2]string{{"15m", "last 15 minutes"}, {"1h", "last hour"}, {"24h", "last 24 hours"},
	{"7d", "last 7 days"}}

// filterWords says what a filter is, for its chip.
func filterWords(name, value string) string {
	switch name {
	case "since", "until":
		for _, s := range spans {
			if name == "since" && value == s[0] {
				return s[1]
			}
		}
		if t, err := time.Parse(time.RFC3339Nano, value); err == nil {
			value = t.UTC().Format("2 Jan 2006 15:04:05")
		} else if name == "since" {
			return "last " + value
		} else {
			value += " ago"
		}
	case "protocol":
		return "by " + protocolName(value)
	case "via":
		return "out by " + protocolName(value)
	case "slow":
		return "slower than " + value
	case "reason":
		if value == string(admin.NoReason) {
			return "without a reason"
		}
	case "open":
		return "open"
	case "failed":
		return "with failures"
	case "text":
		return cut(value, 40)
	}
	return name + ": " + cut(value, 60)
}

// A Chip is a filter that is set, and the address of the list without it.
type Chip struct{ Label, Link string }

// A Choice is one value of a filter.
type Choice struct {
	Label, Count, Link string
	On                 bool
	Name               string // of the value; "" for none
	Key                bool   // the key f leads there
}

// A Menu is a filter with its values. With Typed any value may be written.
type Menu struct {
	Name, Label string
	Typed       string // the value, where it can be written
	Writes      bool
	Choices     []Choice
	Suggest     []string
}

// A Pair is a parameter that a form keeps.
type Pair struct{ Name, Value string }

// Filters are the controls above a list.
type Filters struct {
	Search  *Search // nil: there is none
	Text    string
	Q       url.Values
	Show    []Choice
	Chips   []Chip
	Menus   []Menu
	NoWords bool
}

// Search is the field above a list.
type Search struct {
	Name, Label, Hint string
	Action            string // address of the list; "": that of the page
}

// Keep gives the other parameters of a form that sets these: the list begins at its first page.
func (f *Filters) Keep(names ...string) (out []Pair) { return keep(f.Q, names...) }

func keep(q url.Values, names ...string) (out []Pair) {
	for _, k := range slices.Sorted(maps.Keys(q)) {
		if !slices.Contains(names, k) && k != "before" && k != "m" {
			out = append(out, Pair{k, q.Get(k)})
		}
	}
	return out
}

// hiding are the filters that hide rows, each with the number of rows without it.
func hiding(query url.Values, names []string, words func(name, value string) string,
	count func(without url.Values) (string, error)) (out []Choice, err error) {
	for _, name := range names {
		v := query.Get(name)
		if v == "" {
			continue
		}
		without := maps.Clone(query)
		without.Del(name)
		n, err := count(without)
		if err != nil {
			return nil, err
		}
		out = append(out, Choice{Name: name, Label: words(name, v), Count: n, Link: with(query, name, "")})
	}
	return out, nil
}

// chips are those of the filters that have no other place above the list.
func chips(q url.Values, names ...string) (out []Chip) {
	for _, name := range names {
		if v := q.Get(name); v != "" {
			out = append(out, Chip{filterWords(name, v), with(q, name, "")})
		}
	}
	return out
}

// menu makes a menu of values; a value that is set already is not set again.
func menu(q url.Values, name, label string, values ...[2]string) Menu {
	m := Menu{Name: name, Label: label}
	for _, v := range values {
		m.Choices = append(m.Choices, Choice{Label: v[1], Link: with(q, name, v[0]), On: q.Get(name) == v[0], Name: v[0]})
	}
	return m
}

// agentMenu is the menu whose value is the name of an agent.
func agentMenu(q url.Values, name, label string, suggest []string) Menu {
	return Menu{Name: name, Label: label, Writes: true, Typed: q.Get(name), Suggest: suggest}
}

// shows are the choices of Show in the order of their links.
var shows = []admin.Show{"", admin.ShowFailed, admin.ShowRefused, admin.ShowWaiting, admin.ShowSlow}

// countWords writes a number that ends at a bound: "10,000+".
func countWords(n admin.Count) string {
	if n.More {
		return grouped(int64(n.Number)) + "+"
	}
	return grouped(int64(n.Number))
}

// showChoices are the links All, Failed, Refused, Waiting and Slow.
func showChoices(q url.Values, n *admin.Counts) (out []Choice) {
	by := map[admin.Show]admin.Count{}
	if n != nil {
		by = map[admin.Show]admin.Count{admin.ShowFailed: n.Failed, admin.ShowRefused: n.Refused,
			admin.ShowWaiting: n.Waiting, admin.ShowSlow: n.Slow}
	}
	for _, s := range shows {
		v := Choice{Label: "All", Link: with(q, "show", string(s)), On: q.Get("show") == string(s), Name: string(s)}
		v.Key = keyTo(s == admin.ShowFailed, s == "", q.Get("show") == string(admin.ShowFailed))
		if s != "" {
			v.Label = strings.ToUpper(string(s[:1])) + string(s[1:])
		}
		if c, ok := by[s]; ok && c.Number > 0 {
			v.Count = countWords(c)
		}
		out = append(out, v)
	}
	return out
}

// keyTo reports whether the key f leads to a link: to that of failures, and from there to all.
func keyTo(failed, all, on bool) bool { return failed && !on || all && on }

// protocolChoices are the protocols of menus.
func protocolChoices() (out [][2]string) {
	for _, p := range []string{"samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp", "go", "api"} {
		out = append(out, [2]string{p, protocolName(p)})
	}
	return out
}

var proofChoices = [][2]string{{index.ProvedSigned.String(), "signed"}, {index.ProvedSession.String(), "session"},
	{index.ProvedNothing.String(), "unsigned"}, {index.ProvedRefused.String(), "refused"}}

func kindChoices() (out [][2]string) {
	for k := parley.Request; k <= parley.Input; k++ {
		out = append(out, [2]string{k.String(), k.String()})
	}
	return out
}
