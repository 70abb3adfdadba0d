package console_test

import (
	"bufio"
	"context"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
)

// events reads the stream of a page.
type events struct {
	t    *testing.T
	body *bufio.Scanner
	end  context.CancelFunc
}

var streamPath = regexp.MustCompile(`sse-connect="([^"]+)"`)

// live opens the stream of a page.
func (w *browser) live(page string) *events {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	w.t.Cleanup(cancel)
	path := html.UnescapeString(streamPath.FindStringSubmatch(page)[1])
	r, err := http.NewRequestWithContext(ctx, "GET", w.base+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	res, err := w.http.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatalf("%s: %d %s", path, res.StatusCode, res.Header.Get("Content-Type"))
	}
	s := bufio.NewScanner(res.Body)
	s.Buffer(nil, 1<<20)
	return &events{w.t, s, cancel}
}

// next gives the next event; ok is false at the end of the stream.
func (e *events) next() (name, data string, ok bool) {
	var lines []string
	for e.body.Scan() {
		line := e.body.Text()
		switch {
		case strings.HasPrefix(line, "event: "):
			name = line[7:]
		case strings.HasPrefix(line, "data: "):
			lines = append(lines, line[6:])
		case line == "" && name != "":
			return name, strings.Join(lines, "\n"), true
		}
	}
	return "", "", false
}

// until reads until an event has a text.
func (e *events) until(want string) string {
	e.t.Helper()
	last := ""
	for {
		name, data, ok := e.next()
		if !ok {
			e.t.Fatalf("the stream ended without %q: %s %v", want, last, e.body.Err())
		}
		last = name + " " + data
		if strings.Contains(data, want) {
			return data
		}
	}
}

func TestLiveRows(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	page := w.page("/console/")
	between := b.tell(admin.Send{To: "sink", Text: text("before the stream")})
	e := w.live(page)
	e.until(between.ID.String())
	r := b.ask("museum", `{"city":"Bern"}`)
	data := e.until(r.Reply.ID.String())
	if got := row(t, data, r.Reply.ID.String()); !strings.Contains(got, "closed on Mondays") {
		t.Errorf("the row of a failure: %s", got)
	}
	ref := b.forge("agent://evil.example\r\ndata: x\r\revent: end")
	if got := e.until(ref); strings.Contains(got, "\r") {
		t.Error("a claim breaks the stream's lines")
	}
}

// TestLiveFilters: a page gets what its filters choose, and what they choose no longer.
func TestLiveFilters(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	e := w.live(w.page("/console/?agent=museum&kind=request"))
	b.ask("weather", `{"city":"Bern"}`)
	r := b.ask("museum", `{"city":"Bern"}`)
	var all strings.Builder
	for !strings.Contains(all.String(), r.ID.String()) {
		_, data, ok := e.next()
		if !ok {
			t.Fatal("the stream ended")
		}
		all.WriteString(data)
	}
	if got := rows(all.String()); len(got) == 0 || strings.Contains(all.String(), "weather</span>") ||
		strings.Contains(all.String(), "closed on Mondays") {
		t.Errorf("rows that the filter does not choose: %v", got)
	}
}

func TestLiveHidesContent(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("watch", admin.Observe))
	e := w.live(w.page("/console/"))
	r := b.ask("museum", `{"city":"Bern"}`)
	if got := e.until(r.Reply.ID.String()); strings.Contains(got, "closed") || strings.Contains(got, "city") {
		t.Errorf("the stream shows content: %s", got)
	}
}

func TestLiveConversations(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	e := w.live(w.page("/console/conversations"))
	r := b.ask("weather", `{"city":"Bern"}`)
	if got := e.until(`id="c-` + r.Conversation.String()); !strings.Contains(got, "weather") {
		t.Errorf("the row of a conversation: %s", got)
	}
}

// TestLiveFrame: pages without rows of their own still show the hub's health.
func TestLiveFrame(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("root", admin.Administer))
	e := w.live(w.page("/console/audit"))
	e.until(`id="health"`)
	b.forge("agent://evil.example")
	b.clock.move(2 * time.Second) // a status is kept for a second
	e.until("refused a minute")
}

func TestLiveEndsWithTheSession(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	e := w.live(w.page("/console/"))
	if err := b.api.RevokeToken(context.Background(), "ops", false); err != nil {
		t.Fatal(err)
	}
	for {
		name, data, ok := e.next()
		if !ok {
			t.Fatal("the stream ended without a word")
		}
		if name == "end" {
			if data == "" {
				t.Error("the page is not told why")
			}
			break
		}
	}
	if _, _, ok := e.next(); ok {
		t.Error("the stream goes on")
	}
}

// TestLiveDoesNotKeepASession: pages that nobody looks at open streams too.
func TestLiveDoesNotKeepASession(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	page := w.page("/console/")
	for range 2 {
		b.clock.move(29 * time.Minute)
		w.live(page).end()
		if status, _ := w.do("GET", "/console/", nil, "Parley-Live", "1"); status != http.StatusOK {
			t.Fatalf("the session ended early: %d", status)
		}
	}
	b.clock.move(3 * time.Minute)
	if status, _ := w.do("GET", "/console/", nil); status != http.StatusUnauthorized {
		t.Errorf("after an hour of streams: %d", status)
	}
}

func TestLiveEndsWithTheHub(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	e := w.live(w.page("/console/"))
	e.until(`id="health"`)
	closed := make(chan error, 1)
	go func() { closed <- b.node.Close(context.Background()) }()
	for {
		name, _, ok := e.next()
		if !ok {
			break
		}
		if name == "end" {
			t.Error("a page must try again when the hub stops")
		}
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
}

func TestLiveOfNoScreen(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("ops", admin.Read))
	for _, path := range []string{"/console/live", "/console/live?screen=x", "/console/live?screen=messages&kind=x"} {
		if status, _ := w.do("GET", path, nil); status != http.StatusBadRequest {
			t.Errorf("%s: %d", path, status)
		}
	}
	if status, _ := b.browser().do("GET", "/console/live?screen=messages", nil); status != http.StatusUnauthorized {
		t.Errorf("without a session: %d", status)
	}
}

// TestStreamsAreBounded: open pages take their places from the callers that may wait at once.
func TestStreamsAreBounded(t *testing.T) {
	b := withAgents(t)
	w := b.entered(b.token("root", admin.Administer))
	page := w.page("/console/audit")
	var last *events
	for range 256 {
		last = w.live(page)
	}
	path := html.UnescapeString(streamPath.FindStringSubmatch(page)[1])
	if status, body := w.do("GET", path, nil); status != http.StatusServiceUnavailable ||
		!strings.Contains(body, "256 callers wait") {
		t.Fatalf("one stream too many: %d %s", status, body)
	}
	last.end()
	for { // the hub notices that the reader is gone
		r, err := http.NewRequest("GET", w.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := w.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return
		}
	}
}
