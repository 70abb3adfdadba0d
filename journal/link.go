package journal

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
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

func (o *outgoing) message() *nats.Msg {
	m := &nats.Msg{Subject: o.subject, Data: o.data}
	if o.msgID == "" && o.ttl == 0 && o.expect == nil {
		return m
	}
	m.Header = make(nats.Header, 4)
	if o.msgID != "" {
		m.Header[headerMsgID] = []string{o.msgID}
	}
	if o.ttl != 0 {
		m.Header[headerTTL] = []string{strconv.FormatInt(o.ttl, 10)}
	}
	if o.expect != nil {
		m.Header[headerExpect] = []string{strconv.FormatUint(o.expect.seq, 10)}
		if o.expect.subject != o.subject {
			m.Header[headerExpectSubject] = []string{o.expect.subject}
		}
	}
	return m
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

// publisher sends messages and collects their acks; one group at a time.
type publisher struct {
	whole  *link
	l      *link // it, or its side
	prefix string
	sub    *nats.Subscription

	mu    sync.Mutex
	group uint64
	left  int
	acks  []ack
	done  chan struct{}
}

func newPublisher(whole *link, sides bool) (*publisher, error) {
	l := whole
	if sides {
		l = whole.side
	}
	p := &publisher{whole: whole, l: l, prefix: l.nc.NewInbox() + "."}
	sub, err := l.nc.Subscribe(p.prefix+"*", p.receive)
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	p.sub = sub
	return p, nil
}

func (p *publisher) receive(m *nats.Msg) {
	tail := m.Subject[len(p.prefix):]
	group, index, ok := splitInbox(tail)
	if !ok {
		return
	}
	a := parseAck(m)
	p.mu.Lock()
	defer p.mu.Unlock()
	if group != p.group || index >= len(p.acks) || p.acks[index].arrived {
		return
	}
	p.acks[index] = a
	if p.left--; p.left == 0 {
		close(p.done)
	}
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

// begin prepares for n acks.
func (p *publisher) begin(n int) (group string, done <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.group++
	p.left = n
	p.acks = make([]ack, n)
	p.done = make(chan struct{})
	return strconv.FormatUint(p.group, 36), p.done
}

// plain publishes each message by itself and gives an ack for each; those that
// did not arrive in time have arrived false.
func (p *publisher) plain(msgs []*outgoing, timeout time.Duration) []ack {
	group, done := p.begin(len(msgs))
	for i, o := range msgs {
		m := o.message()
		m.Reply = p.prefix + group + "-" + strconv.FormatUint(uint64(i), 36)
		if err := p.l.nc.PublishMsg(m); err != nil {
			return p.refused(i, err, done, timeout)
		}
	}
	return p.wait(done, timeout)
}

// refused completes a group of which the client took only the first n.
func (p *publisher) refused(n int, err error, done <-chan struct{}, timeout time.Duration) []ack {
	p.mu.Lock()
	for i := n; i < len(p.acks); i++ {
		p.acks[i] = ack{arrived: true, nobody: true, err: &apiError{Description: err.Error()}}
		p.left--
	}
	if p.left == 0 {
		close(p.done)
	}
	p.mu.Unlock()
	return p.wait(done, timeout)
}

// batch publishes all messages as one, and gives the ack of its commit: its
// seq is the last message's.
func (p *publisher) batch(msgs []*outgoing, timeout time.Duration) ack {
	group, done := p.begin(1)
	id := p.prefix[len(p.prefix)-min(len(p.prefix), 23):] + group
	for i, o := range msgs {
		m := o.message()
		if m.Header == nil {
			m.Header = make(nats.Header, 3)
		}
		m.Header[headerBatchID] = []string{id}
		m.Header[headerBatchSequence] = []string{strconv.Itoa(i + 1)}
		if i == len(msgs)-1 {
			m.Header[headerBatchCommit] = []string{"1"}
			m.Reply = p.prefix + group + "-0"
		}
		if err := p.l.nc.PublishMsg(m); err != nil {
			// Without its commit the engine drops the batch.
			return ack{arrived: true, nobody: true, err: &apiError{Description: err.Error()}}
		}
	}
	return p.wait(done, timeout)[0]
}

func (p *publisher) wait(done <-chan struct{}, timeout time.Duration) []ack {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	case <-p.l.down:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.group++ // what comes later is of no group
	return p.acks
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
		return nil, errNoMessage
	}
	return nil, &apiError{Description: "status " + status + " " + m.Header.Get("Description")}
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
	m, err := l.ask(ctx, "$JS.API.STREAM.INFO."+stream, nil)
	if err != nil {
		return 0, err
	}
	var x struct {
		Error *apiError `json:"error"`
		State struct {
			LastSeq uint64 `json:"last_seq"`
		} `json:"state"`
	}
	if err := json.Unmarshal(m.Data, &x); err != nil {
		return 0, err
	}
	if x.Error != nil {
		return 0, x.Error
	}
	return x.State.LastSeq, nil
}

const (
	askAgain = 2 * time.Second  // a stream without a leader answers nobody
	askFor   = 15 * time.Second // longer than an election takes
)

// ask requests something of a stream's leader, again while there is none.
func (l *link) ask(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	for {
		once, done := context.WithTimeout(ctx, askAgain)
		m, err := l.nc.RequestWithContext(once, subject, body)
		done()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, nats.ErrTimeout) {
			return m, err
		}
	}
}

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
			if err != nil {
				return err
			}
			s, status := directMessage(m)
			if status == "204" || status == "404" {
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
			return nil
		}
		// That was the end as a replica knows it, which may lag behind. The
		// leader has the last word.
		s, err := l.leader(ctx, stream, fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q}`, seq, cmp.Or(subject, ">")))
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
