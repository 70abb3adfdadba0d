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

// A feed is what a screen pushes to its open pages. The hub's part (health, dead letters) is pushed to every page.
type feed struct {
	// filter chooses the news of the hub that the screen wants.
	filter func(q *request) (admin.TimelineFilter, error)
	// start pushes what changed since the page was made; nil: nothing.
	start func(c *Console, q *request, made time.Time, out *pushes) error
	// news pushes what changed, at most four times a second.
	news func(c *Console, q *request, b *admin.Batch, out *pushes) error
	// tick pushes what changes without news; it is called every few seconds. nil: nothing does.
	tick func(c *Console, q *request, out *pushes) error
}

// feeds are the screens with live updates, by the name that a screen gives to [request.live].
var feeds = map[string]feed{
	"messages":      {timelineOf, (*Console).messagesSince, (*Console).messagesNews, nil},
	"conversations": {conversationNews, (*Console).conversationsSince, (*Console).conversationsNews, nil},
	"frame":         {nothingNew, nil, nil, nil},
}

const (
	livePath = Base + "live"

	frameEvery   = 2 * time.Second
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
	s := &stream{c: c, q: q, feed: f, out: newPushes(w.Write), made: q.now}
	if t, err := time.Parse(time.RFC3339Nano, u.Get("made")); err == nil {
		s.made = t
	}
	s.run(ctx, news)
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
	c    *Console
	q    *request
	feed feed
	out  *pushes
	made time.Time // when the page was made
}

// run pushes until the reader, the session or the hub is gone. A page whose stream just ends tries again.
func (s *stream) run(ctx context.Context, news <-chan admin.Batch) {
	frames, sessions := time.NewTicker(frameEvery), time.NewTicker(sessionEvery)
	defer frames.Stop()
	defer sessions.Stop()
	err := s.opened()
	for err == nil {
		select {
		case b, ok := <-news:
			if !ok { // the hub stops, or the session ended
				s.end(s.session())
				return
			}
			s.out.missed(b.Missed)
			if s.feed.news != nil {
				s.q.now = s.c.c.Now()
				err = s.feed.news(s.c, s.q, &b, s.out)
			}
		case <-frames.C:
			s.q.now = s.c.c.Now()
			s.frame()
			if s.feed.tick != nil {
				err = s.feed.tick(s.c, s.q, s.out)
			}
		case <-sessions.C:
			err = s.session()
		case <-s.out.due():
		case <-ctx.Done():
			s.end(s.session())
			return
		}
		if err == nil {
			err = s.out.flush()
		}
	}
	s.end(err)
}

// opened pushes what changed between the page and its stream.
func (s *stream) opened() error {
	if s.feed.start != nil {
		if err := s.feed.start(s.c, s.q, s.made, s.out); err != nil {
			return err
		}
	}
	s.frame()
	return s.out.flush()
}

// frame pushes the hub's part of the page.
func (s *stream) frame() {
	f := s.c.frame(s.q)
	for name, id := range map[string]string{"health": "health", "dead": "dead"} {
		if b, err := s.c.part("messages", name, f); err == nil {
			s.out.element(id, b)
		}
	}
}

// session asks whether the session still is. The stream alone does not keep it.
func (s *stream) session() error {
	k, err := s.q.r.Cookie(s.c.cookie())
	if err != nil {
		return err
	}
	_, err = s.c.admin.Sessions().Find(k.Value, false)
	return err
}

// end tells the page why it gets no more.
func (s *stream) end(err error) {
	if err == nil {
		return
	}
	if parley.CodeOf(err) == parley.Internal {
		s.c.log.Error("a live page of the console failed", "error", err)
	}
	_ = s.out.write(event("end", []byte(parley.AsError(err).Text))) // if it fails, the reader is gone
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
