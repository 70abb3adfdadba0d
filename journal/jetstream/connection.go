package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/internal/sleep"
	"github.com/parley-hub/parley/journal/store"
)

// A frozen server does not close its connections. The client reconnects to another
// one after two pings without an answer, or after leaveAfter without an answer to
// any request, as from a server that is cut off from the others.
const (
	pingEvery     = time.Second
	pingsMissed   = 2
	dialWithin    = time.Second
	writeWithin   = 2 * time.Second
	reconnectWait = 100 * time.Millisecond
	leaveAfter    = 5 * time.Second

	firstPause = 10 * time.Millisecond // before a request is repeated
	maxPause   = 250 * time.Millisecond

	quickTries = 8 // later tries wait longer for the answer
)

func (s *Store) connect() (err error) {
	o := &s.outage
	o.log, o.now, o.lastAnswer = s.cfg.Log, s.cfg.Now, s.cfg.Now()
	options := append([]nats.Option{
		nats.Name("parley journal " + s.cfg.Name),
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectWait, reconnectWait),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(pingsMissed),
		nats.Timeout(dialWithin), nats.FlusherTimeout(writeWithin),
		// A request that cannot be sent now fails; it is not sent later.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if s.ctx.Err() == nil {
				o.begin(err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				o.begin(err)
			}
			s.cfg.Log.Debug("NATS", "err", err)
		}),
	}, s.cfg.Options...)
	if s.nc, err = nats.Connect(s.cfg.URL, options...); err != nil {
		return fmt.Errorf("cannot connect to %s, which must be up and reachable from here "+
			"(NATS 2.12 or later, with JetStream): %w", redact(s.cfg.URL), err)
	}
	return nil
}

var userinfo = regexp.MustCompile(`[^,]*@`)

// redact removes user and password from a list of URLs.
func redact(urls string) string { return userinfo.ReplaceAllString(urls, "…@") }

func (s *Store) server() string { return cmp.Or(s.nc.ConnectedUrlRedacted(), redact(s.cfg.URL)) }

// outage is a time without answers from the servers. It logs a line at its
// beginning, one each minute, and one at its end. Outages less than a minute apart
// count as one.
type outage struct {
	log *slog.Logger
	now func() time.Time

	mu         sync.Mutex
	since      time.Time // zero: no outage
	why        error
	lastLogged time.Time // time of the last line
	endToLog   bool      // the line about the end is still due
	lastAnswer time.Time
}

const remindEvery = time.Minute

// begin notes a request without an answer. silent: no request has been answered for
// leaveAfter; the time then starts again.
func (o *outage) begin(why error) (silent bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	if o.since.IsZero() {
		o.since = now
	}
	o.why = why
	if now.Sub(o.lastLogged) >= remindEvery {
		o.lastLogged, o.endToLog = now, true
		o.log.Warn("the NATS servers do not answer; they are asked again", "since", o.since, "err", why)
	}
	if silent = now.Sub(o.lastAnswer) >= leaveAfter; silent {
		o.lastAnswer = now
	}
	return silent
}

// answered notes that a server has answered.
func (o *outage) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lastAnswer, o.since, o.why = o.now(), time.Time{}, nil
	if o.endToLog {
		o.endToLog = false
		o.log.Info("the NATS servers answer again")
	}
}

// unanswered notes a request without an answer, and reconnects to another server if
// no request was answered for leaveAfter.
func (s *Store) unanswered(err error) {
	if !s.outage.begin(err) || !s.nc.IsConnected() || len(s.nc.Servers()) < 2 {
		return
	}
	if err := s.nc.ForceReconnect(); err != nil {
		s.cfg.Log.Debug("NATS", "err", err)
	}
}

// Healthy implements [store.Store].
func (s *Store) Healthy() error {
	if s.ctx.Err() != nil {
		return store.ErrClosed
	}
	s.outage.mu.Lock()
	since, why := s.outage.since, s.outage.why
	s.outage.mu.Unlock()
	if since.IsZero() {
		return nil
	}
	// The caller may now send no more requests, so this one finds out when the outage ends.
	go func() {
		_, err := s.attempt(s.ctx, s.cfg.answerWithin, &nats.Msg{Subject: apiInfo + s.stateStream()})
		s.cfg.Log.Debug("the NATS servers were asked whether they answer again", "err", err)
	}()
	return fmt.Errorf("%w: the NATS servers have not answered since %s: %w",
		store.ErrBusy, since.Format(time.RFC3339), why)
}

// Subjects of the servers' API. The client library's calls are not used: they read
// from any server, and wait too long for a frozen one.
const (
	apiNames  = "$JS.API.STREAM.NAMES"
	apiInfo   = "$JS.API.STREAM.INFO."
	apiCreate = "$JS.API.STREAM.CREATE."
	apiUpdate = "$JS.API.STREAM.UPDATE."
	apiPurge  = "$JS.API.STREAM.PURGE."
	apiGet    = "$JS.API.STREAM.MSG.GET."
	apiDelete = "$JS.API.STREAM.MSG.DELETE."
	apiDirect = "$JS.API.DIRECT.GET."
)

// Error codes of the servers that the client library does not name.
const (
	codeNoPeers        jetstream.ErrorCode = 10005 // no server for the replicas
	codeInFlight       jetstream.ErrorCode = 10158
	codeIncomplete     jetstream.ErrorCode = 10176 // the leader does not have the whole batch
	codeTooManyBatches jetstream.ErrorCode = 10210
)

// refused returns the caller's error if a request must not be repeated. nil: the
// servers gave no answer, or may accept the same request later.
func refused(err error) error {
	var e *jetstream.APIError
	switch {
	case errors.Is(err, store.ErrClosed), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrUnknown):
		return err
	case !errors.As(err, &e):
		return nil
	}
	switch e.ErrorCode {
	case codeIncomplete, codeInFlight, codeTooManyBatches, codeNoPeers,
		jetstream.JSErrCodeStreamWrongLastSequenceConstant: // another write is in flight
		return nil
	case jetstream.JSErrCodeStreamWrongLastSequence:
		return fmt.Errorf("%w: %w", store.ErrConflict, e)
	case 10023, 10047, 10002, 10028, 10077:
		return fmt.Errorf("%w: a limit of the NATS servers is reached; raise it or remove old records: %w",
			store.ErrNoSpace, e)
	case jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return fmt.Errorf("%w: %w", store.ErrTooLarge, e)
	case jetstream.JSErrCodeJetStreamNotEnabledForAccount, jetstream.JSErrCodeJetStreamNotEnabled:
	default:
		if e.Code == 503 {
			return nil
		}
	}
	return fmt.Errorf("%w: %w", store.ErrBusy, e)
}

// notStored reports that the request cannot have been stored: it was not sent, or no
// server accepted it.
func notStored(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) || errors.Is(err, store.ErrClosed) || errors.Is(err, nats.ErrNoResponders) ||
		errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionClosed) ||
		errors.Is(err, nats.ErrMaxPayload)
}

// answerTimeout is how long a try waits for its answer. The first tries are short,
// because requests get no answer while a stream has no leader. Later tries are
// longer, because the servers may be slow.
func (s *Store) answerTimeout(try int) time.Duration {
	return s.cfg.answerWithin * time.Duration(1+try/quickTries)
}

// answer is an answer of the API: an acknowledgement, a stream, names of streams,
// or a message.
type answer struct {
	Error   *jetstream.APIError    `json:"error"`
	Seq     uint64                 `json:"seq"`
	Config  jetstream.StreamConfig `json:"config"`
	State   jetstream.StreamState  `json:"state"`
	Streams []string               `json:"streams"`
	Message stored                 `json:"message"`
}

// attempt sends a request and waits for the answer.
func (s *Store) attempt(ctx context.Context, within time.Duration, m *nats.Msg) (a answer, err error) {
	s.requests.RLock()
	defer s.requests.RUnlock()
	if s.ctx.Err() != nil {
		return a, store.ErrClosed
	}
	once, done := context.WithTimeout(ctx, within)
	defer done()
	got, err := s.nc.RequestMsgWithContext(once, m)
	if err == nil {
		err = json.Unmarshal(got.Data, &a)
	}
	if a.Error != nil {
		err = a.Error
	}
	// A server that is cut off from the others answers 503.
	switch {
	case err == nil || a.Error != nil && a.Error.Code != 503:
		s.outage.answered()
	case ctx.Err() == nil:
		s.unanswered(err)
	}
	return a, err
}

// request sends a repeatable request until there is an answer.
func (s *Store) request(ctx context.Context, within time.Duration, subject string, body any) (a answer, err error) {
	m := &nats.Msg{Subject: subject}
	if body != nil {
		if m.Data, err = json.Marshal(body); err != nil {
			return a, err
		}
	}
	firstTry := 0
	if within > s.cfg.Timeout { // at start: making streams takes longer, and repeats slow it down
		firstTry = quickTries
	}
	err = retry(ctx, within, func(ctx context.Context, try int) error {
		a, err = s.attempt(ctx, s.answerTimeout(firstTry+try), m)
		return err
	})
	return a, err
}

// errNoTime ends a retry: an answer to another try would come too late.
var errNoTime = errors.New("no time is left for another try")

// retry repeats do until it gets an answer.
func retry(ctx context.Context, within time.Duration, do func(ctx context.Context, try int) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for try := range tries(ctx) {
		if err = do(ctx, try); err == nil || refused(err) != nil {
			return err
		}
		if errors.Is(err, errNoTime) {
			break
		}
	}
	return fmt.Errorf("%w: %w", store.ErrBusy, errors.Join(err, ctx.Err()))
}

// tries counts tries until ctx ends, with growing pauses.
func tries(ctx context.Context) iter.Seq[int] {
	return func(yield func(int) bool) {
		pause := firstPause
		for n := 0; ctx.Err() == nil && yield(n); n++ {
			_ = sleep.For(ctx, pause) // the loop sees its end
			pause = min(2*pause, maxPause)
		}
	}
}
