package jetstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/journal/store"
)

// A server that freezes closes no connection. It is left when it answers two
// pings not, or when it, and all behind it, has answered no request for
// leaveAfter, as one that is cut off from the others.
const (
	pingEvery     = time.Second
	pingsMissed   = 2
	dialWithin    = time.Second
	writeWithin   = 2 * time.Second
	reconnectWait = 100 * time.Millisecond
	leaveAfter    = 5 * time.Second

	firstPause = 10 * time.Millisecond // before a request is repeated
	maxPause   = 250 * time.Millisecond
)

func (s *Store) connect() (err error) {
	o := &s.outage
	o.log, o.now = s.cfg.Log, s.cfg.Now
	o.answered(s.cfg.Now())
	options := append([]nats.Option{
		nats.Name("parley journal " + s.cfg.Name),
		nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait), nats.ReconnectJitter(reconnectWait, reconnectWait),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(pingsMissed),
		nats.Timeout(dialWithin), nats.FlusherTimeout(writeWithin),
		// What cannot be sent now is refused, not sent some time later.
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
		return fmt.Errorf("cannot connect to %s, which must be up and reachable from here (NATS 2.12 or later, with JetStream): %w", redact(s.cfg.URL), err)
	}
	return nil
}

// redact leaves user and password out of a list of URLs.
func redact(list string) string {
	var out []string
	for one := range strings.SplitSeq(list, ",") {
		if u, err := url.Parse(strings.TrimSpace(one)); err == nil {
			one = u.Redacted()
		} else if _, after, found := strings.Cut(one, "@"); found {
			one = "…@" + after
		}
		out = append(out, one)
	}
	return strings.Join(out, ",")
}

func (s *Store) server() string {
	if u := s.nc.ConnectedUrlRedacted(); u != "" {
		return u
	}
	return redact(s.cfg.URL)
}

// outage is a time in which the servers do not answer. The log has a line when
// it begins, one each minute while it lasts, and one when it ends; outages that
// follow each other within a minute are one.
type outage struct {
	log interface {
		Warn(string, ...any)
		Info(string, ...any)
	}
	now func() time.Time

	mu    sync.Mutex
	since time.Time // zero: there is none
	why   error
	said  time.Time // the last line about one
	owed  bool      // a line that says that it has ended
	heard time.Time // the last answer
}

const remindEvery = time.Minute

func (o *outage) begin(why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	if o.since.IsZero() {
		o.since = now
	}
	o.why = why
	if now.Sub(o.said) >= remindEvery {
		o.said, o.owed = now, true
		o.log.Warn("the NATS servers do not answer; they are asked again", "since", o.since, "err", why)
	}
}

// answered notes that a server has answered.
func (o *outage) answered(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.heard, o.since, o.why = now, time.Time{}, nil
	if o.owed {
		o.owed = false
		o.log.Info("the NATS servers answer again")
	}
}

// silent reports whether no server has answered for a time, which begins anew.
func (o *outage) silent(d time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.now()
	if now.Sub(o.heard) < d {
		return false
	}
	o.heard = now
	return true
}

func (o *outage) state() (since time.Time, why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.since, o.why
}

// unanswered notes that a request was not answered, and leaves a server that has
// answered none for a while.
func (s *Store) unanswered(err error) {
	s.outage.begin(err)
	if !s.nc.IsConnected() || len(s.nc.Servers()) < 2 || !s.outage.silent(leaveAfter) {
		return
	}
	if err := s.nc.ForceReconnect(); err != nil {
		s.cfg.Log.Debug("NATS", "err", err)
	}
}

// Healthy implements [store.Store].
func (s *Store) Healthy() error {
	if err := s.enter(s.ctx); err != nil {
		return err
	}
	since, why := s.outage.state()
	if since.IsZero() {
		s.leave()
		return nil
	}
	// Where nothing is asked because of this answer, nobody would notice the end.
	go func() {
		defer s.leave()
		if _, err := s.once(s.ctx, &nats.Msg{Subject: apiInfo + s.stateStream()}, 0); err != nil {
			s.cfg.Log.Debug("NATS", "err", err)
		}
	}()
	return fmt.Errorf("%w: the NATS servers have not answered since %s: %w",
		store.ErrBusy, since.Format(time.RFC3339), why)
}

// The subjects of the servers' API that are asked by hand.
const (
	apiInfo   = "$JS.API.STREAM.INFO."
	apiGet    = "$JS.API.STREAM.MSG.GET."
	apiDelete = "$JS.API.STREAM.MSG.DELETE."
	apiPurge  = "$JS.API.STREAM.PURGE."
	apiDirect = "$JS.API.DIRECT.GET."
)

// apiError is how the engine refuses.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string {
	return fmt.Sprintf("the NATS server says: %s (%d)", e.Description, e.ErrCode)
}

const (
	codeWrongLast      = 10071 // the last sequence is another
	codeWrongLastNow   = 10164 // the same, of what is still under way
	codeIncomplete     = 10176 // the leader has not the whole batch
	codeInFlight       = 10158
	codeTooManyBatches = 10210
	codeNoPlace        = 10005 // replicas find no server
	codeStoreFailed    = 10077
	codeTooLarge       = 10054
	codeNoAccount      = 10039 // JetStream not enabled for the account
	codeNoJetStream    = 10076
)

func (e *apiError) conflict() bool {
	return e.ErrCode == codeWrongLast || e.ErrCode == codeWrongLastNow
}

// temporary reports that the same request may be answered in a moment.
func (e *apiError) temporary() bool {
	switch e.ErrCode {
	case codeIncomplete, codeInFlight, codeTooManyBatches:
		return true
	case codeNoAccount, codeNoJetStream:
		return false
	}
	return e.Code == 503
}

// refusal is what the caller is told where nothing was recorded.
func (e *apiError) refusal() error {
	switch e.ErrCode {
	case 10023, 10047, 10002, 10028, codeStoreFailed:
		return fmt.Errorf("%w: a limit of the NATS servers is reached; raise it or remove old records: %w",
			store.ErrNoSpace, e)
	case codeTooLarge:
		return fmt.Errorf("%w: %w", store.ErrTooLarge, e)
	}
	return fmt.Errorf("%w: %w", store.ErrBusy, e)
}

// temporaryOf is why an answer is none, or nil.
func temporaryOf(m *nats.Msg) *apiError {
	if m != nil && len(m.Data) < 1024 {
		if e := errorOf(m.Data); e != nil && e.Code == 503 && e.temporary() {
			return e
		}
	}
	return nil
}

func errorOf(data []byte) *apiError {
	if !bytes.Contains(data, []byte(`"error":`)) {
		return nil
	}
	var x struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(data, &x); err != nil {
		return &apiError{Description: "an answer that cannot be read"}
	}
	return x.Error
}

// once sends a request and waits for the answer, not for long: what is sent while
// a stream has no leader is answered by nobody. Each try may take longer than those
// before it, for the servers may also be slow.
func (s *Store) once(ctx context.Context, m *nats.Msg, try int) (*nats.Msg, error) {
	once, done := context.WithTimeout(ctx, s.cfg.answerWithin*time.Duration(1+try/8))
	defer done()
	a, err := s.nc.RequestMsgWithContext(once, m)
	switch refusal := temporaryOf(a); {
	case refusal != nil:
		s.unanswered(refusal) // a server that is cut off from the others says so
	case err == nil:
		s.outage.answered(s.cfg.Now())
	case ctx.Err() == nil:
		s.unanswered(err)
	}
	return a, err
}

// notSent: with such an error nothing has left this process, or nobody took it.
func notSent(err error) bool {
	return errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrReconnectBufExceeded) ||
		errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrMaxPayload)
}

// ask requests something that may be asked again, until there is an answer.
func (s *Store) ask(ctx context.Context, subject string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	pause := firstPause
	for try := 0; ; try++ {
		m, err := s.once(ctx, &nats.Msg{Subject: subject, Data: body}, try)
		if err == nil {
			e := errorOf(m.Data)
			if e == nil {
				return m.Data, nil
			}
			if !e.temporary() {
				return nil, e
			}
			err = e
		}
		if !await(ctx, pause) {
			return nil, fmt.Errorf("%w: %w", store.ErrBusy, errors.Join(err, ctx.Err()))
		}
		pause = min(2*pause, maxPause)
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

// patiently asks the servers again while nobody answers, or not yet.
func (s *Store) patiently(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, settlesWithin)
	defer cancel()
	for told := false; ; told = true {
		once, done := context.WithTimeout(ctx, 2*s.cfg.answerWithin)
		err := ask(once)
		done()
		var api *jetstream.APIError
		switch {
		case err == nil:
			s.outage.answered(s.cfg.Now())
			return nil
		case ctx.Err() != nil:
			return err
		case errors.As(err, &api):
			e := &apiError{Code: api.Code, ErrCode: int(api.ErrorCode)}
			if !e.temporary() && e.ErrCode != codeNoPlace {
				return err
			}
		case errors.Is(err, errNotYet) || errors.Is(err, nats.ErrNoResponders):
		case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || notSent(err):
			s.unanswered(err)
		default:
			return err
		}
		if !told {
			s.cfg.Log.Info("waiting for the NATS servers", "for", what, "err", err)
		}
		if !await(ctx, maxPause) {
			return err
		}
	}
}
