package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// link is a connection to a running engine. The embedded engine gets a new one
// whenever it is reopened.
type link struct {
	srv *server.Server // nil: external
	log *engineLog     // of srv
	nc  *nats.Conn
	js  jetstream.JetStream

	side *link // what has the state and the checkpoints; itself when external

	fail *sync.Once
	down chan struct{} // closed when the engine failed
}

func (l *link) close() { l.fail.Do(func() { close(l.down) }) }

func (l *link) failed() bool {
	select {
	case <-l.down:
		return true
	default:
		return false
	}
}

// Headers and error codes of the engine.
const (
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
	headerExpect        = "Nats-Expected-Last-Subject-Sequence"
	headerExpectSubject = "Nats-Expected-Last-Subject-Sequence-Subject"
	headerTTL           = "Nats-TTL"
	headerMsgID         = "Nats-Msg-Id"

	codeWrongLast     = 10071
	codeWrongLastNone = 10164
	codeDuplicate     = 10201
	codeInFlight      = 10158
	codeIncomplete    = 10176
	codeTooMany       = 10199
	codeTooManyFlying = 10210
)

// apiError is how the engine refuses.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	return fmt.Sprintf("the engine says: %s (%d)", e.Description, e.ErrCode)
}

// conflict reports whether a compare-and-set failed.
func (e *apiError) conflict() bool {
	return e != nil && (e.ErrCode == codeWrongLast || e.ErrCode == codeWrongLastNone)
}

// outgoing is one message on its way to the engine.
type outgoing struct {
	subject string
	data    []byte
	msgID   string
	ttl     int64 // seconds; 0: none
	expect  *expectation
}

// expectation is a compare-and-set: the last sequence of a subject.
type expectation struct {
	what    comparison
	subject string
	seq     uint64
}

type comparison int

const (
	ofChain  comparison = iota
	ofFence             // nobody took the lease over
	ofBucket            // no other node made a step that this one has not seen
	ofKey               // no other node recorded the key
	ofLease
	ofState
)

// publish sends o, with the headers given besides its own.
func (o *outgoing) publish(nc *nats.Conn, reply string, h nats.Header) error {
	if h == nil && o.msgID == "" && o.ttl == 0 && o.expect == nil {
		return nc.PublishRequest(o.subject, reply, o.data)
	}
	if h == nil {
		h = make(nats.Header, 4)
	}
	if o.msgID != "" {
		h[headerMsgID] = []string{o.msgID}
	}
	if o.ttl != 0 {
		h[headerTTL] = []string{strconv.FormatInt(o.ttl, 10)}
	}
	if o.expect != nil {
		h[headerExpect] = []string{strconv.FormatUint(o.expect.seq, 10)}
		if o.expect.subject != o.subject {
			h[headerExpectSubject] = []string{o.expect.subject}
		}
	}
	return nc.PublishMsg(&nats.Msg{Subject: o.subject, Reply: reply, Header: h, Data: o.data})
}

// ack is the engine's answer to a message or a batch.
type ack struct {
	seq       uint64
	duplicate bool
	err       *apiError
	arrived   bool
	nobody    bool // no stream took the subject: nothing was stored
}

var (
	ackSeq = []byte(`"seq":`)
	ackErr = []byte(`"error":`)
	ackDup = []byte(`"duplicate":`)
)

func parseAck(m *nats.Msg) (a ack) {
	a.arrived = true
	if len(m.Data) == 0 {
		if m.Header.Get("Status") == "503" {
			a.nobody = true
			a.err = &apiError{Code: 503, Description: "no stream takes the subject"}
			return a
		}
		a.err = &apiError{Description: "an empty answer"}
		return a
	}
	if bytes.Contains(m.Data, ackErr) {
		var x struct {
			Error *apiError `json:"error"`
		}
		if err := json.Unmarshal(m.Data, &x); err != nil || x.Error == nil {
			x.Error = &apiError{Description: "an answer that cannot be read"}
		}
		a.err = x.Error
		return a
	}
	i := bytes.Index(m.Data, ackSeq)
	if i < 0 {
		a.err = &apiError{Description: "an answer that cannot be read"}
		return a
	}
	for _, c := range m.Data[i+len(ackSeq):] {
		if c < '0' || c > '9' {
			break
		}
		a.seq = a.seq*10 + uint64(c-'0')
	}
	a.duplicate = bytes.Contains(m.Data, ackDup)
	return a
}

// publisher sends messages and collects their acks; one group at a time, by one
// goroutine at a time.
type publisher struct {
	whole  *link
	l      *link // it, or its side
	prefix string
	in     chan *nats.Msg // acks, read where they are waited for: nothing runs in between
	timer  *time.Timer

	// deposed begins to look whether who was to send the acks is still there, and
	// the connection on which they were to come, which had been made anew so often.
	// What it gives is closed when not. stop ends it. nil: embedded engine.
	deposed    func(reconnects uint64) (gone <-chan struct{}, stop func())
	doubt      *time.Timer
	reconnects uint64 // before the group was published

	group uint64
	acks  []ack // of the last group
	lost  bool  // those that did not arrive never will
}

// doubtAfter is how long an ack may take before it is asked whether the stream
// has another leader meanwhile, and how long until that is asked again.
const doubtAfter = 2 * time.Second

// maxAcks is how many acks may have come and not be looked at: those of a group
// that was given up, and of the next one.
const maxAcks = 4096

func newPublisher(whole *link, sides bool) (*publisher, error) {
	l := whole
	if sides {
		l = whole.side
	}
	p := &publisher{whole: whole, l: l, prefix: l.nc.NewInbox() + ".", in: make(chan *nats.Msg, maxAcks), timer: time.NewTimer(0), doubt: time.NewTimer(0)}
	p.doubt.Stop()
	_, err := l.nc.ChanSubscribe(p.prefix+"*", p.in)
	return p, err
}

func splitInbox(s string) (group uint64, index int, ok bool) {
	for i := range len(s) {
		if s[i] == '-' {
			g, err1 := strconv.ParseUint(s[:i], 36, 64)
			n, err2 := strconv.ParseUint(s[i+1:], 36, 31)
			return g, int(n), err1 == nil && err2 == nil
		}
	}
	return 0, 0, false
}

// begin prepares for n acks; what comes for an earlier group is of none.
func (p *publisher) begin(n int) {
	p.group++
	p.acks = slices.Grow(p.acks[:0], n)[:n]
	clear(p.acks)
	if p.deposed != nil {
		p.reconnects = p.l.nc.Stats().Reconnects
	}
}

// inbox is where the ack of a message of the group goes.
func (p *publisher) inbox(index int) string {
	var room [64]byte
	b := append(room[:0], p.prefix...)
	b = strconv.AppendUint(b, p.group, 36)
	b = append(b, '-')
	return string(strconv.AppendUint(b, uint64(index), 36))
}

// plain publishes each message by itself and gives an ack for each, good until
// the next group; those that did not arrive in time have arrived false.
func (p *publisher) plain(msgs []*outgoing, timeout time.Duration) []ack {
	p.begin(len(msgs))
	for i, o := range msgs {
		if err := o.publish(p.l.nc, p.inbox(i), nil); err != nil {
			// The client took only those before it.
			for k := i; k < len(msgs); k++ {
				p.acks[k] = ack{arrived: true, nobody: true, err: &apiError{Description: err.Error()}}
			}
			p.wait(i, timeout)
			return p.acks
		}
	}
	p.wait(len(msgs), timeout)
	return p.acks
}

// batch publishes all messages as one, and gives the ack of its commit: its
// seq is the last message's.
func (p *publisher) batch(msgs []*outgoing, timeout time.Duration) ack {
	p.begin(1)
	id := p.prefix[len(p.prefix)-min(len(p.prefix), 23):] + strconv.FormatUint(p.group, 36)
	for i, o := range msgs {
		h := make(nats.Header, 5)
		h[headerBatchID] = []string{id}
		h[headerBatchSequence] = []string{strconv.Itoa(i + 1)}
		reply := ""
		if i == len(msgs)-1 {
			h[headerBatchCommit] = []string{"1"}
			reply = p.inbox(0)
		}
		if err := o.publish(p.l.nc, reply, h); err != nil {
			// Without its commit the engine drops the batch.
			return ack{arrived: true, nobody: true, err: &apiError{Description: err.Error()}}
		}
	}
	p.wait(1, timeout)
	return p.acks[0]
}

// wait collects the first n acks.
func (p *publisher) wait(n int, timeout time.Duration) {
	p.lost = false
	p.timer.Reset(timeout)
	var doubt <-chan time.Time
	if p.deposed != nil {
		p.doubt.Reset(doubtAfter)
		defer p.doubt.Stop()
		doubt = p.doubt.C
	}
	var gone <-chan struct{}
	for n > 0 {
		select {
		case m := <-p.in:
			group, index, ok := splitInbox(m.Subject[len(p.prefix):])
			if ok && group == p.group && index < len(p.acks) && !p.acks[index].arrived {
				p.acks[index] = parseAck(m)
				n--
			}
		case <-doubt:
			var stop func()
			gone, stop = p.deposed(p.reconnects)
			defer stop()
			doubt = nil
		case <-gone:
			p.lost = true
			return
		case <-p.timer.C:
			return
		case <-p.l.down:
			return
		}
	}
}

// stored is a message as a stream holds it.
type stored struct {
	subject string
	seq     uint64
	data    []byte
}

var errNoMessage = errors.New("no such message")

// get reads one message: the one with the sequence, or the last of a subject.
func (l *link) get(ctx context.Context, stream string, seq uint64, subject string) (*stored, error) {
	body := fmt.Appendf(nil, `{"seq":%d}`, seq)
	if subject != "" {
		body = fmt.Appendf(nil, `{"last_by_subj":%q}`, subject)
	}
	if l.srv == nil {
		// A direct get may be answered by a replica that lags behind.
		return l.leader(ctx, stream, body)
	}
	m, err := l.nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+stream, body)
	if err != nil {
		return nil, err
	}
	s, status := directMessage(m)
	switch status {
	case "":
		return s, nil
	case "404":
		return nil, cmp.Or(l.unread(), errNoMessage)
	}
	return nil, &apiError{Description: "status " + status + " " + m.Header.Get("Description")}
}

// unread says why the embedded engine may have found nothing although it is
// there: of a message whose block it cannot open it says the same as of one that
// does not exist.
func (l *link) unread() error {
	if err := spareFiles(readFiles); err != nil {
		return fmt.Errorf("the engine cannot open its files: %w", err)
	}
	return nil
}

// leader reads one message from the stream's leader.
func (l *link) leader(ctx context.Context, stream string, body []byte) (*stored, error) {
	m, err := l.ask(ctx, "$JS.API.STREAM.MSG.GET."+stream, body)
	if err != nil {
		return nil, err
	}
	var x struct {
		Error   *apiError `json:"error"`
		Message *struct {
			Subject string `json:"subject"`
			Seq     uint64 `json:"seq"`
			Data    []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(m.Data, &x); err != nil {
		return nil, err
	}
	switch {
	case x.Message != nil:
		return &stored{x.Message.Subject, x.Message.Seq, x.Message.Data}, nil
	case x.Error != nil && x.Error.Code != 404:
		return nil, x.Error
	}
	return nil, errNoMessage
}

// end asks a stream's leader for the last sequence that it has.
func (l *link) end(ctx context.Context, stream string) (uint64, error) {
	last, _, err := l.tail(ctx, stream)
	return last, err
}

// tail is end, with who leads, and since when it says that it does; empty where
// there is no cluster.
func (l *link) tail(ctx context.Context, stream string) (last uint64, leader string, err error) {
	m, err := l.ask(ctx, "$JS.API.STREAM.INFO."+stream, nil)
	if err != nil {
		return 0, "", err
	}
	var x struct {
		Error *apiError `json:"error"`
		State struct {
			LastSeq uint64 `json:"last_seq"`
		} `json:"state"`
		Cluster struct {
			Leader string `json:"leader"`
			Since  string `json:"leader_since"`
		} `json:"cluster"`
	}
	if err := json.Unmarshal(m.Data, &x); err != nil {
		return 0, "", err
	}
	if x.Error != nil {
		return 0, "", x.Error
	}
	return x.State.LastSeq, x.Cluster.Leader + x.Cluster.Since, nil
}

// behind reports whether a stream's leader has not come to seq yet, of which it
// is known that it is there. It takes a moment to say so, after which it may be
// asked again.
func (l *link) behind(ctx context.Context, stream string, seq uint64) bool {
	last, err := l.end(ctx, stream)
	return err == nil && last < seq && await(ctx, behindBy)
}

// A leader that lags behind is asked again so often, with such a pause: what it
// does not have then, it has lost.
const (
	behindBy    = 5 * time.Millisecond
	behindTries = 400
)

const (
	askAgain = 2 * time.Second  // a stream without a leader answers nobody
	askFor   = 15 * time.Second // longer than an election takes
	askPause = 100 * time.Millisecond
)

// ask requests something of a stream's leader, again while there is none: then
// nobody answers, or another server does that it cannot.
func (l *link) ask(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	for {
		once, done := context.WithTimeout(ctx, askAgain)
		m, err := l.nc.RequestWithContext(once, subject, body)
		done()
		switch {
		case ctx.Err() != nil:
			return m, err
		case err == nil && !leaderless(m), err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) && !errors.Is(err, nats.ErrNoResponders):
			return m, err
		case !await(ctx, askPause) && m != nil:
			return m, nil
		}
	}
}

// await lets a time pass; false: ctx ended before.
func await(ctx context.Context, d time.Duration) bool {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// leaderless: the answer is that there is no leader just now.
func leaderless(m *nats.Msg) bool {
	if !bytes.Contains(m.Data, ackErr) {
		return false
	}
	var x struct {
		Error *apiError `json:"error"`
	}
	return json.Unmarshal(m.Data, &x) == nil && x.Error != nil && x.Error.Code == 503
}

// noReplica is what comes where no replica of a stream answers just now.
var noReplica = &nats.Msg{Header: nats.Header{"Status": {"503"}}}

func directMessage(m *nats.Msg) (s *stored, status string) {
	if st := m.Header.Get("Status"); st != "" {
		return nil, st
	}
	seq, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return nil, "without a sequence"
	}
	return &stored{m.Header.Get("Nats-Subject"), seq, m.Data}, ""
}

// Reading goes in pages: one request, many answers, no consumer that the
// engine would have to keep.
//
// The first pages are small, for who wants little. The others are as large as
// their bytes allow: for each page, the engine counts what a stream in memory
// holds behind it, message by message.
const (
	firstPage     = 512
	largestPage   = 8192
	filterPage    = 4096
	pageBytes     = 4 << 20
	pageTimeLimit = 30 * time.Second
)

// pages reads a stream's messages from seq on, up to and including last, and
// hands them to fn until it returns false.
func (l *link) pages(ctx context.Context, stream string, seq, last uint64, fn func(*stored) bool) error {
	return l.read(ctx, stream, "", max(seq, 1), last, fn)
}

// matching reads a stream's messages of a subject until there are no more.
func (l *link) matching(ctx context.Context, stream, subject string, fn func(*stored) bool) error {
	return l.read(ctx, stream, subject, 1, math.MaxUint64, fn)
}

func (l *link) read(ctx context.Context, stream, subject string, seq, last uint64, fn func(*stored) bool) error {
	inbox := l.nc.NewInbox()
	sub, err := l.nc.SubscribeSync(inbox)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	tries, absent := 0, 0
	for page := firstPage; seq <= last; page = min(2*page, largestPage) {
		body := fmt.Appendf(nil, `{"seq":%d,"batch":%d,"max_bytes":%d}`, seq, page, pageBytes)
		if subject != "" {
			body = fmt.Appendf(nil, `{"seq":%d,"batch":%d,"max_bytes":%d,"next_by_subj":%q}`, seq, filterPage, pageBytes, subject)
		}
		if err := l.nc.PublishRequest("$JS.API.DIRECT.GET."+stream, inbox, body); err != nil {
			return err
		}
		got := 0
		for {
			m, err := l.next(ctx, sub)
			if errors.Is(err, nats.ErrNoResponders) {
				m, err = noReplica, nil
			}
			if err != nil {
				return err
			}
			s, status := directMessage(m)
			if status == "204" || status == "404" {
				break
			}
			if status == noReplica.Header.Get("Status") && l.srv == nil && absent < int(askFor/askPause) && await(ctx, askPause) {
				absent++
				got++
				break
			}
			if status != "" {
				return &apiError{Description: "status " + status + " " + m.Header.Get("Description")}
			}
			got++
			if s.seq > last {
				return nil
			}
			seq = s.seq + 1
			if !fn(s) {
				return nil
			}
		}
		if got > 0 {
			continue
		}
		if l.srv != nil {
			return l.unread()
		}
		// That was the end as a replica knows it, which may lag behind. The
		// leader has the last word.
		s, err := l.leader(ctx, stream, fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q}`, seq, cmp.Or(subject, ">")))
		if tries++; errors.Is(err, errNoMessage) && last < math.MaxUint64 && tries < behindTries && l.behind(ctx, stream, last) {
			continue
		}
		if errors.Is(err, errNoMessage) || err == nil && s.seq > last {
			return nil
		}
		if err != nil {
			return err
		}
		seq = s.seq + 1
		if !fn(s) {
			return nil
		}
	}
	return nil
}

// next waits for one message of a page.
func (l *link) next(ctx context.Context, sub *nats.Subscription) (*nats.Msg, error) {
	// Most are there already: a context for each would cost more than they do.
	if m, err := sub.NextMsg(1); !errors.Is(err, nats.ErrTimeout) {
		return m, err
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeLimit)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// last asks the leader for a stream's state.
func (l *link) last(ctx context.Context, stream string) (jetstream.StreamState, error) {
	s, err := l.js.Stream(ctx, stream)
	if err != nil {
		return jetstream.StreamState{}, err
	}
	return s.CachedInfo().State, nil
}
