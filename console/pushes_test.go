package console

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestPushesAreFew: however much changes, a page gets at most four pushes a second, with the newest 200 rows, and learns how many it
// missed.
func TestPushesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var times []time.Time
		var got []string
		p := newPushes(func(b []byte) error {
			times, got = append(times, time.Now()), append(got, string(b))
			return nil
		})
		begin := time.Now()
		for i := 0; time.Since(begin) < 10*time.Second; i++ {
			for j := range 3 {
				p.row(fmt.Sprint(i, " ", j), fmt.Appendf(nil, `<tr id="%d-%d"></tr>`, i, j))
			}
			if err := p.flush(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-p.due():
				if err := p.flush(); err != nil {
					t.Fatal(err)
				}
			case <-time.After(time.Millisecond):
			}
		}
		if n := len(times); n < 35 || n > 41 {
			t.Errorf("%d pushes in 10 s", n)
		}
		for i := 1; i < len(times); i++ {
			if d := times[i].Sub(times[i-1]); d < pushEvery {
				t.Errorf("two pushes within %s", d)
			}
		}
		last := got[len(got)-1]
		if n := strings.Count(last, "<tr"); n != pushMost {
			t.Errorf("a push has %d rows", n)
		}
		if !strings.Contains(last, "too fast to show: ") || p.lost == 0 {
			t.Error("the page does not learn what it missed")
		}
	})
}

// TestPushesCoalesce: an element that changes again is written once, and not if it is as before.
func TestPushesCoalesce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		p := newPushes(func(b []byte) error { got = append(got, string(b)); return nil })
		push := func() {
			t.Helper()
			if err := p.flush(); err != nil {
				t.Fatal(err)
			}
		}
		p.row("a", []byte("one"))
		push()
		p.row("a", []byte("two"))
		p.row("a", []byte("three"))
		p.element("health", []byte("well"))
		push()
		if len(got) != 1 {
			t.Fatalf("two pushes at once: %q", got)
		}
		<-p.due()
		push()
		p.element("health", []byte("well"))
		time.Sleep(time.Second)
		push()
		want := []string{"event: html\ndata: one\ndata: \n\n", "event: html\ndata: three\ndata: well\ndata: \n\n"}
		if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
			t.Errorf("%q, want %q", got, want)
		}
		p.missed(1204)
		time.Sleep(time.Second)
		push()
		if len(got) != 3 || !strings.Contains(got[2], "too fast to show: 1,204 missed") {
			t.Errorf("%q", got)
		}
	})
}

// TestEventKeepsItsLines: no data of a guest ends a line of the stream.
func TestEventKeepsItsLines(t *testing.T) {
	got := string(event("html", []byte("a\r\nb\rc\nevent: end")))
	if want := "event: html\ndata: a\ndata: b\ndata: c\ndata: event: end\n\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
