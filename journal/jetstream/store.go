package jetstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/parley-hub/parley/journal/store"
)

// Config describes the cluster. Every zero value except URL's is the documented
// default.
type Config struct {
	URL     string        // of one server, or of several separated by commas
	Options []nats.Option // for the connection: credentials, TLS

	// Prefix begins the names of all streams, buckets and subjects: 1 to 32
	// letters, digits, "-" and "_". Default "PARLEY". Hubs that share a journal
	// share the prefix.
	Prefix string

	Replicas       int    // of each stream: 1, 3 or 5; default 3 in a cluster, 1 where the server is alone
	Durability     string // "disk", "replicated" (default) or "memory"
	SyncReplicated bool   // every server has sync_interval: always; only Promise depends on it

	// MaxPayload is the size of the largest record or value, in bytes. Default:
	// what the server's max_payload allows, at most 8 MiB.
	MaxPayload int

	Timeout time.Duration // of one call; default 15 seconds: an election may take nine
	Name    string        // of this hub, for the server's list of connections
	Now     func() time.Time
	Log     *slog.Logger

	answerWithin time.Duration // one try of a request
	goneAfter    time.Duration // how long a missing stream is searched for
}

const (
	maxPayload   = 8 << 20
	headerMargin = 4 << 10 // bytes that headers may add to a record

	// settlesWithin is how long the servers may take to elect leaders when a hub
	// starts.
	settlesWithin = time.Minute
)

// Metadata of the state's stream.
const (
	metaStore    = "parley-store"  // the store.Meta, as JSON
	metaOutdated = "parley-format" // of the first engine
)

var prefixForm = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// Store keeps a journal on a NATS cluster.
type Store struct {
	cfg    Config
	nc     *nats.Conn
	js     jetstream.JetStream
	run    string // marks the messages of this Store
	called atomic.Uint64
	outage outage
	ctx    context.Context // ends with the Store
	cancel context.CancelFunc

	requests sync.RWMutex // each request in flight holds it for reading; Close waits for all

	mu       sync.Mutex
	reported map[string]uint64 // by stream: the last sequence that a call has returned
}

var _ store.Store = (*Store)(nil)

// Open connects to the cluster and checks that it can hold a journal.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	cfg.Prefix = cmp.Or(cfg.Prefix, "PARLEY")
	if !prefixForm.MatchString(cfg.Prefix) {
		return nil, fmt.Errorf("prefix %q: it has 1 to 32 letters, digits, \"-\" and \"_\"", cfg.Prefix)
	}
	if !slices.Contains([]string{"", "disk", "replicated", "memory"}, cfg.Durability) {
		return nil, fmt.Errorf("durability %q: it is disk, replicated or memory", cfg.Durability)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 15*time.Second)
	cfg.answerWithin = cmp.Or(cfg.answerWithin, time.Second)
	cfg.goneAfter = cmp.Or(cfg.goneAfter, 20*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{cfg: cfg, run: nuid.New().Next()[:14], reported: make(map[string]uint64)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.connect(); err != nil {
		s.cancel()
		return nil, err
	}
	if err := s.probe(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// probe checks the abilities of the servers, and completes the configuration.
func (s *Store) probe(ctx context.Context) (err error) {
	limit := int(s.nc.MaxPayload())
	if s.cfg.MaxPayload == 0 {
		s.cfg.MaxPayload = min(maxPayload, limit-headerMargin)
	}
	if s.cfg.MaxPayload+headerMargin > limit {
		return fmt.Errorf("records of up to %d bytes are wanted (MaxPayload) and need max_payload %d, but %s has %d; "+
			"raise max_payload there or lower MaxPayload", s.cfg.MaxPayload, s.cfg.MaxPayload+headerMargin, s.server(),
			limit)
	}
	if s.js, err = jetstream.New(s.nc); err != nil {
		return err
	}
	if err := retry(ctx, settlesWithin, func(ctx context.Context, try int) error {
		ctx, cancel := context.WithTimeout(ctx, s.answerTimeout(quickTries+try))
		defer cancel()
		_, err := s.js.AccountInfo(ctx)
		return err
	}); err != nil {
		return fmt.Errorf("JetStream is not enabled on %s for this account: %w", s.server(), err)
	}
	if s.cfg.Replicas == 0 {
		s.cfg.Replicas = 1
		if s.nc.ConnectedClusterName() != "" {
			s.cfg.Replicas = 3
		}
	}
	return nil
}

// Close implements [store.Store].
func (s *Store) Close() error {
	s.requests.Lock()
	defer s.requests.Unlock()
	if s.ctx.Err() != nil {
		return store.ErrClosed
	}
	s.cancel()
	s.nc.Close()
	return nil
}

// report notes a sequence that a call returns: no later call returns an earlier end.
func (s *Store) report(stream string, seq uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported[stream] = max(s.reported[stream], seq)
}

func (s *Store) lastReported(stream string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reported[stream]
}

// Names. The state and the remains are key-value buckets, so that tools can show
// them.
func (s *Store) logStream(p int) string  { return s.cfg.Prefix + "_LOG_" + strconv.Itoa(p) }
func (s *Store) logSubject(p int) string { return s.cfg.Prefix + ".log." + strconv.Itoa(p) + "." }
func (s *Store) stateStream() string     { return "KV_" + s.cfg.Prefix + "_state" }
func (s *Store) stateSubject() string    { return "$KV." + s.cfg.Prefix + "_state." }
func (s *Store) remainsStream() string   { return "KV_" + s.cfg.Prefix + "_remains" }
func (s *Store) remainsSubject() string  { return "$KV." + s.cfg.Prefix + "_remains." }

func (s *Store) config(name, subject string) jetstream.StreamConfig {
	storage := jetstream.FileStorage
	if s.cfg.Durability == "memory" {
		storage = jetstream.MemoryStorage
	}
	return jetstream.StreamConfig{
		Name: name, Subjects: []string{subject + ">"}, Storage: storage, Replicas: s.cfg.Replicas,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, AllowDirect: true,
		Description: "Parley's journal; written by hubs only",
	}
}

// streams are the streams of a journal. The state's is made last: if it exists, so do
// all others.
func (s *Store) streams(m store.Meta) (out []jetstream.StreamConfig) {
	for p := range m.Partitions {
		c := s.config(s.logStream(p), s.logSubject(p))
		c.AllowAtomicPublish = true
		out = append(out, c)
	}
	state := s.config(s.stateStream(), s.stateSubject())
	state.MaxMsgsPerSubject, state.AllowMsgTTL = 1, true
	said, _ := json.Marshal(m) // a struct of plain values
	state.Metadata = map[string]string{metaStore: string(said)}
	return append(out, s.config(s.remainsStream(), s.remainsSubject()), state)
}

// find returns a stream, or jetstream.ErrStreamNotFound. A server also answers "not
// found" if the cluster has decided on the stream and the server has not made it yet.
// So find asks the servers' leader, the only one to list streams. A new leader may
// not know the stream either: find asks again until the time missing has passed.
func (s *Store) find(ctx context.Context, c jetstream.StreamConfig, missing time.Duration) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, settlesWithin)
	defer cancel()
	begun := time.Now()
	for range tries(ctx) {
		x, err := s.request(ctx, settlesWithin, apiInfo+c.Name, nil)
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			return x, err
		}
		known, unknown := s.request(ctx, settlesWithin, apiNames, map[string]string{"subject": c.Subjects[0]})
		if unknown != nil {
			return answer{}, unknown
		}
		if len(known.Streams) == 0 && time.Since(begun) >= missing {
			return answer{}, err
		}
	}
	return answer{}, fmt.Errorf("%w: stream %s is not there yet: %w", store.ErrBusy, c.Name, ctx.Err())
}

// Meta implements [store.Store].
func (s *Store) Meta(ctx context.Context) (store.Meta, error) {
	m, err := s.readMeta(ctx, 0)
	if err != nil {
		return store.Meta{}, err
	}
	for _, want := range s.streams(m) {
		x, err := s.find(ctx, want, s.cfg.goneAfter)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return store.Meta{}, fmt.Errorf("%w: stream %s is gone; restore a backup", store.ErrCorrupt, want.Name)
		}
		if err == nil {
			err = checkStream(x.Config, want)
		}
		if err != nil {
			return store.Meta{}, err
		}
	}
	return m, nil
}

func (s *Store) readMeta(ctx context.Context, missing time.Duration) (m store.Meta, err error) {
	x, err := s.find(ctx, s.config(s.stateStream(), s.stateSubject()), missing)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return m, s.outdated(ctx)
	}
	if err != nil {
		return m, err
	}
	said := x.Config.Metadata[metaStore]
	if err := json.Unmarshal([]byte(said), &m); err != nil {
		return m, fmt.Errorf("%w: stream %s was not made by Parley (%s=%s); choose another Prefix",
			store.ErrForeign, s.stateStream(), metaStore, said)
	}
	return m, nil
}

// outdated distinguishes a journal of an earlier release from none.
func (s *Store) outdated(ctx context.Context) error {
	name := s.cfg.Prefix + "_STATE"
	x, err := s.find(ctx, s.config(name, s.cfg.Prefix+".state."), 0)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return store.ErrNotFound
	case err != nil:
		return err
	case x.Config.Metadata[metaOutdated] == "":
		return fmt.Errorf("%w: stream %s was not made by Parley; choose another Prefix", store.ErrForeign, name)
	}
	return fmt.Errorf("%w: the streams %s_… are of an earlier release; take a backup with that release, "+
		"and restore it with this one, under another prefix or after the old streams were removed",
		store.ErrFormat, s.cfg.Prefix)
}

// Init implements [store.Store].
func (s *Store) Init(ctx context.Context, m store.Meta) error {
	old, err := s.readMeta(ctx, 0)
	switch {
	case err == nil && old.Restoring && !m.Restoring:
		return s.restored(ctx, m)
	case err == nil:
		return fmt.Errorf("%w: the streams %s_…", store.ErrExists, s.cfg.Prefix)
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	for _, c := range s.streams(m) {
		x, err := s.request(ctx, settlesWithin, apiCreate+c.Name, c)
		switch {
		case errors.Is(err, jetstream.ErrStreamNameAlreadyInUse), x.State.LastSeq > 0 && c.Name != s.stateStream():
			return s.raced(ctx, c.Name)
		case err != nil:
			return fmt.Errorf("stream %s cannot be made: %w", c.Name, err)
		}
		if err := checkStream(x.Config, c); err != nil {
			return err
		}
	}
	return nil
}

// raced distinguishes a journal that another hub made meanwhile, which this hub's
// server may not know yet, from streams of other programs.
func (s *Store) raced(ctx context.Context, stream string) error {
	_, err := s.readMeta(ctx, s.cfg.goneAfter/4)
	switch {
	case err == nil:
		return fmt.Errorf("%w: another hub has made the journal", store.ErrExists)
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%w: stream %s is there with other settings, or is not empty; choose another Prefix",
			store.ErrForeign, stream)
	}
	return err
}

// restored ends a restore.
func (s *Store) restored(ctx context.Context, m store.Meta) error {
	for p := range m.Partitions {
		if err := s.removeFillers(ctx, p); err != nil { // an interrupted restore left them
			return err
		}
	}
	all := s.streams(m)
	state := all[len(all)-1]
	_, err := s.request(ctx, settlesWithin, apiUpdate+state.Name, state)
	return err
}

// checkStream refuses a server that ignored a setting because it does not know it.
func checkStream(got, want jetstream.StreamConfig) error {
	if got.AllowAtomicPublish != want.AllowAtomicPublish || got.AllowMsgTTL != want.AllowMsgTTL || !got.AllowDirect ||
		got.DenyDelete || got.DenyPurge {
		return fmt.Errorf("stream %s lacks atomic batch publish, time to live per message, direct get or the deletion "+
			"of messages; use NATS server 2.12 or later", want.Name)
	}
	return nil
}

// Exclusive implements [store.Store].
func (s *Store) Exclusive() bool { return false }

// MaxRecord implements [store.Store].
func (s *Store) MaxRecord() int { return s.cfg.MaxPayload }

// Space implements [store.Store]. The servers do not tell clients their free space.
func (s *Store) Space() (free, total uint64, err error) { return 0, 0, nil }

// Promise implements [store.Store].
func (s *Store) Promise() string {
	const survives = "it survives the loss of a minority of them"
	switch n := s.cfg.Replicas; {
	case s.cfg.Durability == "memory":
		return "Accepted means that the message is in the NATS servers' memory: it is gone when they end."
	case s.cfg.Durability == "disk":
		return "Accepted means that the message is recorded by the NATS server; whether it is on its disk by then " +
			"depends on the server's sync_interval."
	case n <= 1:
		return "Accepted means that one NATS server holds the message; there are no replicas, " +
			"and whether it is on its disk by then depends on the server's sync_interval."
	case s.cfg.SyncReplicated:
		return fmt.Sprintf("Accepted means that a majority of %d NATS servers hold the message on their disks: %s, "+
			"and a power cut of all.", n, survives)
	default:
		return fmt.Sprintf("Accepted means that a majority of %d NATS servers hold the message: %s, but if a majority "+
			"loses power at the same moment, the last seconds may be lost.", n, survives)
	}
}
