package flows

import (
	"slices"
	"testing"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// BenchmarkFirstPaint measures Messages in a warm browser, from the request to the first content on the screen. The
// bound is 100 ms in the median, on this machine alone.
func BenchmarkFirstPaint(b *testing.B) {
	c := begin(b)
	c.trip()
	v := c.entered(browser.Look{}, admin.Operate)
	const paint = `performance.getEntriesByName("first-contentful-paint")[0]`
	var all []float64
	for b.Loop() {
		var ms float64
		v.do(browser.Go(c.Origin()+"/console/"), browser.Wait(paint), browser.Eval(paint+".startTime", &ms))
		all = append(all, ms)
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2], "ms-median")
	b.ReportMetric(all[len(all)-1], "ms-worst")
}
