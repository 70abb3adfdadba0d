package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sys/unix"
)

// engineLog writes what the engine says into the journal's log. Its notices
// are news only to who debugs it.
type engineLog struct {
	log *slog.Logger
	// trouble is called when the engine reports an error: it does not answer
	// an append whose write failed, and this is sooner than a timeout.
	trouble func(error)

	ended atomic.Pointer[error] // why the engine gave its start up
	files atomic.Pointer[error] // the engine could not open a file for want of descriptors
}

func (e *engineLog) say(level slog.Level, format string, v []any) error {
	if level < slog.LevelWarn && !e.log.Enabled(context.Background(), level) {
		return nil
	}
	err := errors.New(strings.TrimSpace(fmt.Sprintf(format, v...)))
	if outOfFiles(err) {
		e.files.Store(&err)
	}
	e.log.Log(context.Background(), level, err.Error(), "from", "engine")
	return err
}

func (e *engineLog) Noticef(format string, v ...any) { e.say(slog.LevelDebug, format, v) }
func (e *engineLog) Debugf(format string, v ...any)  { e.say(slog.LevelDebug-4, format, v) }
func (e *engineLog) Tracef(format string, v ...any)  { e.say(slog.LevelDebug-4, format, v) }
func (e *engineLog) Warnf(format string, v ...any)   { e.say(slog.LevelWarn, format, v) }
func (e *engineLog) Errorf(format string, v ...any)  { e.trouble(e.say(slog.LevelError, format, v)) }
func (e *engineLog) Fatalf(format string, v ...any) {
	err := e.say(slog.LevelError, format, v)
	e.ended.Store(&err)
	e.trouble(err)
}

// The embedded engine has two parts, each a server of its own in this process,
// because how a server syncs is one setting for all its streams. The log's part
// leaves that to the journal (see syncer). The other part, with the state and
// the checkpoints, syncs every write by itself: there it removes what was
// replaced and rewrites blocks as it goes, and only it can do so safely.
const (
	partLog   = "log"
	partState = "state"
)

// startEmbedded runs the engine in this process, connects to it, and makes sure
// that it has all streams that there were. Where it has not, or no descriptors to
// look, all files are as they were before.
func (j *Journal) startEmbedded(ctx context.Context) (l *link, err error) {
	had := j.dir.manifest.Streams
	if err := spareFiles(startFiles + len(had)); err != nil {
		return nil, fmt.Errorf("start the engine: %w", err)
	}
	keeps := len(had) > 0 && j.cfg.Durability == Disk
	if keeps {
		if err := errors.Join(j.dir.keep(), j.dir.removeKeyless()); err != nil {
			return nil, fmt.Errorf("before the engine is started: %w", err)
		}
	}
	l = &link{down: make(chan struct{}), fail: new(sync.Once)}
	l.side = &link{down: l.down, fail: l.fail}
	defer func() {
		if err == nil {
			return
		}
		l.stop()
		if short := l.shortOfFiles(); short != nil {
			err = fmt.Errorf("start the engine: %w", short) // the cause of all others
		}
		if keeps {
			err = errors.Join(err, j.dir.putBack())
		}
		l = nil
	}()
	if err := j.startPart(ctx, l, l.side, partState, j.cfg.Durability == Disk && !j.restoring); err != nil {
		return l, err
	}
	if err := j.startPart(ctx, l, l, partLog, false); err != nil {
		return l, err
	}
	if len(had) == 0 {
		return l, nil
	}
	if err := j.checkStreams(ctx, l); err != nil {
		return l, err
	}
	if err := l.health(); err != nil {
		return l, err
	}
	if keeps {
		return l, j.dir.unkeep()
	}
	return l, nil
}

func (j *Journal) startPart(ctx context.Context, whole, l *link, part string, syncAlways bool) (err error) {
	opts := &server.Options{
		ServerName:             "parley-journal-" + part,
		DontListen:             true,
		NoSigs:                 true,
		NoSystemAccount:        true,
		JetStream:              true,
		DisableJetStreamBanner: true,
		StoreDir:               filepath.Join(j.dir.engine(), part),
		SyncAlways:             syncAlways,
		// The journal has its own limits, the watermark among them.
		JetStreamMaxStore:  math.MaxInt64 / 2,
		JetStreamMaxMemory: math.MaxInt64 / 2,
		MaxPayload:         int32(j.cfg.MaxPayload + payloadMargin),
		MaxPending:         256 << 20,
		NoLog:              true,
	}
	if part == partLog {
		// The engine then neither closes a block that was idle, nor opens files to
		// sync what the journal has synced: it appends without a free descriptor.
		opts.SyncInterval = never
	}
	if j.dir.manifest.Encrypted {
		opts.JetStreamKey = engineKey(&j.dir.manifest, j.cfg.Key)
		opts.JetStreamCipher = server.ChaCha
	}
	if l.srv, err = server.NewServer(opts); err != nil {
		return fmt.Errorf("start the engine: %w", err)
	}
	verbose := j.cfg.Log.Enabled(ctx, slog.LevelDebug-4)
	l.log = &engineLog{log: j.cfg.Log, trouble: func(err error) { j.suspect(whole, err) }}
	l.srv.SetLoggerV2(l.log, verbose, false, false)
	l.srv.Start()
	const wait, look = 30 * time.Second, 100 * time.Millisecond
	for waited := look; !l.srv.ReadyForConnections(look); waited += look {
		if why := l.log.ended.Load(); why != nil {
			return fmt.Errorf("start the engine: %w", *why)
		}
		if waited >= wait {
			return fmt.Errorf("the engine was not ready within %s", wait)
		}
	}
	l.nc, err = nats.Connect("", nats.InProcessServer(l.srv), nats.NoReconnect(), nats.Name("parley journal"),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			j.cfg.Log.Warn("connection to the engine", "err", err)
		}),
		nats.ClosedHandler(func(*nats.Conn) { j.engineFailed(whole, errors.New("the connection to it was closed")) }))
	if err != nil {
		return fmt.Errorf("connect to the engine: %w", err)
	}
	l.js, err = jetstream.New(l.nc)
	return err
}

// never is longer than any process runs.
const never = 100 * 365 * 24 * time.Hour

// stop ends a link, and the engine when it is embedded.
func (l *link) stop() {
	l.close()
	for _, x := range []*link{l, l.side} {
		if x.nc != nil {
			x.nc.Close()
		}
		if x.srv != nil {
			x.srv.Shutdown()
			x.srv.WaitForShutdown()
		}
	}
}

// shortOfFiles says whether the engine's start met a want of descriptors.
func (l *link) shortOfFiles() error {
	for _, x := range []*link{l.side, l} {
		if x.log != nil && x.log.files.Load() != nil {
			return *x.log.files.Load()
		}
	}
	return spareFiles(startFiles)
}

// suspect looks whether the engine in use, which reported an error, has failed
// for good. Without descriptors it cannot say so itself.
func (j *Journal) suspect(l *link, said error) {
	j.background.Go(func() {
		if l != j.link.Load() || l.failed() || j.ctx.Err() != nil {
			return
		}
		if !outOfFiles(said) {
			said = l.health()
		}
		if said != nil {
			j.engineFailed(l, said)
		}
	})
}

// health says which part of the embedded engine has failed for good.
func (l *link) health() error {
	for _, x := range []*link{l, l.side} {
		if h := x.srv.Healthz(&server.HealthzOptions{}); h != nil && h.Error != "" {
			return errors.New(h.Error)
		}
	}
	return nil
}

// engineFailed takes a link out of use, and has the embedded engine reopened.
func (j *Journal) engineFailed(l *link, why error) {
	if j.closing.Load() {
		l.close()
		return
	}
	j.linkMu.Lock()
	defer j.linkMu.Unlock()
	if l.failed() {
		return
	}
	j.failure.Store(&why)
	l.close()
	if j.link.Load() != l || j.external() {
		return
	}
	j.cfg.Log.Error("the engine failed and will be reopened", "err", why)
	j.background.Go(func() { j.reopen(l) })
}

// syncFailed takes the engine out of use because the log was not synced. Where
// that is for want of space or of descriptors it is reopened; after any other
// error nobody can say what is on the disk, and only a restart reads it anew.
func (j *Journal) syncFailed(l *link, err error) {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) && !outOfFiles(err) {
		j.broken.Store(true)
		err = fmt.Errorf("the disk failed to sync, check it and start the hub again: %w", err)
	}
	j.engineFailed(l, err)
}

// reopen starts the engine again as soon as there are space and descriptors for
// it.
func (j *Journal) reopen(old *link) {
	old.stop()
	for pause := j.cfg.reopenEvery; ; pause = min(2*pause, 4*j.cfg.reopenEvery) {
		if j.roomToReopen() && !j.broken.Load() {
			l, err := j.startEmbedded(j.ctx)
			if err == nil {
				j.setLink(l)
				j.reopened.Add(1)
				j.cfg.Log.Info("the engine was reopened")
				return
			}
			j.failure.Store(&err)
			j.cfg.Log.Error("the engine cannot be reopened yet", "err", err)
		}
		if !await(j.ctx, pause) {
			return
		}
	}
}

// roomToReopen asks for some more space than the watermark may, lest an engine
// that has run into the end of the disk is reopened only to do so again.
func (j *Journal) roomToReopen() bool {
	if refusal, _ := j.space(); refusal != nil {
		return false
	}
	return j.cfg.FreeSpace == nil || j.free.Load() >= min(16<<20, totalSpace(j.dir.path)/20)
}

func (j *Journal) setLink(l *link) {
	j.linkMu.Lock()
	defer j.linkMu.Unlock()
	j.link.Store(l)
	close(j.changed)
	j.changed = make(chan struct{})
}

// awaitLink gives the link that came after old, or a channel that is closed
// when there may be one.
func (j *Journal) awaitLink(old *link) (*link, <-chan struct{}) {
	j.linkMu.Lock()
	defer j.linkMu.Unlock()
	if l := j.link.Load(); l != old && !l.failed() {
		return l, nil
	}
	return nil, j.changed
}

// live is the link in use.
func (j *Journal) live() (*link, error) {
	if j.closing.Load() {
		return nil, fail(ErrClosed, "")
	}
	if l := j.link.Load(); l != nil && !l.failed() {
		return l, nil
	}
	return nil, j.downError()
}

// downError says why nothing can be recorded now.
func (j *Journal) downError() error {
	if j.closing.Load() {
		return fail(ErrClosed, "")
	}
	if refusal, _ := j.space(); refusal != nil {
		return refusal
	}
	// Of the cause only the text: what is wrong with the engine is not what is
	// wrong with an entry or a record.
	switch why := j.failure.Load(); {
	case why == nil:
		return fail(ErrBusy, "the engine failed and is being reopened; try again soon")
	case outOfFiles(*why):
		return fail(ErrBusy, "the process has no free file descriptors: raise its limit (ulimit -n) or allow fewer "+
			"connections; the journal goes on by itself once some are free: %v", *why)
	default:
		return fail(ErrBusy, "the engine failed and is being reopened; try again soon: %v", *why)
	}
}

// engineError is what the caller is told of a refusal.
func (j *Journal) engineError(a ack) error {
	switch {
	case a.nobody:
		return failBy(ErrBusy, a.err, "the engine does not take appends now")
	case a.err.ErrCode == codeTooManyFlying || a.err.ErrCode == codeIncomplete || a.err.Code == 503:
		return failBy(ErrBusy, a.err, "the engine is busy")
	case a.err.ErrCode == 10023 || a.err.ErrCode == 10047 || a.err.ErrCode == 10002:
		return failBy(ErrNoSpace, a.err, "the engine's storage limit is reached; raise it or remove old records")
	case a.err.ErrCode == 10054:
		return failBy(ErrTooLarge, a.err, "")
	}
	return failBy(ErrBusy, a.err, "")
}

// space refuses when the disk is nearly full: first for what is new, later for
// what finishes what was begun.
func (j *Journal) space() (refusal, reserve error) {
	if j.cfg.FreeSpace == nil {
		return nil, nil
	}
	free, err := j.cfg.FreeSpace(j.dir.path)
	if err != nil {
		err = failBy(ErrNoSpace, err, "the free space in %s is not known", j.dir.path)
		return err, err
	}
	j.free.Store(free)
	if free < j.cfg.MinFree {
		refusal = fail(ErrNoSpace, "%s free in %s, less than the %s that are kept free (MinFree); free some space, entries are taken again by themselves then",
			bytesText(free), j.dir.path, bytesText(j.cfg.MinFree))
		if free < j.cfg.MinFree/2 {
			reserve = refusal
		}
	}
	return refusal, reserve
}

// admission says whether a group may be written now.
func (j *Journal) admission() (refusal, reserve error) {
	if j.external() || j.cfg.FreeSpace == nil {
		return nil, nil
	}
	refusal, reserve = j.space()
	if (refusal != nil) != j.full.Swap(refusal != nil) {
		if refusal != nil {
			j.cfg.Log.Error("the journal takes no new messages", "err", refusal)
		} else {
			j.cfg.Log.Info("the journal takes new messages again")
		}
	}
	return refusal, reserve
}

func bytesText(n uint64) string {
	switch {
	case n >= 10<<30:
		return fmt.Sprintf("%d GiB", n>>30)
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// Streams and subjects.

func (j *Journal) logStream(p int) string   { return fmt.Sprintf("%s_LOG_%d", j.prefix, p) }
func (j *Journal) stateStream() string      { return j.prefix + "_STATE" }
func (j *Journal) checkpointStream() string { return j.prefix + "_CHECKPOINT" }
func (j *Journal) logSubject(p int) string  { return fmt.Sprintf("%s.log.%d.", j.prefix, p) }
func (j *Journal) stateSubject() string     { return j.prefix + ".state." }
func (j *Journal) checkpointSubject(p int) string {
	return fmt.Sprintf("%s.checkpoint.%d", j.prefix, p)
}

// streamSpec is a stream and the engine's part that has it.
type streamSpec struct {
	part string
	jetstream.StreamConfig
}

func (x *streamSpec) path() string { return x.part + "/" + x.Name }

func (x *streamSpec) on(l *link) *link {
	if x.part == partState {
		return l.side
	}
	return l
}

func (j *Journal) streams() []streamSpec {
	storage, replicas, duplicates := jetstream.FileStorage, 1, 2*time.Minute
	if j.cfg.Durability == Memory {
		storage = jetstream.MemoryStorage
	}
	if j.external() {
		replicas, duplicates = j.cfg.Replicas, j.cfg.Window
	}
	config := func(part, name, subject string) streamSpec {
		return streamSpec{part, jetstream.StreamConfig{
			Name: name, Subjects: []string{subject}, Storage: storage, Replicas: replicas, Duplicates: duplicates,
			Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew,
			AllowDirect: true, AllowAtomicPublish: true, AllowMsgTTL: true,
			Description: "Parley's journal; written by hubs only",
			Metadata:    map[string]string{metaFormat: strconv.Itoa(manifestFormat), metaPartitions: strconv.Itoa(j.partitions)},
		}}
	}
	var out []streamSpec // the state's last, see openExternal
	for p := range j.partitions {
		out = append(out, config(partLog, j.logStream(p), j.logSubject(p)+">"))
	}
	state := config(partState, j.stateStream(), j.stateSubject()+">")
	state.MaxMsgsPerSubject, state.Discard = 1, jetstream.DiscardOld
	checkpoint := config(partState, j.checkpointStream(), j.prefix+".checkpoint.>")
	checkpoint.AllowAtomicPublish = false
	return append(out, checkpoint, state)
}

// makeStreams makes what a new journal needs.
func (j *Journal) makeStreams(ctx context.Context, l *link) error {
	for _, c := range j.streams() {
		if _, err := c.on(l).js.CreateStream(ctx, c.StreamConfig); err != nil {
			return fmt.Errorf("make stream %s: %w", c.Name, err)
		}
	}
	return nil
}

// checkStreams makes sure that the engine has all streams.
func (j *Journal) checkStreams(ctx context.Context, l *link) error {
	for _, c := range j.streams() {
		if _, err := c.on(l).js.Stream(ctx, c.Name); err != nil {
			return failBy(ErrCorrupt, err, "the engine does not open stream %s, and says why in the log; "+
				"where its files are damaged, restore a backup", c.Name)
		}
	}
	return nil
}

func (j *Journal) openEmbedded(ctx context.Context) (err error) {
	if j.dir, err = openDirectory(&j.cfg, j.cfg.Rand); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			j.dir.release()
		}
	}()
	m := &j.dir.manifest
	j.prefix, j.partitions = m.Prefix, m.Partitions
	if j.cfg.Durability == Memory && j.cfg.FreeSpace == nil {
		j.cfg.MinFree = 0
	} else if j.cfg.FreeSpace == nil {
		j.cfg.FreeSpace = freeSpace
	}
	if j.cfg.MinFree == 0 {
		j.cfg.MinFree = defaultMinFree
		if total := totalSpace(j.dir.path); total > 0 {
			j.cfg.MinFree = min(j.cfg.MinFree, total/10)
		}
	}
	if err := j.dir.begin(); err != nil {
		return err
	}
	l, err := j.startEmbedded(ctx)
	if err != nil {
		return err
	}
	if len(m.Streams) == 0 {
		err = j.makeStreams(ctx, l)
		if err == nil && j.cfg.Durability == Disk {
			err = syncTree(j.dir.engine())
		}
		if err == nil {
			for _, c := range j.streams() {
				m.Streams = append(m.Streams, c.path())
			}
			err = j.dir.save()
		}
	}
	if err != nil {
		l.stop()
		return err
	}
	j.link.Store(l)
	return nil
}

// payloadMargin is what headers may add to a record on the wire.
const payloadMargin = 64 << 10
