package flows

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/performance"
	"github.com/chromedp/chromedp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
	"github.com/parley-hub/parley/journal"
)

// Flow 14: 20,000 messages in the journal, 1,000 a second more, 20 seconds; with PARLEY_FLOWS=long 1,000,000 and ten
// minutes. Messages is open meanwhile. It shows what comes, and neither the hub nor the page grows.
func TestMillion(t *testing.T) {
	before, each := 20_000, 2*time.Second
	if os.Getenv("PARLEY_FLOWS") == "long" {
		before, each = 1_000_000, time.Minute
	}
	c := begin(t)
	f := &flood{c: c, journal: c.Node.Hub().Journal()}
	f.fill(before / 2)
	v := c.entered(browser.Look{}, admin.Operate)
	v.do(heapprofiler.Enable(), performance.Enable())
	ctx, stop := context.WithCancel(t.Context())
	var flowing sync.WaitGroup
	flowing.Go(func() { f.flow(ctx) })
	defer flowing.Wait()
	defer stop()
	var all []grown
	newest := 0.0
	for i := range 10 {
		begin, sent := time.Now(), f.sent.Load()
		<-time.After(each)
		rate := float64(2*(f.sent.Load()-sent)) / time.Since(begin).Seconds()
		// Rows come by themselves, though those of many writers are not in the order of their times.
		v.do(browser.Wait(fmt.Sprintf(newestRow+" > %f", newest)), browser.Eval(newestRow, &newest))
		v.is(`document.querySelector("#more").hidden`, "nothing waits behind the bar")
		g := v.grown()
		t.Logf("%2d: %4.0f messages a second; hub %.1f MB, page %.1f MB, %.0f nodes, %.0f rows", i+1, rate, g.Hub, g.Page,
			g.Nodes, g.Rows)
		all = append(all, g)
	}
	// The first of them warmed up.
	from, to := all[1], all[len(all)-1]
	if to.Hub > 1.25*from.Hub+32 {
		t.Errorf("the hub's heap grew from %.1f MB to %.1f MB", from.Hub, to.Hub)
	}
	if to.Page > 1.5*from.Page+4 {
		t.Errorf("the page's heap grew from %.1f MB to %.1f MB", from.Page, to.Page)
	}
	if to.Nodes > 1.5*from.Nodes+2000 || to.Rows > 200 {
		t.Errorf("the page grew from %.0f nodes to %.0f, and has %.0f rows", from.Nodes, to.Nodes, to.Rows)
	}
}

// newestRow is the time of the first row, in microseconds.
const newestRow = `Number(document.querySelector("#rows tr[data-at]")?.dataset.at || 0)`

// grown is the size of the hub and its page, in MB, after all garbage was collected.
type grown struct{ Hub, Page, Nodes, Rows float64 }

func (v *tab) grown() (g grown) {
	v.t.Helper()
	runtime.GC()
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(heap)
	g.Hub = float64(heap[0].Value.Uint64()) / 1e6
	var page map[string]float64
	v.do(heapprofiler.CollectGarbage(), chromedp.ActionFunc(func(ctx context.Context) error {
		list, err := performance.GetMetrics().Do(ctx)
		page = map[string]float64{}
		for _, m := range list {
			page[m.Name] = m.Value
		}
		return err
	}), browser.Eval(`document.querySelectorAll("#rows tr").length`, &g.Rows))
	g.Page, g.Nodes = page["JSHeapUsedSize"]/1e6, page["Nodes"]
	return g
}

// flood writes exchanges of agents as the hub records them.
type flood struct {
	c       *console
	journal *journal.Journal
	sent    atomic.Int64
}

// fill writes n exchanges, many at once.
func (f *flood) fill(n int) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range 256 {
		all.Go(func() {
			for next.Add(1) <= int64(n) {
				f.exchange()
			}
		})
	}
	all.Wait()
}

// flow writes 500 exchanges a second, as far as the machine can.
func (f *flood) flow(ctx context.Context) {
	const rate = 500
	begin, before := time.Now(), f.sent.Load()
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
			if due := int(time.Since(begin).Seconds()*rate) - int(f.sent.Load()-before); due > 0 {
				f.fill(min(due, rate))
			}
		}
	}
}

func (f *flood) id() parley.ID {
	id, err := parley.NewID(f.c.Clock.Now(), rand.Reader)
	if err != nil {
		f.c.t.Error(err)
	}
	return id
}

// exchange writes a request and its answer.
func (f *flood) exchange() {
	i := f.sent.Add(1)
	origin := parley.Origin{Protocol: "samvad", Verdict: parley.Verdict{Assurance: parley.Signed}}
	q := &parley.Message{ID: f.id(), Kind: parley.Request, From: fmt.Sprintf("client-%d", i%50), To: "worker",
		Conversation: f.id(), Skill: "weather", Parts: []parley.Part{parley.Text("what will the weather be like?")},
		Origin: origin}
	a := &parley.Message{ID: f.id(), Kind: parley.Response, From: q.To, To: q.From, Conversation: q.Conversation,
		InReplyTo: q.ID, Parts: []parley.Part{parley.Text("a clear sky")}, Origin: parley.Origin{Protocol: "go"}}
	for _, e := range []journal.Entry{
		{Scope: q.To, Message: q, Open: []journal.Opening{{To: q.To, Attempt: 1, Sync: true}}},
		{Scope: q.To, Message: a, Steps: []journal.Step{{Message: q.ID, To: q.To, State: parley.Answered, Attempt: 1}}},
	} {
		if _, err := f.journal.Append(context.Background(), e); err != nil {
			f.c.t.Error(err)
		}
	}
}
