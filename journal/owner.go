package journal

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"
)

// In a cluster one hub dispatches the deliveries of a partition: the holder of its
// lease. Each hub sends a heartbeat. From the live hubs every hub computes the same
// assignment of partitions. It takes the lease of an assigned partition as soon as
// it is free. It hands over a partition that is assigned to another hub: it starts
// no more attempts there, waits for those in flight and releases the lease. A hub
// that is silent for OwnerTTL loses all its partitions.

const (
	ownerBucket = "parley-nodes"
	ownerLease  = "parley-owner"
)

// owners is the state of this hub's ownership.
type owners struct {
	mu       sync.Mutex
	parts    []ownership // by partition
	watchers []*func(partition int, owned bool)
	drains   []*func(context.Context, int)
	nodes    map[string]heartbeat // as of the last rebalance
	released int                  // counts handed-over leases, so that other hubs notice
	since    time.Time            // time of this hub's first heartbeat

	roundMu  sync.Mutex // one rebalance at a time
	notifyMu sync.Mutex // held while watchers are called, so that they get changes in order
}

// ownership is this hub's share in one partition.
type ownership struct {
	lease        *Lease        // nil: not owned
	handOverDone chan struct{} // closed when the lease is released; nil while it is not being handed over
	notified     bool          // owned, as far as the watchers know
}

func (o *ownership) valid() bool { return o.handOverDone == nil && o.lease.valid() }

// heartbeat is a value that each hub keeps in the state while it is alive.
type heartbeat struct {
	Run      uint64 `json:"run"`
	Since    int64  `json:"since"`              // unix milliseconds: when the hub started
	Leaving  bool   `json:"leaving,omitempty"`  // the hub takes no more partitions
	Released int    `json:"released,omitempty"` // partitions handed over so far
}

// parseHeartbeat decodes a heartbeat. A hub counts as alive even if the form of its
// heartbeat is unknown.
func parseHeartbeat(b []byte) (p heartbeat) {
	_ = json.Unmarshal(b, &p)
	return p
}

// Owned reports whether this hub dispatches the partition's deliveries. If no other
// process writes to the store, it owns all partitions.
func (j *Journal) Owned(partition int) bool {
	if j.store.Exclusive() {
		return partition >= 0 && partition < j.meta.Partitions
	}
	return j.Owner(partition) != nil
}

// Owner is the lease by which this hub owns the partition, for Entry.Fence. nil:
// another hub owns the partition, or no other process writes to the store.
func (j *Journal) Owner(partition int) *Lease {
	if j.store.Exclusive() || partition < 0 || partition >= j.meta.Partitions {
		return nil
	}
	j.owners.mu.Lock()
	defer j.owners.mu.Unlock()
	if o := &j.owners.parts[partition]; o.valid() {
		return o.lease
	}
	return nil
}

// LivesElsewhere reports whether another hub of this name is alive that started
// before the given time: its work from that time may still go on.
func (j *Journal) LivesElsewhere(node string, at time.Time) bool {
	if j.store.Exclusive() || node == j.cfg.Node {
		return false
	}
	j.owners.mu.Lock()
	defer j.owners.mu.Unlock()
	p, ok := j.owners.nodes[node]
	return ok && p.Since <= at.Add(clockSkew).UnixMilli()
}

// clockSkew is how far the clocks of hubs may differ.
const clockSkew = time.Second

// Node is the name of this hub among the hubs that share the journal.
func (j *Journal) Node() string { return j.cfg.Node }

// OnHandOver registers drain, which is called before this hub hands a partition over
// to another. Watchers have then been told that the partition is not owned; the hub
// holds the lease until drain returns. drain must return when nothing of the
// partition is in flight, at the latest when ctx ends. It is never called if no
// other process writes to the store.
func (j *Journal) OnHandOver(drain func(ctx context.Context, partition int)) (stop func()) {
	o := &j.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drains = append(slices.Clone(o.drains), &drain)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.drains = slices.DeleteFunc(slices.Clone(o.drains),
			func(x *func(context.Context, int)) bool { return x == &drain })
	}
}

func (l *Lease) valid() bool {
	return l != nil && !l.lost.Load() && l.Until().After(l.j.cfg.Now())
}

// WatchOwned calls fn for each partition that this hub owns now, and whenever it
// gains or loses one. The rules of Watch hold for fn.
func (j *Journal) WatchOwned(fn func(partition int, owned bool)) (stop func()) {
	o := &j.owners
	o.notifyMu.Lock()
	defer o.notifyMu.Unlock()
	for p := range j.meta.Partitions {
		if j.store.Exclusive() || o.parts[p].notified {
			fn(p, true)
		}
	}
	o.watchers = append(o.watchers, &fn)
	return func() {
		o.notifyMu.Lock()
		defer o.notifyMu.Unlock()
		o.watchers = slices.DeleteFunc(o.watchers, func(x *func(int, bool)) bool { return x == &fn })
	}
}

// ownLoop rebalances the partitions until the journal is closed.
func (j *Journal) ownLoop() {
	tick := time.NewTicker(j.cfg.OwnerTTL / 4)
	defer tick.Stop()
	news := make(chan struct{}, 1)
	stop, err := j.State(ownerBucket).Watch(j.ctx, "", func(v Value) {
		j.owners.mu.Lock()
		old, ok := j.owners.nodes[v.Key]
		j.owners.mu.Unlock()
		if v.Key == j.cfg.Node || ok == !v.Deleted && old == parseHeartbeat(v.Data) {
			return
		}
		select {
		case news <- struct{}{}:
		default:
		}
	})
	if err == nil {
		defer stop()
	} else if j.ctx.Err() == nil {
		j.cfg.Log.Warn("partitions change hands later than they could", "err", err)
	}
	for {
		if err := j.rebalance(j.ctx); err != nil && j.ctx.Err() == nil {
			j.cfg.Log.Warn("sharing the partitions failed; trying again", "err", err)
		}
		j.notifyOwned()
		select {
		case <-tick.C:
		case <-news:
		case <-j.ctx.Done():
			return
		}
	}
}

// rebalance sends a heartbeat, renews leases, takes the leases of assigned
// partitions and starts handing over the others.
func (j *Journal) rebalance(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.OwnerTTL/2)
	defer cancel()
	j.owners.roundMu.Lock()
	defer j.owners.roundMu.Unlock()
	if err := j.sendHeartbeat(ctx); err != nil {
		return err
	}
	nodes := map[string]heartbeat{}
	for v, err := range j.State(ownerBucket).Range(ctx, "") {
		if err != nil {
			return err
		}
		nodes[v.Key] = parseHeartbeat(v.Data)
	}
	j.owners.mu.Lock()
	j.owners.nodes = nodes
	j.owners.mu.Unlock()
	var errs []error
	for i, p := range j.parts {
		j.owners.mu.Lock()
		lease, leaving := j.owners.parts[i].lease, j.owners.parts[i].handOverDone != nil
		j.owners.mu.Unlock()
		mine := preferred(i, nodes) == j.cfg.Node
		var err error
		switch {
		case lease != nil:
			if err = lease.Renew(ctx); errors.Is(err, ErrFenced) {
				j.setLease(i, nil)
			} else if !mine && !leaving {
				j.handOver(i, lease)
			}
		case mine && !leaving:
			if lease, err = j.lease(ctx, p, ownerLease, j.cfg.OwnerTTL); err == nil {
				j.setLease(i, lease)
			} else if errors.Is(err, ErrExists) {
				err = nil
			}
		}
		if err != nil && !errors.Is(err, ErrFenced) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// sendHeartbeat tells the other hubs that this one is alive.
func (j *Journal) sendHeartbeat(ctx context.Context) error {
	j.owners.mu.Lock()
	if j.owners.since.IsZero() {
		j.owners.since = j.cfg.Now()
	}
	b, err := json.Marshal(heartbeat{j.runID, j.owners.since.UnixMilli(), j.leaving.Load(), j.owners.released})
	j.owners.mu.Unlock()
	if err == nil {
		_, err = j.State(ownerBucket).Put(ctx, j.cfg.Node, b, j.cfg.Now().Add(j.cfg.OwnerTTL))
	}
	return err
}

// handOver releases a partition's lease when nothing of the partition is in flight
// here. Until then rebalance goes on renewing the lease.
func (j *Journal) handOver(partition int, lease *Lease) {
	done := make(chan struct{})
	j.owners.mu.Lock()
	o := &j.owners.parts[partition]
	o.handOverDone = done
	drains := j.owners.drains
	j.owners.mu.Unlock()
	j.notifyOwned()
	j.background.Go(func() {
		var all sync.WaitGroup
		for _, drain := range drains {
			all.Go(func() { (*drain)(j.ctx, partition) })
		}
		all.Wait()
		// Not while rebalance renews it.
		j.owners.roundMu.Lock()
		ctx, cancel := context.WithTimeout(j.ctx, j.cfg.OwnerTTL/2)
		defer cancel()
		err := lease.Release(ctx)
		j.owners.mu.Lock()
		o.lease, o.handOverDone = nil, nil
		j.owners.released++
		close(done)
		j.owners.mu.Unlock()
		if err == nil {
			err = j.sendHeartbeat(ctx) // so that others rebalance
		}
		j.owners.roundMu.Unlock()
		if err != nil && !errors.Is(err, ErrFenced) && j.ctx.Err() == nil {
			j.cfg.Log.Warn("a partition was handed over and may stay without an owner until its lease ends",
				"partition", partition, "err", err)
		}
	})
}

// Leave hands over all partitions of this hub before it stops. It returns when that
// is done, or when ctx ends. Until the journal is closed the hub counts as alive for
// the others, and may record.
func (j *Journal) Leave(ctx context.Context) error {
	if j.store.Exclusive() {
		return nil
	}
	j.leaving.Store(true)
	if err := j.rebalance(ctx); err != nil {
		return err
	}
	j.owners.mu.Lock()
	parts := slices.Clone(j.owners.parts)
	j.owners.mu.Unlock()
	for _, o := range parts {
		if o.handOverDone == nil {
			continue
		}
		select {
		case <-o.handOverDone:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (j *Journal) setLease(p int, l *Lease) {
	j.owners.mu.Lock()
	j.owners.parts[p].lease = l
	j.owners.mu.Unlock()
}

// notifyOwned passes changes to the watchers.
func (j *Journal) notifyOwned() {
	j.owners.notifyMu.Lock()
	defer j.owners.notifyMu.Unlock()
	j.owners.mu.Lock()
	type change struct {
		partition int
		owned     bool
	}
	var changes []change
	for i := range j.owners.parts {
		o := &j.owners.parts[i]
		valid, told := o.valid(), o.notified
		o.notified = valid
		switch lapsed := valid && o.lease.lapsed.Swap(false); {
		case lapsed && told:
			// No hub dispatched the records made in between: the watchers see the
			// partition lost and gained.
			changes = append(changes, change{i, false}, change{i, true})
		case valid != told:
			changes = append(changes, change{i, valid})
		}
	}
	j.owners.mu.Unlock()
	for _, fn := range j.owners.watchers {
		for _, c := range changes {
			(*fn)(c.partition, c.owned)
		}
	}
}

// preferred is the hub that a partition is assigned to: of the hubs that stay, the
// one whose hash with the partition is the greatest. So few partitions move when a
// hub comes or goes.
func preferred(partition int, nodes map[string]heartbeat) (best string) {
	var most uint64
	for n, p := range nodes {
		sum := sha256.Sum256([]byte(strconv.Itoa(partition) + " " + n))
		if h := binary.BigEndian.Uint64(sum[:]); !p.Leaving && (best == "" || h > most || h == most && n > best) {
			best, most = n, h
		}
	}
	return best
}
