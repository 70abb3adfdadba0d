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

// Of several nodes, one dispatches the deliveries of a partition: the one that
// holds its lease. Each node says from time to time that it lives; every node
// gets from the list of those the same opinion who should have which
// partition, takes what is its own as soon as it is free, and hands over what is
// another's: it begins nothing there any more, lets end what is in flight, and
// then releases the lease. A node that is silent for OwnerTTL loses all.

const (
	ownerBucket = "parley-nodes"
	ownerLease  = "parley-owner"
)

// owners is what this node owns.
type owners struct {
	mu       sync.Mutex
	parts    []ownership // by partition
	watchers []*func(partition int, owned bool)
	drains   []*func(context.Context, int)
	nodes    map[string]heartbeat // the last round's
	released int                  // leases, so that others notice
	since    time.Time            // when this node first said that it lives

	roundMu  sync.Mutex // one round at a time
	notifyMu sync.Mutex // held while watchers are told, so that they hear of changes in order
}

// ownership is what this node has of one partition.
type ownership struct {
	lease        *Lease        // nil: not owned
	handOverDone chan struct{} // closed when the lease is released; nil while it is not being handed over
	notified     bool          // to the watchers
}

func (o *ownership) valid() bool { return o.handOverDone == nil && o.lease.valid() }

// heartbeat is what a node says of itself.
type heartbeat struct {
	Run      uint64 `json:"run"`
	Since    int64  `json:"since"`              // unix milliseconds: when it began
	Leaving  bool   `json:"leaving,omitempty"`  // it takes no partition any more
	Released int    `json:"released,omitempty"` // grows with every partition that it has handed over
}

// parseHeartbeat gives what a node says. One that says what is not known here lives.
func parseHeartbeat(b []byte) (p heartbeat) {
	_ = json.Unmarshal(b, &p)
	return p
}

// Owned reports whether this node dispatches the partition's deliveries. Where no
// other process writes, it owns all.
func (j *Journal) Owned(partition int) bool {
	if partition < 0 || partition >= j.partitions {
		return false
	}
	return j.store.Exclusive() || j.Owner(partition) != nil
}

// Owner is the lease by which this node owns the partition, to fence entries
// with; nil where no other process writes, or it does not own it.
func (j *Journal) Owner(partition int) *Lease {
	if j.store.Exclusive() || partition < 0 || partition >= j.partitions {
		return nil
	}
	j.owners.mu.Lock()
	defer j.owners.mu.Unlock()
	if o := &j.owners.parts[partition]; o.valid() {
		return o.lease
	}
	return nil
}

// LivesElsewhere reports whether another node of this name is alive that began
// before the time given: what it was doing then it may be doing still.
func (j *Journal) LivesElsewhere(node string, at time.Time) bool {
	if j.store.Exclusive() || node == j.cfg.Node {
		return false
	}
	j.owners.mu.Lock()
	defer j.owners.mu.Unlock()
	p, ok := j.owners.nodes[node]
	return ok && p.Since <= at.Add(clockSkew).UnixMilli()
}

// clockSkew is how far the clocks of nodes may differ.
const clockSkew = time.Second

// Node is the name of this node among those that share the journal.
func (j *Journal) Node() string { return j.cfg.Node }

// OnHandOver has drain called before a partition goes to another node in order.
// Watchers were told already that it is not owned; the lease is held until drain
// returns. It is to return when nothing of the partition is in flight, at the
// latest when ctx ends. Where no other process writes, nothing is handed over.
func (j *Journal) OnHandOver(drain func(ctx context.Context, partition int)) (stop func()) {
	o := &j.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drains = append(slices.Clone(o.drains), &drain)
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.drains = slices.DeleteFunc(slices.Clone(o.drains), func(x *func(context.Context, int)) bool { return x == &drain })
	}
}

func (l *Lease) valid() bool {
	return l != nil && !l.lost.Load() && l.Until().After(l.j.cfg.Now())
}

// WatchOwned calls fn for each partition this node owns now, and whenever it
// gains or loses one. The rules of Watch hold for fn.
func (j *Journal) WatchOwned(fn func(partition int, owned bool)) (stop func()) {
	o := &j.owners
	o.notifyMu.Lock()
	defer o.notifyMu.Unlock()
	for p := range j.partitions {
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

// ownLoop takes part in sharing the partitions, until the journal is closed.
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
			j.cfg.Log.Warn("sharing the partitions; it is tried again", "err", err)
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

// rebalance is one round.
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
		lease, handing := j.owners.parts[i].lease, j.owners.parts[i].handOverDone != nil
		j.owners.mu.Unlock()
		mine := preferred(i, nodes) == j.cfg.Node
		var err error
		switch {
		case lease != nil:
			if err = lease.Renew(ctx); errors.Is(err, ErrFenced) {
				j.setLease(i, nil)
			} else if !mine && !handing {
				j.handOver(i, lease)
			}
		case mine && !handing:
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

// sendHeartbeat says that this node lives.
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

// handOver gives a partition up, as soon as nothing of it is in flight here. The
// rounds go on renewing the lease until then.
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
		// Not while a round renews it.
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
			err = j.sendHeartbeat(ctx) // others look again
		}
		j.owners.roundMu.Unlock()
		if err != nil && !errors.Is(err, ErrFenced) && j.ctx.Err() == nil {
			j.cfg.Log.Warn("a partition was handed over and may stay without an owner until its lease ends", "partition", partition, "err", err)
		}
	})
}

// Leave hands over all that this node owns, before it ends in order. It returns
// when that is done, or when ctx ends. The node goes on being one that lives, and
// may record, until the journal is closed.
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

// notifyOwned tells the watchers what has changed.
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
			// What was recorded in between was for no owner: the partition is
			// lost, and taken anew.
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

// preferred is who should have a partition: of the nodes that stay the one whose
// hash with it is the greatest, so that few move when a node comes or goes.
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
