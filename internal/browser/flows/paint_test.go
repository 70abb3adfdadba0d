package flows

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// BenchmarkFirstPaint measures Messages with 100 rows in a warm browser, from the request to the first content on the
// screen, and where the time goes: until the answer is there, and until it is parsed. In turns with it the browser
// shows a page of one word from a server that does nothing else: that is what the browser and the machine cost. The
// bound is 100 ms in the median, on this machine alone.
func BenchmarkFirstPaint(b *testing.B) {
	c := begin(b)
	c.trip()
	if _, err := c.API.AddAgent(b.Context(), admin.NewAgent{Name: "sink", Inbox: true}); err != nil {
		b.Fatal(err)
	}
	word := "good morning"
	for range 100 {
		if _, err := c.API.Send(b.Context(), admin.Send{To: "sink", Kind: parley.Notice, Text: &word}); err != nil {
			b.Fatal(err)
		}
	}
	blank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, `<!doctype html><html lang="en"><title>word</title><link rel="icon" href="data:,">word`)
	}))
	defer blank.Close()
	p, err := chromium.Open(blank.URL, browser.Look{})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	floor := &tab{p, c}
	v := c.entered(browser.Look{}, admin.Operate)
	var ours, bare []painted
	for b.Loop() {
		ours, bare = append(ours, v.paint(c.Origin()+"/console/")), append(bare, floor.paint(blank.URL))
	}
	median := func(all []painted, of func(painted) float64) float64 {
		slices.SortFunc(all, func(x, y painted) int { return int(1000 * (of(x) - of(y))) })
		return of(all[len(all)/2])
	}
	paint := func(p painted) float64 { return p.Paint }
	least, first := median(bare, paint), median(ours, paint)
	b.ReportMetric(ours[len(ours)-1].Paint, "ms-worst")
	b.ReportMetric(first, "ms-median")
	b.ReportMetric(least, "ms-floor")
	b.ReportMetric(first-least, "ms-above-floor")
	b.ReportMetric(first/least, "x-floor")
	b.ReportMetric(median(ours, func(p painted) float64 { return p.Answer }), "ms-answer")
	b.ReportMetric(median(ours, func(p painted) float64 { return p.Parsed }), "ms-parsed")
	b.ReportMetric(ours[0].Bytes/1000, "KB")
}

// painted are the times of one page, in milliseconds from the request, and its size.
type painted struct{ Answer, Parsed, Paint, Bytes float64 }

func (v *tab) paint(url string) (p painted) {
	v.t.Helper()
	const first = `performance.getEntriesByName("first-contentful-paint")[0]`
	v.do(browser.Idle(), browser.Go(url), browser.Wait(first))
	v.do(browser.Eval(`(n => ({Answer: n.responseEnd, Parsed: n.domInteractive,
		Paint: `+first+`.startTime, Bytes: n.encodedBodySize}))(performance.getEntriesByType("navigation")[0])`, &p))
	return p
}
