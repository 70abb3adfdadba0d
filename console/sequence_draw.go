package console

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/parley-hub/parley"
)

// The measures of the diagram, in pixels of the page.
const (
	gutterEnd  = 82.0 // of the times
	gutter     = 88.0
	hubWidth   = 336.0
	edge       = 6.0 // between the hub and the lanes beside it
	headHeight = 42.0
	firstRow   = 68.0
	rowHeight  = 48.0
	wireAt     = 33.0 // of a row
	trackStep  = 26.0 // between attempts
	turnStep   = 16.0 // from a wire to its return
	noteHeight = 16.0
	pillHeight = 32.0
	beadStep   = 25.0
	pageWidth  = 950.0
	leastWidth = 900.0 // so that the results of attempts have room
	minPitch   = 90.0
	maxPitch   = 160.0
)

// svg writes markup. Only its methods write texts, and they escape and cut them.
type svg struct {
	strings.Builder
	s     *Sequence
	x     []float64 // of the lanes
	hub   float64   // left side of the hub
	width float64
	pitch float64 // between lanes
}

// px writes a coordinate, to a tenth of a pixel.
func px(f float64) string {
	n := int(math.Round(f * 10))
	if n%10 == 0 {
		return strconv.Itoa(n / 10)
	}
	return strconv.FormatFloat(float64(n)/10, 'f', 1, 64)
}

// put writes an element: a name, attributes in pairs, and whether it is closed at once.
func (d *svg) put(name string, attributes ...string) {
	d.open(name, attributes...)
	d.WriteString("</" + name + ">\n")
}

func (d *svg) open(name string, attributes ...string) {
	d.WriteByte('<')
	d.WriteString(name)
	for i := 0; i+1 < len(attributes); i += 2 {
		d.WriteByte(' ')
		d.WriteString(attributes[i])
		d.WriteString(`="`)
		d.WriteString(escape(attributes[i+1]))
		d.WriteByte('"')
	}
	d.WriteByte('>')
}

func (d *svg) shut(name string) { d.WriteString("</" + name + ">\n") }

// text writes a text that has at most width pixels.
func (d *svg) text(class string, x, y float64, anchor, s string, width float64, char float64) {
	if s = fit(s, width, char); s == "" {
		return
	}
	d.open("text", "class", class, "x", px(x), "y", px(y), "text-anchor", anchor)
	d.WriteString(escape(s))
	d.shut("text")
}

// Widths of a character in pixels, rounded up: a text may be shorter than its place, never longer.
const (
	charText  = 6.9 // 12 px, sans
	charBold  = 7.3 // 12 px, sans, 600
	charHead  = 8.0 // the same, of wide letters
	charSmall = 6.0 // 10.5 px, sans
	charMono  = 6.4 // 10.5 px, mono
)

// shownBytes bounds a text of a guest before anything looks at its characters.
const shownBytes = 1024

// plain makes one line of visible characters of a text.
func plain(s string) string {
	if len(s) > shownBytes {
		s = strings.ToValidUTF8(s[:shownBytes], "") + "…"
	}
	if safe(s, false) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			b.WriteByte(' ')
		case hidden(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// safe reports whether a text is printable ASCII, and if so wanted has nothing that markup must escape.
func safe(s string, markup bool) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c >= 0x7f:
			return false
		case markup && (c == '<' || c == '>' || c == '&' || c == '"' || c == '\''):
			return false
		}
	}
	return true
}

// cells is how many characters a text is wide: those of East Asia and pictures count as two.
func cells(s string) (n float64) {
	for _, r := range s {
		n += wide(r)
	}
	return n
}

func wide(r rune) float64 {
	switch {
	case r < 0x1100:
		return 1
	case r >= 0x1f300, r <= 0x115f, r >= 0x2e80 && r <= 0xa4cf, r >= 0xac00 && r <= 0xd7a3, r >= 0xf900 && r <= 0xfaff,
		r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60, r >= 0x20000:
		return 2
	case r == 0x200d, r >= 0xfe00 && r <= 0xfe0f, unicode.Is(unicode.Mn, r):
		return 0
	}
	return 1
}

// fit cuts a text so that it has at most width pixels.
func fit(s string, width, char float64) string {
	s = plain(s)
	room := width / char
	if cells(s) <= room {
		return s
	}
	var n float64
	for i, r := range s {
		if n += wide(r); n > room-1 {
			if i == 0 {
				return ""
			}
			return strings.TrimRight(s[:i], " ") + "…"
		}
	}
	return s
}

// escape writes a text for markup: elements, attributes.
func escape(s string) string {
	if len(s) <= shownBytes && safe(s, true) {
		return s
	}
	return template.HTMLEscapeString(plain(s))
}

// draw makes the diagram. Everything in it is escaped, so it may stand in a page as it is.
func draw(s *Sequence) template.HTML {
	d := &svg{s: s}
	d.layout()
	tops, height := d.heights()
	d.Grow(4096 + 2500*len(s.Rows))
	d.open("svg", "class", "seq", "width", px(d.width), "height", px(height), "viewBox",
		"0 0 "+px(d.width)+" "+px(height), "role", "group", "aria-label", s.Label,
		"data-lanes", strconv.Itoa(len(s.Lanes)), "data-rows", strconv.Itoa(len(s.Rows)))
	d.put("rect", "class", "hub", "x", px(d.hub), "y", "8", "width", px(hubWidth), "height", px(height-16), "rx", "8")
	for i := range s.Rows {
		if s.Rows[i].Chosen {
			d.put("rect", "class", "onbg", "x", "1", "y", px(tops[i]), "width", px(d.width-2), "height",
				px(tops[i+1]-tops[i]), "rx", "4")
		}
	}
	for _, x := range d.x {
		d.put("line", "class", "life", "x1", px(x), "y1", "56", "x2", px(x), "y2", px(height-8))
	}
	for i := range s.Work {
		d.work(&s.Work[i], tops, height)
	}
	for i := range s.Rows {
		d.row(&s.Rows[i], tops[i], tops[i+1]-tops[i])
	}
	d.heads(height)
	d.shut("svg")
	return template.HTML(d.String())
}

// layout places the lanes.
func (d *svg) layout() {
	n := float64(max(len(d.s.Lanes), 1))
	pitch := math.Floor(min(max((pageWidth-gutter-hubWidth-4*edge)/n, minPitch), maxPitch))
	d.pitch = pitch
	x := gutter
	for i := range d.s.Lanes {
		if i == d.s.Left {
			d.hub = x + edge
			x = d.hub + hubWidth + edge
		}
		d.x = append(d.x, x+pitch/2)
		x += pitch
	}
	if d.s.Left >= len(d.s.Lanes) {
		d.hub = x + edge
		x = d.hub + hubWidth + edge
	}
	d.width = max(x+edge, leastWidth)
}

// heights gives the top of each row, and last the end of all.
func (d *svg) heights() (tops []float64, height float64) {
	y := firstRow
	tops = make([]float64, 0, len(d.s.Rows)+1)
	for i := range d.s.Rows {
		tops = append(tops, y)
		y += d.height(&d.s.Rows[i])
	}
	return append(tops, y), y + 12
}

func (d *svg) height(r *SequenceRow) float64 {
	if r.Kind == SilenceRow || r.Kind == GapRow {
		return pillHeight
	}
	h := rowHeight
	if list := d.tracks(r); len(list) > 0 {
		if last := list[len(list)-1].dy; last > 0 {
			h += last
			if len(list) > 1 || len(r.Wires[0].Attempts) > 0 && list[0].ring > 0 {
				h += 6
			}
		}
	}
	if r.Text != "" {
		h += noteHeight
	}
	return h
}

// A track is one line from the hub to a recipient.
type track struct {
	wire   *Wire
	to     float64
	dy     float64 // below the wire of the row
	ring   int     // number of the attempt; 0: a bead
	label  string
	pause  string
	failed bool
	next   bool // an attempt that is still to be made
	open   bool // an attempt without an outcome
	last   bool // of its wire
}

// tracks are the lines of a row, from above. One line that needs no number is the wire itself.
func (d *svg) tracks(r *SequenceRow) (out []track) {
	single := len(r.Wires) == 1
	for i := range r.Wires {
		w := &r.Wires[i]
		first := len(out)
		if w.Untold == "" {
			out = append(out, d.tracksOf(w, single)...)
		}
		if len(out) > first {
			out[len(out)-1].last = true
		}
	}
	from, known := d.from(r)
	for i := range out {
		out[i].dy = float64(i) * trackStep
	}
	if len(out) == 0 {
		return nil
	}
	right := from > d.hub
	turned := known && (out[0].to > d.hub) == right || out[0].wire.Own
	if turned && len(out) == 1 && out[0].ring == 0 {
		out[0].dy = turnStep
	} else if turned {
		for i := range out {
			out[i].dy += trackStep
		}
	}
	return out
}

func (d *svg) tracksOf(w *Wire, single bool) (out []track) {
	to := d.x[w.To]
	if len(w.Attempts) == 1 && w.Next == "" && !w.Attempts[0].Failed && !w.Attempts[0].Open && single ||
		len(w.Attempts) == 0 && w.Next == "" {
		return []track{{wire: w, to: to}}
	}
	for i := range w.Attempts {
		a := &w.Attempts[i]
		out = append(out, track{wire: w, to: to, ring: a.Number, label: a.Result, pause: a.Pause,
			failed: a.Failed, open: a.Open})
		if a.Omitted > 0 {
			out[len(out)-1].pause = plural(a.Omitted, "attempt", "attempts") + " before it not drawn"
		}
	}
	if w.Next != "" {
		n := 1
		if k := len(w.Attempts); k > 0 {
			n = w.Attempts[k-1].Number + 1
		}
		out = append(out, track{wire: w, to: to, ring: n, label: w.Next, next: true})
	}
	return out
}

// from is where the wire of a row begins.
func (d *svg) from(r *SequenceRow) (x float64, known bool) {
	if r.From < 0 || r.From >= len(d.x) {
		return gutter + 10, false
	}
	return d.x[r.From], true
}

// work draws the bar of an agent that works on a request.
func (d *svg) work(w *Work, tops []float64, height float64) {
	x, from, to := d.x[w.Lane], tops[w.From]+wireAt, height-8
	if list := d.tracks(&d.s.Rows[w.From]); len(list) > 0 {
		for _, t := range list {
			if t.wire == &d.s.Rows[w.From].Wires[w.Wire] && t.last {
				from += t.dy
			}
		}
	}
	if w.To >= 0 {
		to = tops[w.To] + wireAt - 9
	}
	d.open("g", "class", "work", "data-lane", d.s.Lanes[w.Lane].Title)
	d.put("rect", "class", "busy", "x", px(x-3), "y", px(from), "width", "6", "height", px(max(to-from, 6)), "rx", "2")
	at, anchor := x+9, "start"
	if w.Lane < d.s.Left {
		at, anchor = x-9, "end"
	}
	d.text("busyt halo", at, from+24, anchor, w.Label, 90, charSmall)
	d.shut("g")
}

// row draws a row.
func (d *svg) row(r *SequenceRow, top, height float64) {
	if r.Kind == SilenceRow || r.Kind == GapRow {
		d.pill(r, top)
		return
	}
	y := top + wireAt
	list := d.tracks(r)
	d.begin(r, list, top, height)
	d.words(r, top)
	d.wire(r, list, y)
	d.sender(r, y)
	if r.Text != "" {
		class := "sm f-bad"
		if r.Lossy {
			class = "sm f-loss"
		}
		below := y + 24
		if len(list) > 0 {
			below += list[len(list)-1].dy
		}
		d.text(class, d.hub+12, below, "start", r.Text, d.width-d.hub-24, charSmall)
	}
	d.shut("a")
}

// pill draws a silence or a gap.
func (d *svg) pill(r *SequenceRow, top float64) {
	y := top + pillHeight/2
	mid := d.hub + hubWidth/2
	text := fit(r.Text, hubWidth-60, charSmall+.4)
	half := max(75, cells(text)*(charSmall+.4)/2+14)
	d.open("g", "data-row-kind", string(r.Kind))
	d.put("line", "class", "gap", "x1", px(gutter+4), "y1", px(y), "x2", px(d.width-8), "y2", px(y))
	d.put("rect", "class", "gapbg", "x", px(mid-half), "y", px(y-9.5), "width", px(2*half), "height", "19", "rx", "9.5")
	d.text("gapt", mid, y+3.5, "middle", text, hubWidth, charSmall)
	d.shut("g")
}

// begin opens the link of a row, with what tests and browsers count.
func (d *svg) begin(r *SequenceRow, list []track, top, height float64) {
	class := ""
	if r.Chosen {
		class = "on"
	}
	failed, lost, tried, untold := 0, 0, 0, 0
	for i := range r.Wires {
		w := &r.Wires[i]
		failed += w.Failed
		lost += w.Lost
		tried += w.Tried
		if w.Untold != "" {
			untold++
		}
	}
	d.open("a", "href", r.Href, "class", class, "aria-describedby", "d-"+r.ID, "data-row", string(r.Kind),
		"data-id", r.ID,
		"data-state", r.State, "data-proof", string(r.Proof), "data-beads", strconv.Itoa(passed(r)),
		"data-attempts", strconv.Itoa(tried), "data-failed", strconv.Itoa(failed), "data-lost", strconv.Itoa(lost),
		"data-untold", strconv.Itoa(untold), "data-folded", strconv.Itoa(r.Folded))
	d.open("desc", "id", "d-"+r.ID)
	d.WriteString(escape(r.Desc))
	d.shut("desc")
	d.put("rect", "class", "row", "x", "1", "y", px(top), "width", px(d.width-2), "height", px(height), "rx", "4")
	d.put("rect", "class", "mark", "x", "1", "y", px(top), "width", "2", "height", px(height))
}

// passed is how many beads of a row are solid: of the recipient that got farthest.
func passed(r *SequenceRow) int {
	n := int(r.Passed)
	for i := range r.Wires {
		n = max(n, r.Wires[i].beads())
	}
	return n
}

// beads is how many steps are done for a recipient.
func (w *Wire) beads() (n int) {
	n = int(w.Passed)
	if w.delivered() {
		n++
	}
	if w.Settled {
		n++
	}
	return n
}

func (w *Wire) delivered() bool { return w.State == parley.Delivered || w.State == parley.Answered }

// words writes the times and the text of a row.
func (d *svg) words(r *SequenceRow, top float64) {
	y := top + 18
	d.text("tm", gutterEnd, y, "end", r.At.UTC().Format("15:04:05.000"), gutter, 6)
	d.text("rel", gutterEnd, y+14, "end", r.Since, gutter, charSmall)
	room := hubWidth - 24
	if r.Took != "" {
		d.text("ms", d.hub+hubWidth-12, y, "end", r.Took, 60, charSmall)
		room -= cells(r.Took)*charSmall + 10
	}
	bad := ""
	if r.Bad {
		bad = " f-bad"
	}
	what := fit(r.What, room, charBold)
	room -= cells(what)*charBold + 4
	name := fit(r.Name, room, charText)
	room -= cells(name)*charText + 8
	d.open("text", "class", "said", "x", px(d.hub+12), "y", px(y))
	d.open("tspan", "class", "what"+bad)
	d.WriteString(escape(what) + "</tspan>")
	if name != "" {
		d.open("tspan", "class", "nm2"+bad, "dx", "4")
		d.WriteString(escape(name) + "</tspan>")
	}
	if say := fit(r.Say, room, charMono); say != "" && room > 4*charMono {
		d.open("tspan", "class", "say2", "dx", "7")
		d.WriteString(escape(say) + "</tspan>")
	}
	d.shut("text")
}

// heads draws the names above the lanes and the edges of the hub.
func (d *svg) heads(height float64) {
	for _, x := range []float64{d.hub, d.hub + hubWidth} {
		d.put("line", "class", "hubedge", "x1", px(x), "y1", "16", "x2", px(x), "y2", px(height-8))
	}
	width := min(d.pitch-8, 150)
	for i := range d.s.Lanes {
		l := &d.s.Lanes[i]
		d.open("g", "data-lane", l.Title, "data-agents", strings.Join(l.Agents, " "))
		d.open("title")
		d.WriteString(escape(l.Title))
		d.shut("title")
		d.put("rect", "class", "head", "x", px(d.x[i]-width/2), "y", "10", "width", px(width), "height",
			px(headHeight), "rx", "6")
		d.text("nm", d.x[i], 28, "middle", middle(l.Name, int((width-6)/charHead)), width, charBold)
		foot := strings.Trim(l.Group+" · "+l.Protocol, " ·")
		if cells(foot)*charSmall > width-4 {
			foot = l.Protocol
		}
		d.text("pr", d.x[i], 43, "middle", foot, width-2, charSmall)
		d.shut("g")
	}
	mid := d.hub + hubWidth/2
	d.text("nm", mid, 28, "middle", d.s.Hub, hubWidth-20, charBold)
	d.text("pr", mid, 43, "middle", "verifies · records · translates · delivers", hubWidth-20, charSmall)
}

// middle shortens a name in its middle, so that its end stays.
func middle(s string, n int) string {
	s = plain(s)
	r := []rune(s)
	if len(r) <= n || n < 7 {
		return s
	}
	tail := 4
	return string(r[:n-tail-1]) + "…" + string(r[len(r)-tail:])
}

// distance writes how far a time is from the start.
func distance(d time.Duration) string {
	switch {
	case d == 0:
		return "start"
	case d < 0:
		return "-" + took(-d)
	case d < time.Second:
		return "+" + strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < time.Minute:
		return "+" + strconv.FormatFloat(d.Seconds(), 'f', 3, 64) + " s"
	}
	return "+" + ago(d)
}
