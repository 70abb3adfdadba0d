package follow

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// Config of Requests. Journal and Index must be set.
type Config struct {
	Journal *journal.Journal
	Index   *index.Index // of Journal
	Queue   int          // records that wait for one subscriber; 0: 1,024; negative: none, each is read again
}

// Requests reads and follows the requests of a journal. One serves a whole binding; its methods may
// be called at the same time.
type Requests struct {
	c    Config
	ctx  context.Context // ends with Close
	stop context.CancelFunc

	unwatch func()

	mu sync.RWMutex
	of map[parley.ID]*Subscription // by request; the first of a list
}

// New makes Requests. [Requests.Start] begins to watch.
func New(c Config) *Requests {
	c.Queue = cmp.Or(c.Queue, maxQueued)
	r := &Requests{c: c, unwatch: func() {}, of: map[parley.ID]*Subscription{}}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Start watches the journal for subscribers. Before it they get nothing.
func (r *Requests) Start() { r.unwatch = r.c.Journal.Watch(r.recorded) }

// Close ends the watch, and the waits for the index. Subscribers get nothing more; their Take ends with
// their context.
func (r *Requests) Close() {
	r.unwatch()
	r.stop()
}

// indexWait bounds how long a call waits for the index.
const indexWait = 5 * time.Second

// Indexed waits until everything recorded by now, at any hub, can be found. Its error is a
// parley.Error: Unavailable if that takes too long, or the context's.
func (r *Requests) Indexed(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, indexWait)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	err := r.c.Journal.CatchUp(within)
	if err == nil {
		err = r.c.Index.Wait(within)
	}
	switch {
	case ctx.Err() != nil:
		return parley.AsError(ctx.Err())
	case err == nil:
		return nil
	}
	e := parley.Fail(parley.Unavailable, err, "the hub reads its journal; try again")
	e.After = time.Second
	return e.With(parley.ByHub, parley.HubStorage, "")
}

// ErrNotFound: there is no such request for this caller, or its content is no longer there.
var ErrNotFound = errors.New("follow: no such request")

// By says which request is meant, besides its id.
type By struct {
	From     string // the sender
	To       string // the agent as addressed; "": any
	Protocol string // that the request came in by; "": any
}

// Find finds an admitted request. Errors: [ErrNotFound], or a parley.Error as from Indexed.
func (r *Requests) Find(ctx context.Context, request parley.ID, by By) (index.Message, error) {
	if request.IsZero() {
		return index.Message{}, ErrNotFound
	}
	if err := r.Indexed(ctx); err != nil {
		return index.Message{}, err
	}
	m, err := r.c.Index.Message(ctx, request.String())
	switch {
	case errors.Is(err, index.ErrNotFound):
		return index.Message{}, ErrNotFound
	case err != nil:
		return index.Message{}, unreadable(err)
	case m.Kind != parley.Request || m.Refused || m.From != by.From || by.To != "" && m.To != by.To ||
		by.Protocol != "" && m.Protocol != by.Protocol:
		return index.Message{}, ErrNotFound
	}
	return m, nil
}

func unreadable(err error) error {
	return parley.Fail(parley.Unavailable, err, "the index cannot be read now")
}

// Request reads the record of a request. Errors: [ErrNotFound] if it was erased or its retention has
// ended, or a parley.Error.
func (r *Requests) Request(ctx context.Context, m index.Message) (*journal.Record, error) {
	record, err := r.c.Journal.Read(ctx, m.Position)
	switch {
	case errors.Is(err, journal.ErrNotFound) || err == nil && (record.Message == nil || record.Erased != nil):
		return nil, ErrNotFound
	case err != nil:
		return nil, parley.AsError(err)
	}
	return record, nil
}

// MaxBytes bounds the content that one load reads.
const MaxBytes = 64 << 20

// maxRecords bounds the records about one request that a load reads.
const maxRecords = 10_000

// Load yields the record of a request, then those of the admitted messages about it, in order: the
// events, inputs and the response or failure that the index has, no cancels. pieces: the events
// without a state, which are pieces of the result, too. The bytes of content are taken from room,
// which several loads may share; nil: MaxBytes for this one. An error comes last: one of Request,
// TooLarge if there is more than the bounds, or Unavailable.
func (r *Requests) Load(ctx context.Context, m index.Message, pieces bool, room *int) iter.Seq2[*journal.Record,
	error] {
	return func(yield func(*journal.Record, error) bool) {
		left := MaxBytes
		if room == nil {
			room = &left
		}
		if err := r.load(ctx, m, pieces, room, yield); err != nil {
			yield(nil, err)
		}
	}
}

// load is Load. Its error is still to be yielded.
func (r *Requests) load(ctx context.Context, m index.Message, pieces bool, room *int,
	yield func(*journal.Record, error) bool) error {
	request, err := r.Request(ctx, m)
	if err != nil {
		return err
	}
	*room -= journal.ContentSize(request)
	if !yield(request, nil) {
		return nil
	}
	records := 0
	filter := index.Filter{InReplyTo: m.ID, Oldest: true, Limit: index.MaxLimit}
	for {
		page, err := r.c.Index.Messages(ctx, filter)
		if err != nil {
			return unreadable(err)
		}
		for i := range page.Messages {
			about := &page.Messages[i]
			if about.Refused || about.Kind == parley.Cancel || about.Position.Partition != m.Position.Partition ||
				!pieces && about.Kind == parley.Event && about.State == parley.NoState {
				continue
			}
			record, err := r.c.Journal.Read(ctx, about.Position)
			if err != nil {
				return parley.AsError(err)
			}
			records++
			if *room -= journal.ContentSize(record); records > maxRecords || *room < 0 {
				return parley.Refuse(parley.TooLarge, "that is more than the hub gives at once; ask for less")
			}
			if !yield(record, nil) {
				return nil
			}
		}
		if filter.Cursor = page.Next; filter.Cursor == "" {
			return nil
		}
	}
}
