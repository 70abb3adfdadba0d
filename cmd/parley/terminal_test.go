package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestRelativeTimes: on a terminal a time is told from now, in one unit; --utc and other outputs have it exactly.
func TestRelativeTimes(t *testing.T) {
	t.Parallel()
	a := &app{now: func() time.Time { return goldenNow }, screen: screen{width: 80}}
	for d, want := range map[time.Duration]string{0: "now", 999 * time.Millisecond: "now", -time.Millisecond: "now",
		time.Second: "1 s ago", 59 * time.Second: "59 s ago", time.Minute: "1 min ago",
		3*time.Minute + 59*time.Second: "3 min ago",
		2 * time.Hour:                  "2 h ago", 47 * time.Hour: "47 h ago",
		48 * time.Hour: "2 d ago", 29 * 24 * time.Hour: "29 d ago",
		30 * 24 * time.Hour: "2026-10-21", -2 * time.Hour: "in 2 h", -90 * time.Second: "in 1 min",
		-40 * 24 * time.Hour: "2026-12-30"} {
		if got := a.when(goldenNow.Add(-d)); got != want {
			t.Errorf("%s ago: %q, want %q", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{0: "+0 ms", 12 * time.Millisecond: "+12 ms",
		1200 * time.Millisecond: "+1.2 s",
		time.Minute:             "+1 min", -time.Second: "2026-11-20 14:59:59.000Z"} {
		if got := a.after(goldenNow, goldenNow.Add(d)); got != want {
			t.Errorf("%s after: %q, want %q", d, got, want)
		}
	}
	if got := a.when(time.Time{}); got != "-" {
		t.Error(got)
	}
	for _, exact := range []*app{{now: a.now, screen: a.screen, utc: true}, {now: a.now}} {
		if got := exact.when(goldenNow); got != "2026-11-20 15:00:00Z" {
			t.Error(got)
		}
		if got := exact.after(goldenNow, goldenNow); got != "2026-11-20 15:00:00.000Z" {
			t.Error(got)
		}
	}
}

// TestTableFits: the widest columns are shortened first, ids and times are not, and what does not fit goes on a second
// line.
func TestTableFits(t *testing.T) {
	t.Parallel()
	of := func(widths ...int) (out []column) {
		for _, w := range widths {
			out = append(out, column{w, min(w, leastColumn)})
		}
		return out
	}
	fixed := column{24, 24}
	for _, c := range []struct {
		columns []column
		width   int
		want    [][]int
	}{
		{of(10, 200), 0, [][]int{{10, 200}}},
		{of(10, 20), 80, [][]int{{10, 20}}},
		{of(10, 200), 80, [][]int{{10, 68}}},
		{of(50, 60), 80, [][]int{{39, 39}}},
		{of(10, 50, 60), 80, [][]int{{10, 33, 33}}},
		{append(of(40, 40), fixed), 80, [][]int{{26, 26, 24}}},
		{append(of(18, 18, 18), fixed), 80, [][]int{{18, 18, 18}, {24}}},
		{of(20, 20, 20, 20, 90), 80, [][]int{{18, 18, 19, 19}, {76}}},
		{of(30, 30), 10, [][]int{{18}, {18}}},
		{nil, 80, nil},
	} {
		got := fit(c.columns, c.width)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v in %d: %s", c.columns, c.width, diff)
		}
	}
}

// TestMiddle: what is left out of a name is its middle; a wide letter takes two columns, an accent none.
func TestMiddle(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		n    int
		want string
	}{{"weather", 7, "weather"}, {"weather", 6, "wea…er"}, {"weather", 1, "…"}, {"東京タワー", 10, "東京タワー"},
		{"東京タワー", 9, "東京…ワー"}, {"cafe\u0301", 4, "cafe\u0301"}, {"", 3, ""}} {
		if got := middle(c.text, c.n); got != c.want || cells(got) > c.n {
			t.Errorf("%q in %d: %q, want %q", c.text, c.n, got, c.want)
		}
	}
}

// TestFolded: lines break between words or after a comma, else anywhere.
func TestFolded(t *testing.T) {
	t.Parallel()
	a := &app{screen: screen{width: 20}}
	for text, want := range map[string][]string{
		"":                             {""},
		"one two three four five six":  {"one two three four", "five six"},
		strings.Repeat("x", 25):        {strings.Repeat("x", 20), "xxxxx"},
		`{"first":"value","next":"o"}`: {`{"first":"value",`, `"next":"o"}`},
		"東京東京東京東京東京東京":                 {"東京東京東京東京東京", "東京"},
	} {
		if diff := cmp.Diff(want, a.folded(text, 0)); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
	if got := (&app{}).folded(strings.Repeat("x ", 500), 5); len(got) != 1 {
		t.Errorf("without a terminal a line has %d lines", len(got))
	}
}

// TestNothingControlsTheTerminal: no text of an agent reaches a terminal with its control characters, and only the
// command's own colours do.
func TestNothingControlsTheTerminal(t *testing.T) {
	t.Parallel()
	evil := "ok \x1b]0;title\x07 \x1b[31mred\u202ereversed\x9b5m\r\nnext"
	for _, s := range []screen{{}, {width: 60}, {width: 60, colour: true}} {
		var out bytes.Buffer
		a := &app{out: &out, now: func() time.Time { return goldenNow }, screen: s}
		if err := a.table([]string{"STATE", "TEXT"}, [][]string{{evil, evil}}, func(int) []string {
			return []string{evil}
		}); err != nil {
			t.Fatal(err)
		}
		a.labels(10, 200)("state", "%s", evil)
		a.tell("  %s\n", evil)
		got := out.String()
		for _, own := range []string{"\x1b[1m", "\x1b[2m", "\x1b[22m", "\x1b[32m", "\x1b[0m"} {
			if s.colour {
				got = strings.ReplaceAll(got, own, "")
			}
		}
		if strings.ContainsAny(got, "\x1b\x07\r\u202e\u009b") {
			t.Errorf("%+v: %q", s, got)
		}
	}
}

// TestFoldedKeepsTheText: folding loses no letter, and every line fits.
func TestFoldedKeepsTheText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := oneLine(rapid.String().Draw(t, "text"))
		a := &app{screen: screen{width: rapid.IntRange(0, 100).Draw(t, "width")}}
		lines := a.folded(text, 0)
		if got := strings.ReplaceAll(strings.Join(lines, ""), " ", ""); got != strings.ReplaceAll(text, " ", "") {
			t.Errorf("%q became %q", text, lines)
		}
		for _, l := range lines {
			if a.screen.width >= leastColumn && cells(l) > a.screen.width {
				t.Errorf("%d columns in %d: %q", cells(l), a.screen.width, l)
			}
		}
	})
}
