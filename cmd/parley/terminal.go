package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/fatih/color"
	"golang.org/x/term"
	"golang.org/x/text/width"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/readable"
)

// This file decides how text looks for people: widths, colours, times. On a terminal, tables and labelled lines fit its
// width, state words have colours, and times are relative. Elsewhere text is plain and complete: nothing is shortened
// to a width, and times are exact. JSON is never changed. Every text of an agent passes clean here, before colours are
// added.

// screen is what is known of the standard output.
type screen struct {
	width  int  // in columns; 0: it is no terminal
	colour bool // where --color says auto
}

// defaultWidth is the width of a terminal that does not tell its own.
const defaultWidth = 80

// screenOf looks at the standard output. https://no-color.org
func screenOf(out io.Writer, getenv func(string) string) screen {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return screen{}
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil || columns <= 0 {
		columns = defaultWidth
	}
	return screen{columns, getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
}

// colourModes are the values of --color.
func colourModes() []string { return []string{"auto", "always", "never"} }

// setColour applies --color.
func (a *app) setColour(mode string) error {
	if !slices.Contains(colourModes(), mode) {
		return usage("--color %q: want auto, always or never", mode)
	}
	a.screen.colour = mode == "always" || mode == "auto" && a.screen.colour
	return nil
}

// relative reports whether times are shown relative to now.
func (a *app) relative() bool { return a.screen.width > 0 && !a.utc }

// when formats a time: "3 min ago" on a terminal, else exactly.
func (a *app) when(t time.Time) string {
	if t.IsZero() || !a.relative() {
		return stamp(t)
	}
	d := a.now().Sub(t)
	switch past := d >= 0; {
	case d.Abs() < time.Second:
		return "now"
	case d.Abs() >= 30*24*time.Hour:
		return t.UTC().Format(time.DateOnly)
	case past:
		return rough(d) + " ago"
	}
	return "in " + rough(-d)
}

// since says how long something has been so: "for 3 min" on a terminal, else since when exactly.
func (a *app) since(t time.Time) string {
	if a.relative() {
		return "for " + rough(max(0, a.now().Sub(t)))
	}
	return "since " + stamp(t)
}

// after formats a moment of a conversation: as the time since its beginning on a terminal, else exactly.
func (a *app) after(begin, t time.Time) string {
	switch d := t.Sub(begin); {
	case !a.relative() || d < 0:
		return clock(t)
	case d >= time.Second && d < time.Minute:
		return fmt.Sprintf("+%.1f s", d.Seconds())
	default:
		return "+" + rough(d)
	}
}

// rough is a duration of at least nothing in one unit: "120 ms", "3 min".
func rough(d time.Duration) string {
	for _, u := range []struct {
		until, unit time.Duration
		name        string
	}{{time.Second, time.Millisecond, "ms"}, {time.Minute, time.Second, "s"}, {time.Hour, time.Minute, "min"},
		{48 * time.Hour, time.Hour, "h"}} {
		if d < u.until {
			return fmt.Sprintf("%d %s", d/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d d", d/(24*time.Hour))
}

// clock formats a time with milliseconds.
func clock(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000Z") }

// shownID is the beginning of an id that a terminal shows: time, and 12 random bits. The hub takes it for the id.
const shownID = len("01a2b3c4-d5e6-7f80")

// id formats an id for a table.
func (a *app) id(id parley.ID) string {
	if s := id.String(); a.screen.width > 0 && len(s) > shownID {
		return s[:shownID]
	}
	return id.String()
}

// A paint is a colour with a meaning.
type paint int

const (
	plain paint = iota
	title
	label
	good
	pending
	bad
)

func (p paint) attribute() color.Attribute {
	return [...]color.Attribute{color.Reset, color.Bold, color.Faint, color.FgGreen, color.FgYellow, color.FgRed}[p]
}

// painted adds a colour to clean text.
func (a *app) painted(p paint, s string) string {
	if !a.screen.colour || p == plain || s == "" {
		return s
	}
	c := color.New(p.attribute())
	c.EnableColor()
	return c.Sprint(s)
}

// mood is the colour of a word of state.
func mood(word string) paint {
	switch strings.ToLower(strings.TrimRight(word, ",:")) {
	case "ok", "ready", "answered", "delivered", "active", "verified", "done":
		return good
	case "paused", "waiting", "delivering", "skipped", "warning", "unreachable":
		return pending
	case "failed", "dead", "dropped", "expired", "abandoned", "refused", "error":
		return bad
	}
	return plain
}

// emphasised paints the first word of a text below a title, or after a label, that says how something stands.
func (a *app) emphasised(of, text string) string {
	word, rest, more := strings.Cut(text, " ")
	p := plain
	switch of = strings.ToLower(strings.TrimSpace(of)); of {
	case "state", "check":
		p = mood(word)
	case "reason", "failed", "problem":
		if word != "0" && word != "-" {
			p = bad
		}
	}
	if more {
		rest = " " + rest
	}
	return a.painted(p, word) + rest
}

// labels gives a function that writes one line: a label in a column of that width, and its
// text, of at most limit characters. It writes nothing for an empty text.
func (a *app) labels(columns, limit int) func(label, format string, args ...any) {
	return func(name, format string, args ...any) {
		text := short(fmt.Sprintf(format, args...), limit)
		if text != "" {
			a.hang(a.painted(label, fmt.Sprintf("%-*s ", columns, name)), columns+1, name, text)
		}
	}
}

// hang writes a text behind a head of a width, and folds it there. of is what the text is about, for its colour.
func (a *app) hang(head string, width int, of, text string) {
	for i, piece := range a.folded(text, width) {
		if i == 0 {
			piece = head + a.emphasised(of, piece)
		} else {
			piece = strings.Repeat(" ", width) + piece
		}
		fmt.Fprintln(a.out, piece)
	}
}

// tell writes lines of a story: on a terminal long names are shortened, and a line goes on below itself.
func (a *app) tell(format string, args ...any) {
	for text := range strings.Lines(clean(fmt.Sprintf(format, args...))) {
		text = strings.TrimSuffix(text, "\n")
		body := strings.TrimLeft(text, " ")
		indent := len(text) - len(body)
		look := func(s string) string { return a.painted(title, s) }
		if indent > 0 {
			look = func(s string) string { return a.emphasised("state", s) }
		}
		for i, piece := range a.folded(a.shortNames(body), indent+columnGap) {
			if i == 1 {
				indent += columnGap
			}
			fmt.Fprintf(a.out, "%*s%s\n", indent, "", look(piece))
		}
	}
}

// longestName is the length to which names in running text are shortened on a terminal.
const longestName = 32

// shortNames shortens the names in a line.
func (a *app) shortNames(line string) string {
	words := strings.Split(line, " ")
	for i, w := range words {
		name := w != "" && unicode.IsLetter(rune(w[0])) && !strings.Contains(w, "://") &&
			strings.Trim(w, "abcdefghijklmnopqrstuvwxyz0123456789/.:@_-") == ""
		if name && a.screen.width > 0 {
			words[i] = middle(w, longestName)
		}
	}
	return strings.Join(words, " ")
}

// folded breaks a text that stands behind an indent into lines that fit the terminal, between words if it can.
func (a *app) folded(text string, indent int) (lines []string) {
	room := a.screen.width - indent
	if room < leastColumn {
		return []string{text}
	}
	for cells(text) > room {
		end, gap, n := 0, 0, 0 // gap: between two words, or after a comma
		for i, r := range text {
			if r == ' ' {
				gap = i
			}
			if n += runeCells(r); n > room {
				break
			}
			if end = i + utf8.RuneLen(r); r == ',' {
				gap = end
			}
		}
		if gap > room/2 {
			end = gap
		}
		lines = append(lines, strings.TrimRight(text[:end], " "))
		text = strings.TrimLeft(text[end:], " ")
	}
	return append(lines, text)
}

// printList writes a list: as JSON with --json, else as a table with one row for
// each element, or the text none if there is no element.
func printList[T any](a *app, list []T, none string, titles []string, row func(*T) []string) error {
	if a.json {
		return a.print(list, "")
	}
	var rows [][]string
	for i := range list {
		rows = append(rows, row(&list[i]))
	}
	if len(rows) == 0 {
		return a.print(nil, "%s\n", none)
	}
	return a.table(titles, rows, nil)
}

const (
	columnGap   = 2
	leastColumn = 18  // to which a column may be shortened
	fixedColumn = 24  // to which a column of ids or times is not shortened: its cells are all of one width
	rowIndent   = 4   // of the further lines of a row
	longestCell = 120 // in characters, where no width limits it
)

// table writes rows below their titles, aligned, each followed by the lines that below gives for it, which may be nil.
//
// The rule by which a table fits a terminal: the widest columns are shortened first, in the middle of their texts, down
// to leastColumn; ids and times are not. What does not fit then goes on a second line of each row.
func (a *app) table(titles []string, rows [][]string, below func(row int) []string) error {
	lines := fit(columnsOf(titles, rows), a.screen.width)
	var b strings.Builder
	write := func(row []string, look func(i int, cell string) string) {
		at := 0
		for n, widths := range lines {
			if n > 0 {
				b.WriteString(strings.Repeat(" ", rowIndent))
			}
			space := 0
			for _, w := range widths {
				cell := middle(row[at], w)
				b.WriteString(strings.Repeat(" ", space) + look(at, cell))
				space = w - cells(cell) + columnGap
				at++
			}
			b.WriteByte('\n')
		}
	}
	write(titles, func(_ int, cell string) string { return a.painted(title, cell) })
	for i, row := range rows {
		write(row, func(i int, cell string) string { return a.emphasised(titles[i], cell) })
		if below == nil {
			continue
		}
		for _, text := range below(i) {
			for _, line := range a.folded(short(text, 10*longestCell), rowIndent) {
				b.WriteString(strings.Repeat(" ", rowIndent) + line + "\n")
			}
		}
	}
	_, err := io.WriteString(a.out, b.String())
	return err
}

// column is the width of the widest cell of a column, and the width to which it may be shortened.
type column struct{ natural, least int }

// columnsOf measures the columns of a table, and makes each cell a clean line.
func columnsOf(titles []string, rows [][]string) []column {
	columns := make([]column, len(titles))
	for i, title := range titles {
		c := column{natural: cells(title)}
		one := 0 // the width of all cells, -1 if they differ
		for _, row := range rows {
			if row[i] = short(row[i], longestCell); row[i] == "" {
				row[i] = "-"
				continue
			}
			w := cells(row[i])
			c.natural = max(c.natural, w)
			if one == 0 {
				one = w
			} else if one != w {
				one = -1
			}
		}
		if c.least = min(c.natural, leastColumn); one > 0 && one <= fixedColumn {
			c.least = c.natural
		}
		columns[i] = c
	}
	return columns
}

// fit shares the width of a terminal among columns. It gives the widths of the columns on each line of a row; without a
// terminal there is one line, on which nothing is shortened.
func fit(columns []column, width int) (lines [][]int) {
	for len(columns) > 0 {
		room := width
		if len(lines) > 0 {
			room -= rowIndent
		}
		n, least := 1, columns[0].least
		for n < len(columns) && (width == 0 || least+columnGap+columns[n].least <= room) {
			least += columnGap + columns[n].least
			n++
		}
		line, over := make([]int, n), (n-1)*columnGap-room
		for i, c := range columns[:n] {
			line[i] = c.natural
			over += c.natural
		}
		for ; width > 0 && over > 0; over-- {
			widest := -1
			for i, c := range columns[:n] {
				if line[i] > c.least && (widest < 0 || line[i] > line[widest]) {
					widest = i
				}
			}
			if widest < 0 {
				break // the terminal is narrower than one column
			}
			line[widest]--
		}
		lines, columns = append(lines, line), columns[n:]
	}
	return lines
}

// shortName is short for names and ids, whose beginning and end tell more than their middle.
func shortName(s string, n int) string { return middle(oneLine(s), n) }

// middle shortens a clean line to n columns.
func middle(s string, n int) string {
	if cells(s) <= n {
		return s
	}
	r := []rune(s)
	head, tail, used := 0, len(r), 1 // the ellipsis
	for i := 0; ; i++ {
		// The beginning gets the odd column.
		if i%2 == 0 {
			if used += runeCells(r[head]); used > n {
				break
			}
			head++
			continue
		}
		if used += runeCells(r[tail-1]); used > n {
			break
		}
		tail--
	}
	return string(r[:head]) + "…" + string(r[tail:])
}

// cells is the number of columns that a clean text takes.
func cells(s string) (n int) {
	for _, r := range s {
		n += runeCells(r)
	}
	return n
}

func runeCells(r rune) int {
	if r < 0x300 {
		return 1
	}
	switch k := width.LookupRune(r).Kind(); {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case k == width.EastAsianWide, k == width.EastAsianFullwidth:
		return 2
	}
	return 1
}

// Texts for people.
var (
	clean   = readable.Clean
	oneLine = readable.OneLine
	short   = readable.Short
	plural  = readable.Plural
	stamp   = readable.Stamp
)
