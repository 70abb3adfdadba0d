package console

import (
	"bytes"
	"context"
	"net/url"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/sse"
)

// This file keeps open pages up to date: /console/live?screen=messages&show=failed is the event stream of that page.
// Its events are elements that the page's script puts in the place of those with the same id, or adds to the rows if
// they are new; see static/live.js.

// A feed pushes the changes of a screen to its open pages. Every page gets the hub's part (health, dead letters).
type feed struct {
	// filter chooses the news of the hub that the screen wants.
	filter func(q *request) (admin.TimelineFilter, error)
	// start pushes the changes since the page was made; nil: there are none to push.
	start func(c *Console, q *request, made time.Time, out *pushes) error
	// news pushes what changed, at most four times a second.
	news func(c *Console, q *request, b *admin.Batch, out *pushes) error
	// tick pushes the changes that come without news; it is called every few seconds. nil: there are none.
	tick func(c *Console, q *request, out *pushes) error
}

// feeds are the screens with live updates, by the name that a screen gives to [request.live].
var feeds = map[string]feed{
	"messages":      {timelineOf, (*Console).messagesSince, (*Console).messagesNews, nil},
	"conversations": {conversationNews, (*Console).conversationsSince, (*Console).conversationsNews, nil},
	"conversation":  {oneConversation, (*Console).conversationSince, (*Console).conversationNews, nil},
	"agents":        {nothingNew, (*Console).agentsSince, nil, (*Console).agentsTick},
	"undelivered":   {nothingNew, (*Console).undeliveredSince, nil, (*Console).undeliveredTick},
	"frame":         {nothingNew, nil, nil, nil},
}

const (
	livePath = Base + "live"

	tickEvery    = 2 * time.Second
	tickShare    = 100 // a page is at most a hundredth of the time looked at for what changes without news
	sessionEvery = time.Minute
	streamStall  = 30 * time.Second // a reader that takes nothing for this long is gone
	streamBeat   = 15 * time.Second
)

// live notes that this page has a stream: that of a feed, with the page's own parameters.
func (q *request) live(feed string, query url.Values) {
	v := url.Values{"screen": {feed}}
	for k := range query {
		v.Set(k, query.Get(k))
	}
	q.stream = v
}

// streamOf is the address of a page's stream.
func streamOf(q *request) string {
	v := q.stream
	if v == nil {
		v = url.Values{"screen": {"frame"}}
	}
	v.Set("made", q.now.UTC().Format(time.RFC3339Nano))
	return livePath + "?" + v.Encode()
}

// serveLive serves the stream of a page. It ends with the session, and when the hub stops.
func (c *Console) serveLive(q *request) {
	u := q.r.URL.Query()
	f, ok := feeds[u.Get("screen")]
	if !ok {
		c.fail(q.w, q.r, q, parley.Refuse(parley.Malformed, "no screen %.40q has live updates", u.Get("screen")), 0)
		return
	}
	filter, err := f.filter(q)
	if err != nil {
		c.fail(q.w, q.r, q, err, 0)
		return
	}
	ctx, cancel := context.WithCancel(q.r.Context())
	defer cancel()
	news, err := c.watch(ctx, q.by, filter)
	if err != nil {
		c.fail(q.w, q.r, q, err, 0)
		return
	}
	w := sse.Start(q.w, "text/event-stream",
		sse.Options{Stall: streamStall, Idle: streamBeat, Beat: ": \n\n", Gone: cancel})
	defer w.Close()
	made, err := time.Parse(time.RFC3339Nano, u.Get("made"))
	if err != nil {
		made = q.now
	}
	out := newPushes(w.Write)
	(&stream{out: out, session: func() error { return c.still(q) },
		start: func() error { return c.startFeed(q, f, made, out) },
		news:  func(b *admin.Batch) error { return c.newsOf(q, f, b, out) },
		tick:  func() error { return c.tickFeed(q, f, out) }}).run(ctx, news)
}

// startFeed pushes the changes between the page and its stream.
func (c *Console) startFeed(q *request, f feed, made time.Time, out *pushes) error {
	if f.start != nil {
		if err := f.start(c, q, made, out); err != nil {
			return err
		}
	}
	return c.pushFrame(q, out)
}

// newsOf pushes a batch.
func (c *Console) newsOf(q *request, f feed, b *admin.Batch, out *pushes) error {
	q.now = c.c.Now()
	out.missed(b.Missed)
	if f.news == nil {
		return nil
	}
	return f.news(c, q, b, out)
}

func (c *Console) tickFeed(q *request, f feed, out *pushes) error {
	q.now = c.c.Now()
	if begun := time.Now(); f.tick != nil && !begun.Before(q.rest) {
		if err := f.tick(c, q, out); err != nil {
			return err
		}
		q.rest = begun.Add(tickShare * time.Since(begun))
	}
	return c.pushFrame(q, out)
}

// pushFrame pushes the hub's part of the page.
func (c *Console) pushFrame(q *request, out *pushes) error {
	f := c.frame(q)
	for _, name := range []string{"health", "dead"} { // ids as the templates
		html, err := c.part("messages", name, f)
		if err != nil {
			return err
		}
		out.element(name, html)
	}
	return nil
}

// still asks whether the session still is. The stream alone does not keep it.
func (c *Console) still(q *request) error {
	k, err := q.r.Cookie(c.cookie())
	if err != nil {
		return err
	}
	_, err = c.admin.Sessions().Find(k.Value, false)
	return err
}

// watch follows the hub in another goroutine, which ends with ctx. An error is that of the beginning.
func (c *Console) watch(ctx context.Context, by admin.Actor, f admin.TimelineFilter) (<-chan admin.Batch, error) {
	news := make(chan admin.Batch)
	started := make(chan error, 1)
	go func() {
		defer close(news)
		for b, err := range c.admin.Watch(ctx, by, f, func() { started <- nil }) {
			if err != nil {
				select {
				case started <- err:
				default:
					c.log.Warn("a live page of the console ends", "error", err)
				}
				return
			}
			select {
			case news <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	select {
	case err := <-started:
		return news, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stream is the stream of one page.
type stream struct {
	out         *pushes
	start, tick func() error
	news        func(*admin.Batch) error
	session     func() error // whether the session still is
}

// run pushes until the reader, the session or the hub is gone. A page whose stream just ends tries again.
func (s *stream) run(ctx context.Context, news <-chan admin.Batch) {
	ticks, sessions := time.NewTicker(tickEvery), time.NewTicker(sessionEvery)
	defer ticks.Stop()
	defer sessions.Stop()
	err := s.start()
	for err == nil {
		if err = s.out.flush(); err != nil {
			return // the reader is gone
		}
		select {
		case b, ok := <-news:
			if !ok { // the hub stops, or the session ended
				s.end(s.session())
				return
			}
			err = s.news(&b)
		case <-ticks.C:
			err = s.tick()
		case <-sessions.C:
			err = s.session()
		case <-s.out.due():
		case <-ctx.Done():
			s.end(s.session())
			return
		}
	}
	s.end(err)
}

// end tells the page why it gets no more.
func (s *stream) end(err error) {
	if err != nil {
		_ = s.out.write(event("end", []byte(parley.AsError(err).Text))) // if it fails, the reader is gone
	}
}

// event writes a server-sent event. A line break of any kind in the data begins another line of data.
func event(name string, data []byte) []byte {
	var b bytes.Buffer
	b.WriteString("event: " + name + "\n")
	data = bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
	for line := range bytes.SplitSeq(data, []byte("\n")) {
		b.WriteString("data: ")
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// nothingNew is the filter of screens of which only the hub's part changes.
func nothingNew(*request) (admin.TimelineFilter, error) {
	f := admin.TimelineFilter{}
	f.Conversation = parley.ID{1} // of which there is no message
	return f, nil
}
