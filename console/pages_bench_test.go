//go:build linux

package console_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/node"
)

// benchMessages is the number of messages in the journal of [BenchmarkPages].
func benchMessages(b *testing.B) int {
	s := os.Getenv("PARLEY_MESSAGES")
	if s == "" {
		return 10_000
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1000 {
		b.Fatalf("PARLEY_MESSAGES=%q: want a number from 1000", s)
	}
	return n
}

// BenchmarkPages measures the server's time of each page of the console, over a socket, with 10,000 messages on disk,
// or PARLEY_MESSAGES, 1,000 agents, and as many as 100,000 open deliveries. It reports the median, the worst, and the
// processor time of the whole process. The bound is 50 ms in the median, on this machine alone.
func BenchmarkPages(b *testing.B) {
	x := filled(b, benchMessages(b))
	for _, p := range x.pages() {
		b.Run(p[0], func(b *testing.B) {
			var all []time.Duration
			size, before := 0, cpu(b)
			for b.Loop() {
				begin := time.Now()
				size = x.page(b, "/console/"+p[1])
				all = append(all, time.Since(begin))
			}
			used := cpu(b) - before
			slices.Sort(all)
			b.ReportMetric(ms(all[len(all)/2]), "ms-median")
			b.ReportMetric(ms(all[len(all)-1]), "ms-worst")
			b.ReportMetric(ms(used)/float64(b.N), "ms-cpu")
			b.ReportMetric(float64(size)/1000, "KB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// cpu is the processor time of the process.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

const (
	atOnce  = 1000     // requests, or answers, that are written at once
	longOne = 400      // messages of the conversation of which 200 rows are shown
	rareOne = "seldom" // a word of few messages
)

// filler writes the records of a hub that was at work for some hours; the hub itself delivers none of them.
type filler struct {
	b       *testing.B
	node    *node.Node
	journal *journal.Journal
	api     *admin.Client // may do everything
	http    *http.Client  // has a session of the console
	middle  time.Time     // of these hours
	long    parley.ID     // the conversation of many messages
	ahead   atomic.Int64  // of the clock
}

func (x *filler) now() time.Time { return time.Now().Add(time.Duration(x.ahead.Load())) }

func (x *filler) set(t time.Time) { x.ahead.Store(int64(time.Until(t))) }

// open opens the hub, and enters its console.
func (x *filler) open() {
	ctx, secret := x.b.Context(), ""
	n, err := node.Open(ctx, node.Config{Data: x.b.TempDir(), Durability: "disk", Now: x.now,
		Log: slog.New(slog.DiscardHandler), Listen: node.Listen{Admin: "127.0.0.1:0"},
		FirstToken: func(s string) { secret = s }})
	if err != nil {
		x.b.Fatal(err)
	}
	x.b.Cleanup(func() { n.Close(context.Background()) })
	if err := n.Start(ctx); err != nil {
		x.b.Fatal(err)
	}
	x.node, x.journal = n, n.Hub().Journal()
	x.api = &admin.Client{Base: n.Addresses().Admin, Token: secret}
	link, err := x.api.ConsoleLink(ctx)
	if err != nil {
		x.b.Fatal(err)
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		x.b.Fatal(err)
	}
	x.http = &http.Client{Jar: jar}
	_, once, _ := strings.Cut(link.Path, "once=")
	res, err := x.http.PostForm(x.api.Base+"/console/enter", url.Values{"once": {once}})
	if err != nil {
		x.b.Fatal(err)
	}
	res.Body.Close()
}

// page gets a page, which must be there, and gives its size.
func (x *filler) page(b *testing.B, path string) int {
	res, err := x.http.Get(x.api.Base + path)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		b.Fatalf("%s: %d %v %.400s", path, res.StatusCode, err, body)
	}
	return len(body)
}

// filled is a hub with n messages.
func filled(b *testing.B, n int) *filler {
	x, now := &filler{b: b}, time.Now()
	x.open()
	for i := range 1000 {
		name := fmt.Sprintf("agent-%04d", i)
		a := parley.Agent{Name: name, Exposed: parley.Everywhere, Identities: []parley.Identity{admin.Inbox(name)}}
		if _, err := x.node.Hub().Directory().Put(b.Context(), a, directory.FromConfig); err != nil {
			b.Fatal(err)
		}
	}
	begin, rounds := now.Add(-20*time.Hour), n/2/atOnce+1
	x.middle = begin.Add(9 * time.Hour)
	for i := range rounds {
		x.set(begin.Add(time.Duration(i) * 18 * time.Hour / time.Duration(rounds)))
		x.round(min(atOnce, n/2-i*atOnce))
	}
	x.set(now.Add(-time.Hour))
	x.long = x.id()
	x.each(longOne, func(i int) { x.record(x.notice(i, "agent-0001", x.long, "a word in a long conversation")) })
	x.troubles(min(100_000, n))
	x.set(now)
	x.indexed()
	return x
}

func (x *filler) id() parley.ID {
	id, err := parley.NewID(x.now(), rand.Reader)
	if err != nil {
		x.b.Error(err)
	}
	return id
}

// each calls write for 0 to n-1, many at once: they share writes to the disk.
func (x *filler) each(n int, write func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(n, 256) {
		all.Go(func() {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				write(i - 1)
			}
		})
	}
	all.Wait()
}

func (x *filler) record(e journal.Entry) {
	if _, err := x.journal.Append(context.Background(), e); err != nil {
		x.b.Error(err)
	}
}

// spoken are the protocols of the messages: each agent speaks one.
var spoken = []string{"samvad", "a2a", "mcp", "uagents", "a2e", "agh", "asp"}

func (x *filler) notice(i int, to string, conversation parley.ID, text string) journal.Entry {
	m := &parley.Message{ID: x.id(), Kind: parley.Notice, From: fmt.Sprintf("client-%d", i%50), To: to, Skill: "tell",
		Conversation: conversation, Parts: []parley.Part{parley.Text(fmt.Sprintf("%s, number %d", text, i))}}
	m.Origin = parley.Origin{Protocol: spoken[i%50%len(spoken)], Peer: m.From,
		Verdict: parley.Verdict{Assurance: parley.Assurance(i % 50 % 3)}}
	return journal.Entry{Scope: to, Message: m, Open: []journal.Opening{{To: to, Attempt: 1}}}
}

// round writes n requests and their answers. One of 10 is answered late, one of 20 fails, one of 50 is refused.
func (x *filler) round(n int) {
	asked := make([]*parley.Message, n)
	x.each(n, func(i int) {
		text := "what will the weather be like in the mountains"
		if i == 0 {
			text = rareOne
		}
		e := x.notice(i, fmt.Sprintf("worker-%d", i%7), x.id(), text)
		e.Message.Kind, e.Message.Skill = parley.Request, "weather"
		e.Open[0].Sync = true
		if i%50 == 7 {
			e.Open, e.Refused = nil, parley.Refuse(parley.Forbidden, "no rule lets it ask")
		}
		if x.record(e); e.Refused == nil {
			asked[i] = e.Message
		}
	})
	for _, late := range []bool{false, true} {
		x.ahead.Add(int64(300 * time.Millisecond))
		if late {
			x.ahead.Add(int64(3 * time.Second))
		}
		x.each(n, func(i int) {
			if asked[i] != nil && late == (i%10 == 3) {
				x.answer(i, asked[i])
			}
		})
	}
}

func (x *filler) answer(i int, to *parley.Message) {
	m := &parley.Message{ID: x.id(), Kind: parley.Response, From: to.To, To: to.From, Conversation: to.Conversation,
		InReplyTo: to.ID, Parts: []parley.Part{parley.Text("21 degrees and a clear sky")},
		Origin: parley.Origin{Protocol: "go"}}
	if i%20 == 9 {
		m.Kind, m.Parts, m.Error = parley.Failure, nil, parley.Refuse(parley.Rejected, "closed on Mondays")
	}
	x.record(journal.Entry{Scope: to.To, Message: m, Steps: []journal.Step{{Message: to.ID, To: to.To,
		State: parley.Answered, Attempt: 1, Error: m.Error,
		Exchange: &parley.Exchange{Protocol: spoken[i%7], Address: "https://worker.example",
			Took: 12 * time.Millisecond}}}})
}

// troubles writes n deliveries to 1,000 agents: one of 10 is a dead letter, the others wait for an attempt that is
// hours away. One of 50 reached its recipient at the second attempt.
func (x *filler) troubles(n int) {
	failed := []*parley.Error{
		parley.Fail(parley.Unavailable, nil, "connection refused by 192.0.2.7:443").
			With(parley.ByNetwork, parley.ConnectionRefused, ""),
		parley.Refuse(parley.TimedOut, "no answer within 30 s").With(parley.ByNetwork, parley.NoAnswer, ""),
		parley.Refuse(parley.Unavailable, "it is down for repair").With(parley.ByPeer, "", "HTTP 503")}
	x.each(n, func(i int) {
		e := x.notice(i, fmt.Sprintf("agent-%04d", i%1000), x.id(), "the order is ready")
		x.record(e)
		s := journal.Step{Message: e.Message.ID, To: e.Message.To, State: parley.Waiting, Attempt: 1,
			Next: x.now().Add(5 * time.Hour), Error: failed[i/1000%3]}
		if i%10 == 0 {
			s.State, s.Next = parley.Dead, time.Time{}
		}
		x.record(journal.Entry{Steps: []journal.Step{s}})
		if i%50 == 1 {
			s = journal.Step{Message: s.Message, To: s.To}
			s.State, s.Attempt = parley.Delivering, 2
			x.record(journal.Entry{Steps: []journal.Step{s}})
			s.State = parley.Delivered
			x.record(journal.Entry{Steps: []journal.Step{s}})
		}
	})
}

// indexed waits until the index has all of it.
func (x *filler) indexed() {
	for {
		if _, err := x.api.Messages(context.Background(), index.Filter{Limit: 1}); err != nil { // which waits for it
			x.b.Fatal(err)
		}
		x.ahead.Add(int64(time.Second)) // a status is a second old at most
		s, err := x.api.Status(context.Background())
		if err != nil {
			x.b.Fatal(err)
		}
		if s.Lag.Number == 0 {
			return
		}
	}
}

// pages are the pages that are measured, with their addresses.
func (x *filler) pages() [][2]string {
	middle := index.CursorAt(index.KeyAt(x.middle))
	out := [][2]string{{"messages", ""}, {"middle", "?before=" + middle}}
	for _, q := range []string{"show=failed", "show=refused", "show=waiting", "show=slow", "agent=client-7",
		"agent=agent-0001", "from=client-7", "to=worker-3", "protocol=samvad", "via=mcp", "proof=signed",
		"proof=unsigned",
		"proof=session", "proof=refused", "kind=request", "kind=cancel", "state=answered", "state=dead", "slow=500ms",
		"since=24h", "since=19h&kind=notice", "agent=client-7&protocol=samvad", "agent=client-7&proof=unsigned",
		"kind=request&proof=signed", "protocol=samvad&proof=session", "kind=response&proof=signed",
		"agent=worker-3&show=failed",
		"proof=signed&show=slow", "text=weather", "text=weather&proof=signed", "text=" + rareOne, "text=never",
		"text=worker-3",
		"text=" + x.long.String(), "show=refused&before=" + middle, "proof=signed&before=" + middle,
		"text=weather&before=" + middle} {
		out = append(out, [2]string{"messages?" + strings.ReplaceAll(q, middle, "middle"), "?" + q})
	}
	for _, q := range []string{"", "?open=1", "?failed=1", "?agent=client-7", "?since=24h", "?before=" + middle} {
		out = append(out, [2]string{"conversations" + strings.ReplaceAll(q, middle, "middle"), "conversations" + q})
	}
	long := "conversations/" + x.long.String()
	return append(out, [][2]string{{"conversation", long}, {"conversation/table", long + "?view=table"},
		{"conversation/proof", long + "?view=proof"}, {"conversation/content", long + "?view=content"},
		{"agents", "agents"}, {"agents?q", "agents?q=agent-09"}, {"agent", "agents/agent-0777"},
		{"undelivered", "undelivered"}, {"undelivered?waiting", "undelivered?show=waiting"},
		{"undelivered?recovered", "undelivered?show=recovered"}, {"undelivered?list", "undelivered?view=list"},
		{"undelivered?to", "undelivered?to=agent-0010"}, {"workbench", "workbench"}, {"audit", "audit"}}...)
}
