package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// With an external engine several nodes write, and each follows every
// partition with one consumer. What a node knows of the state is what it has
// read there, its own records included: an append returns when the node has
// read it back. What must hold between nodes the engine checks itself: replay
// keys by message id, chains, leases and the steps of deliveries by
// compare-and-set.

// ackMargin is what subject and headers may add to a record.
const ackMargin = 4 << 10

// What the journal's streams bear as metadata.
const (
	metaFormat     = "parley-format"
	metaPartitions = "parley-partitions"

	formatRestoring = "restoring" // of a journal that is not whole yet
)

// openExternal connects and makes sure of the streams. The state's stream is
// made last: where it is, all others were made.
func (j *Journal) openExternal(ctx context.Context) (err error) {
	l, err := j.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			l.stop()
		}
	}()
	if err := j.readPartitions(ctx, l); err != nil {
		return err
	}
	for _, c := range j.streams() {
		s, err := j.findOrMake(ctx, l, c.StreamConfig)
		if err != nil {
			return err
		}
		if err := j.checkFeatures(s.CachedInfo().Config, &c.StreamConfig); err != nil {
			return err
		}
	}
	j.link.Store(l)
	return nil
}

// findOrMake gives a stream of the journal. In a journal that is there it is
// waited for, for a while: a release before this one made the state's stream
// before the last, and a server that has just become the leader of the others may
// not have learned of all streams yet.
func (j *Journal) findOrMake(ctx context.Context, l *link, c jetstream.StreamConfig) (s jetstream.Stream, err error) {
	lost, stop := context.WithTimeout(ctx, j.cfg.goneAfter)
	defer stop()
	err = j.patiently(ctx, "stream "+c.Name, func(ctx context.Context) (err error) {
		s, err = l.find(ctx, c.Name, c.Subjects[0])
		switch {
		case !errors.Is(err, jetstream.ErrStreamNotFound):
			return err
		case !j.found:
			s, err = l.js.CreateStream(ctx, c)
			return err
		case lost.Err() == nil:
			return errNotYet
		}
		return err
	})
	switch {
	case err == nil:
		return s, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, fail(ErrCorrupt, "stream %s is gone; restore a backup", c.Name)
	}
	return nil, failBy(ErrServer, err, "stream %s is not there and cannot be made", c.Name)
}

// errNotYet: a stream is not there, and may be in a moment.
var errNotYet = errors.New("it is not there yet")

// find finds a stream. That there is none a server also says that has not made
// yet what the cluster has decided on; the leader of the servers, which alone
// names streams, has the last word. subject is the stream's own.
func (l *link) find(ctx context.Context, name, subject string) (jetstream.Stream, error) {
	s, err := l.js.Stream(ctx, name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return s, err
	}
	switch _, known := l.js.StreamNameBySubject(ctx, subject); {
	case known == nil:
		return nil, errNotYet
	case !errors.Is(known, jetstream.ErrStreamNotFound):
		return nil, known
	}
	return nil, err
}

// connect connects to the external engine, and sees that it can be used.
func (j *Journal) connect(ctx context.Context) (l *link, err error) {
	j.cfg.FreeSpace = nil
	j.prefix = j.cfg.Prefix
	if j.prefix == "" {
		j.prefix = defaultPrefix
	}
	l = &link{down: make(chan struct{}), fail: new(sync.Once)}
	l.side = l
	opts := append([]nats.Option{
		nats.Name("parley journal " + j.cfg.Node), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond),
		// What cannot be sent now is refused, not sent some time later.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if !j.closing.Load() {
				j.cfg.Log.Warn("lost the connection to the NATS server; it is tried again", "err", err)
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) {
			j.cfg.Log.Info("connected to a NATS server again", "url", c.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { j.cfg.Log.Warn("NATS", "err", err) }),
	}, j.cfg.NATS...)
	if l.nc, err = nats.Connect(j.cfg.URL, opts...); err != nil {
		return nil, failBy(ErrServer, err, "cannot connect to %s", redact(j.cfg.URL))
	}
	begun := l
	defer func() {
		if err != nil {
			begun.stop()
		}
	}()
	if err := j.comparePayload(l.nc); err != nil {
		return nil, err
	}
	if l.js, err = jetstream.New(l.nc); err != nil {
		return nil, err
	}
	if err := j.patiently(ctx, "the servers", func(ctx context.Context) error {
		_, err := l.js.AccountInfo(ctx)
		return err
	}); err != nil {
		return nil, failBy(ErrServer, err, "JetStream is not enabled on %s for this account", redact(j.cfg.URL))
	}
	if j.cfg.Replicas == 0 {
		j.cfg.Replicas = 1
		if l.nc.ConnectedClusterName() != "" {
			j.cfg.Replicas = 3
		}
	}
	return l, nil
}

// goneAfter is how long a stream of a journal that is there is looked for.
const goneAfter = 20 * time.Second

// settlesWithin is how long the streams of a cluster are given to find their
// leaders when a hub starts: several hubs may begin at once, and servers with
// them.
const settlesWithin = time.Minute

// noPlace is the engine's word for replicas that find no server.
const noPlace jetstream.ErrorCode = 10005

// patiently asks the engine again while nobody answers for what is asked, or
// not yet.
func (j *Journal) patiently(ctx context.Context, what string, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, settlesWithin)
	defer cancel()
	for told := false; ; told = true {
		once, done := context.WithTimeout(ctx, 3*time.Second)
		err := ask(once)
		done()
		var api *jetstream.APIError
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.As(err, &api) && (api.Code == 503 && api.ErrorCode != jetstream.JSErrCodeJetStreamNotEnabled && api.ErrorCode != jetstream.JSErrCodeJetStreamNotEnabledForAccount || api.ErrorCode == noPlace):
		case errors.Is(err, errNotYet) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, nats.ErrNoResponders):
		default:
			return err
		}
		if !told {
			j.cfg.Log.Info("waiting for the NATS servers", "for", what, "err", err)
		}
		select {
		case <-time.After(j.cfg.reopenEvery / 4):
		case <-ctx.Done():
			return err
		}
	}
}

func (j *Journal) comparePayload(nc *nats.Conn) error {
	limit := int(nc.MaxPayload())
	if j.cfg.MaxPayload == 0 {
		j.cfg.MaxPayload = min(8<<20, limit-ackMargin)
	}
	if j.cfg.MaxPayload+ackMargin > limit {
		return fail(ErrPayload, "records of up to %d bytes are wanted (MaxPayload) and need max_payload %d, but %s has %d; raise max_payload there or lower MaxPayload",
			j.cfg.MaxPayload, j.cfg.MaxPayload+ackMargin, nc.ConnectedUrlRedacted(), limit)
	}
	return nil
}

// readPartitions takes the number of partitions from the journal that is
// there.
func (j *Journal) readPartitions(ctx context.Context, l *link) error {
	var s jetstream.Stream
	err := j.patiently(ctx, "stream "+j.stateStream(), func(ctx context.Context) (err error) {
		s, err = l.find(ctx, j.stateStream(), j.stateSubject()+">")
		return err
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		j.partitions = j.cfg.Partitions
		if j.partitions == 0 {
			j.partitions = 8
		}
		return nil
	}
	if err != nil {
		return failBy(ErrServer, err, "stream %s", j.stateStream())
	}
	j.found = true
	meta := s.CachedInfo().Config.Metadata
	if meta[metaFormat] == "" {
		return fail(ErrForeign, "stream %s was not made by Parley; choose another Prefix", j.stateStream())
	}
	if meta[metaFormat] == formatRestoring {
		return fail(ErrCorrupt, "a backup is being restored into stream %s, or that did not end; if it does not go on, remove the streams %s_… and restore again", j.stateStream(), j.prefix)
	}
	if meta[metaFormat] != strconv.Itoa(manifestFormat) {
		return fail(ErrFormat, "the journal has format %s, this program knows %d; use the release that wrote it, or a later one", meta[metaFormat], manifestFormat)
	}
	n, err := strconv.Atoi(meta[metaPartitions])
	if err != nil || n < 1 || n > maxPartitions {
		return fail(ErrForeign, "stream %s says it has %q partitions", j.stateStream(), meta[metaPartitions])
	}
	if j.cfg.Partitions != 0 && j.cfg.Partitions != n {
		return fail(ErrInvalid, "the journal was made with %d partitions, not %d; the number is fixed when a journal is made", n, j.cfg.Partitions)
	}
	j.partitions = n
	return nil
}

// checkFeatures refuses a server that did not take a setting, because it does
// not know it.
func (j *Journal) checkFeatures(got jetstream.StreamConfig, want *jetstream.StreamConfig) error {
	lacks := ""
	switch {
	case want.AllowAtomicPublish && !got.AllowAtomicPublish:
		lacks = "atomic batch publish (NATS server 2.12 or later)"
	case want.AllowMsgTTL && !got.AllowMsgTTL:
		lacks = "time to live per message (NATS server 2.11 or later)"
	case want.AllowDirect && !got.AllowDirect:
		lacks = "direct get"
	case got.Duplicates < want.Duplicates:
		return fail(ErrServer, "stream %s remembers message ids for %s, %s are needed (Window)", want.Name, got.Duplicates, want.Duplicates)
	default:
		return nil
	}
	return fail(ErrServer, "stream %s lacks %s; use a later server", want.Name, lacks)
}

// followAll reads what all nodes write, for as long as the journal is open.
func (j *Journal) followAll() {
	for _, w := range j.allWriters() {
		j.background.Go(func() { j.follow(w) })
	}
	j.background.Go(j.own)
}

// follow reads one stream from where its machine stands.
func (j *Journal) follow(w *writer) {
	l := j.link.Load()
	for j.ctx.Err() == nil && !l.failed() {
		err := j.followOnce(l, w)
		if j.ctx.Err() != nil {
			return
		}
		if errors.Is(err, ErrFormat) || errors.Is(err, ErrCorrupt) {
			j.engineFailed(l, err)
			return
		}
		j.cfg.Log.Warn("following a stream of the journal; it is tried again", "stream", w.stream, "err", err)
		select {
		case <-time.After(j.cfg.reopenEvery / 4):
		case <-j.ctx.Done():
		}
	}
}

func (j *Journal) followOnce(l *link, w *writer) error {
	w.followed.Store(w.m.position())
	w.heardOf(l)
	// The client's ordered consumer would wait 10 s for an answer of a server that
	// is gone, and longer each time.
	ctx, cancel := context.WithTimeout(j.ctx, followSoon)
	defer cancel()
	c, err := l.js.CreateConsumer(ctx, w.stream, jetstream.ConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: w.m.position() + 1,
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: time.Minute, Replicas: 1, MemoryStorage: true,
	})
	if err != nil {
		return err
	}
	// Short heartbeats: an append waits until it is read back here.
	it, err := c.Messages(jetstream.PullExpiry(10*time.Second), jetstream.PullHeartbeat(time.Second), jetstream.WithMessagesErrOnMissingHeartbeat(true))
	if err != nil {
		return err
	}
	defer j.background.Go(func() { j.unfollow(l, w.stream, c.CachedInfo().Name) })
	stop := context.AfterFunc(j.ctx, it.Stop)
	defer stop()
	defer it.Stop()
	for last := uint64(0); ; last++ {
		m, err := it.Next()
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if meta.Sequence.Consumer != last+1 {
			return errGap
		}
		seq := meta.Sequence.Stream
		if seq <= w.m.position() {
			w.followed.Store(w.m.position())
			continue
		}
		id, err := w.m.replay(&stored{m.Subject(), seq, m.Data()})
		if err != nil {
			return err
		}
		w.arrived(id, seq)
		w.followed.Store(seq)
	}
}

// followSoon is how long it may take to begin to follow a stream, until it is
// tried again.
const followSoon = 3 * time.Second

// errGap: something that was sent did not come, as when a connection is lost.
var errGap = errors.New("what follows did not come")

// unfollow has the engine forget a consumer, which it does by itself after a while.
func (j *Journal) unfollow(l *link, stream, consumer string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := l.js.DeleteConsumer(ctx, stream, consumer); err != nil {
		j.cfg.Log.Debug("a consumer is left to the servers", "stream", stream, "err", err)
	}
}

// heardOf notes who leads the stream. Whoever does not say it now is asked when it
// matters.
func (w *writer) heardOf(l *link) {
	ctx, cancel := context.WithTimeout(w.j.ctx, askAgain)
	defer cancel()
	if _, leader, err := l.tail(ctx, w.stream); err == nil {
		w.ledBy(leader)
	}
}

// ledBy notes the stream's leader, and reports whether it was another before.
func (w *writer) ledBy(leader string) bool {
	w.flyMu.Lock()
	defer w.flyMu.Unlock()
	old := w.leader
	w.leader = leader
	return old != "" && leader != "" && old != leader
}

// deposed looks whether the stream has another leader, or this node another
// connection. gone is closed when it has, and this node has read all that the
// leader holds: a leader has what the one before it acknowledged, and what that
// one was still to store, nobody will.
func (w *writer) deposed(reconnects uint64) (gone <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(w.j.ctx)
	out, ended := make(chan struct{}), make(chan struct{})
	l := w.j.link.Load()
	w.flyMu.Lock()
	before := w.before
	w.flyMu.Unlock()
	go func() {
		defer close(ended)
		for {
			last, leader, err := l.tail(ctx, w.stream)
			if err == nil && before == "" {
				before = leader // nothing is known of the time before
			}
			if err == nil && (leader != before || l.nc.Stats().Reconnects != reconnects) && w.followedTo(ctx, last) {
				w.ledBy(leader)
				close(out)
				return
			}
			if !await(ctx, doubtAfter) {
				return
			}
		}
	}()
	return out, func() { cancel(); <-ended }
}

// followedTo waits until it is known what has landed up to seq.
func (w *writer) followedTo(ctx context.Context, seq uint64) bool {
	if w.known(ctx, seq) != nil {
		return false
	}
	for w.followed.Load() < seq { // that it is known is said a moment before
		if !await(ctx, time.Millisecond) {
			return false
		}
	}
	return true
}

// fly remembers ops whose fate may have to be read from the stream.
func (w *writer) fly(ops []*op) {
	w.flyMu.Lock()
	defer w.flyMu.Unlock()
	w.before = w.leader
	for _, o := range ops {
		if !o.resent {
			o.arrived = 0
		}
		w.flying[o.id] = o
	}
}

func (w *writer) land(ops []*op) {
	w.flyMu.Lock()
	defer w.flyMu.Unlock()
	for _, o := range ops {
		select {
		case <-o.done:
		default:
			if o.resent {
				continue // what was sent first may land yet
			}
		}
		delete(w.flying, o.id)
	}
}

// arrived tells that the stream holds what an op made.
func (w *writer) arrived(id opID, seq uint64) {
	w.flyMu.Lock()
	defer w.flyMu.Unlock()
	if o := w.flying[id]; o != nil {
		o.arrived = seq
	}
}

func (w *writer) landed(o *op) uint64 {
	w.flyMu.Lock()
	defer w.flyMu.Unlock()
	return o.arrived
}

// readBack is how often the time is waited in which the engine answers for what
// it stored to be read: a cluster that lost a server may take some of them.
const readBack = 6

// await waits until this node has read back what it stored: what follows a
// record, the outcome of its first attempt for one, is refused where the record
// is not known.
func (w *writer) await(o *op) {
	end := o.seq + uint64(len(o.msgs)) - 1
	for range readBack {
		if w.reach(end, w.j.cfg.Timeout) || w.j.ctx.Err() != nil {
			break
		}
		w.j.cfg.Log.Warn("a record was stored but cannot be read back yet", "stream", w.stream, "sequence", o.seq)
	}
	o.finish(nil)
}

// reach waits until the machine was fed up to seq, at most for a time.
func (w *writer) reach(seq uint64, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(w.j.ctx, within)
	defer cancel()
	return w.known(ctx, seq) == nil
}

// CatchUp returns when this node knows of all partitions what the engine held
// when it was called. What another node has recorded, who heard of it from there
// may speak of before it is read here. Where no other process writes, there is
// nothing to catch up with.
func (j *Journal) CatchUp(ctx context.Context) error {
	if !j.external() {
		return nil
	}
	l, err := j.live()
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, j.cfg.Timeout)
	defer cancel()
	errs := make([]error, len(j.parts))
	var asking sync.WaitGroup
	for i, p := range j.parts {
		asking.Go(func() {
			last, err := l.end(within, p.writer.stream)
			if err == nil {
				err = p.writer.known(within, last)
			}
			errs[i] = err
		})
	}
	asking.Wait()
	if err := errors.Join(errs...); err != nil {
		return j.readError(ctx, err)
	}
	return nil
}

// ahead reports whether this node knows of a record that the stream's leader may
// not have come to yet: what is committed, another server may have handed out
// before. It takes a moment to say so.
func (p *partition) ahead(ctx context.Context, l *link, seq uint64) bool {
	return l.srv == nil && seq <= p.position() && l.behind(ctx, p.writer.stream, seq)
}

// known waits until the machine was fed up to seq.
func (w *writer) known(ctx context.Context, seq uint64) error {
	for seq > 0 {
		moved := w.m.beyond(seq - 1)
		if moved == nil {
			break
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-w.j.ctx.Done():
			return fail(ErrClosed, "")
		}
	}
	return nil
}

// duplicate finishes an op whose message id the engine knows: it is the one
// recorded before, or this very op when it was sent twice.
func (w *writer) duplicate(l *link, o *op, seq uint64) {
	p, ok := w.m.(*partition)
	if !ok || o.rec == nil {
		o.finish(fail(ErrBusy, "the engine knows the message id of an entry without a key"))
		return
	}
	ctx, cancel := context.WithTimeout(w.j.ctx, w.j.cfg.Timeout)
	defer cancel()
	// The engine's answer may name a sequence that was only expected, and
	// come before the record itself does.
	timer := time.NewTimer(w.j.cfg.Timeout)
	defer timer.Stop()
	for waiting := true; waiting; {
		at := w.m.position()
		if landed := w.landed(o); landed != 0 {
			w.store(o, landed)
			return
		}
		if prior := p.seen(o.rec.key); prior != nil {
			p.replayed(o, prior)
			return
		}
		if seq != 0 && seq <= at {
			// The guard may have let it go already, and the engine not.
			if prior := p.priorAt(ctx, l, seq, o.rec.key); prior != nil {
				p.replayed(o, prior)
				return
			}
		}
		moved := w.m.beyond(at)
		if moved == nil {
			continue
		}
		select {
		case <-moved:
		case <-timer.C:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
	o.finish(fail(ErrBusy, "the key was recorded, but not to be found yet; try again"))
}

// priorAt reads what a key was recorded with.
func (p *partition) priorAt(ctx context.Context, l *link, seq uint64, key hash16) *Prior {
	s, err := l.get(ctx, p.writer.stream, seq, "")
	if err != nil {
		return nil
	}
	r, err := p.read(s)
	if err != nil || r == nil || r.key != key {
		return nil
	}
	prior := &Prior{Position: r.Position, Recorded: r.Time, Refused: r.Refused != nil}
	if r.Message != nil {
		prior.Message = r.Message.ID
	}
	return prior
}

// replayed finishes an op with what was recorded before. An op that was sent
// again after an unknown outcome finds itself.
func (p *partition) replayed(o *op, prior *Prior) {
	if m := o.rec.Message; m != nil && m.ID == prior.Message {
		o.seq = prior.Position.Sequence
		o.finish(nil)
		return
	}
	p.mu.Lock()
	p.replays++
	p.mu.Unlock()
	o.prior = prior
	o.finish(nil)
}

// repeatable reports whether an op may be sent again that may have been stored:
// the engine stores it once, or it makes no difference.
func (o *op) repeatable() bool {
	return o.kv != nil || o.rec != nil && o.rec.Keyed || o.conditional()
}

// resolveExternal finds out what became of ops that were not acknowledged: it
// waits for them in the stream, and sends those with a key again, which the
// engine stores once. With lost nothing is to be waited for: the server that had
// them is gone, and everything that may be sent again is.
func (w *writer) resolveExternal(ops []*op, lost bool) {
	deadline := time.NewTimer(w.j.cfg.Timeout)
	defer deadline.Stop()
	for late := false; ; {
		var left []*op
		for _, o := range ops {
			if at := w.landed(o); at != 0 {
				o.seq = at
				o.finish(nil)
			} else {
				left = append(left, o)
			}
		}
		if ops = left; len(ops) == 0 {
			return
		}
		if late || lost {
			break
		}
		moved := w.m.beyond(w.m.position())
		if moved == nil {
			continue
		}
		select {
		case <-moved:
		case <-deadline.C:
			late = true
		case <-w.j.ctx.Done():
			late = true
		}
	}
	var again []*op
	for _, o := range ops {
		if lost && w.j.ctx.Err() == nil && o.repeatable() && o.retry() {
			o.resent = true
			again = append(again, o)
			continue
		}
		if lost {
			o.finish(fail(ErrUnknown, "the NATS server that had it is gone"))
			continue
		}
		if o.rec != nil && o.rec.Keyed && o.tries < 3 && w.j.ctx.Err() == nil {
			o.tries++
			again = append(again, o)
			continue
		}
		o.finish(fail(ErrUnknown, "the NATS server did not answer within %s", w.j.cfg.Timeout))
	}
	w.again(again)
}

// externalOp adds what makes the engine check between nodes.
func (p *partition) externalOp(o *op, main *outgoing) {
	r := o.rec
	if r.Keyed {
		main.msgID = r.key.String()
		if !r.Until.IsZero() {
			subject := p.subject(subjectKey, r.key.String())
			o.msgs = append(o.msgs, &outgoing{
				subject: subject, expect: &expectation{ofKey, subject, 0},
				ttl: int64((max(0, r.Until.Sub(p.j.cfg.Now())) + ttlMargin) / time.Second),
			})
		}
	}
	var done [buckets]bool
	for i := range r.Steps {
		b := bucketOf(r.Steps[i].Message)
		if done[b] {
			continue
		}
		done[b] = true
		subject := p.subject(subjectBucket, strconv.Itoa(b))
		x := &expectation{ofBucket, subject, 0}
		if main.expect == nil {
			main.subject, main.expect = subject, x
		} else {
			o.msgs = append(o.msgs, &outgoing{subject: subject, expect: x})
		}
	}
}

// refusedExternal makes an op ready to be tried again after another node was
// sooner; head is the last sequence of what it compared.
func (p *partition) refusedExternal(x *expectation, head uint64) {
	p.writer.reach(head, p.j.cfg.Timeout)
	switch x.what {
	case ofBucket:
		p.mu.Lock()
		p.bucket[p.bucketFrom(x.subject)] = head
		p.mu.Unlock()
	case ofKey:
		// If the guard knows the key, admit finds it. Else its time is over,
		// and the engine has only not removed it yet.
		x.seq = head
	}
}

func redact(url string) string {
	for i := len(url) - 1; i >= 0; i-- {
		if url[i] == '@' {
			return fmt.Sprintf("…%s", url[i:])
		}
	}
	return url
}
