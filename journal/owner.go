package journal

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
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
	leases   []*Lease              // by partition; nil: not owned
	handing  map[int]chan struct{} // partitions that are being handed over; closed when the lease is released
	told     []bool                // by partition
	watchers []*func(partition int, owned bool)
	drains   []*func(context.Context, int)
	nodes    map[string]presence // the last round's
	released int                 // leases, so that others notice
	left     bool                // this node takes no part any more
	began    time.Time           // when this node first said that it lives

	round   sync.Mutex // one round at a time
	telling sync.Mutex // held while watchers are told, so that they hear of changes in order
}

// presence is what a node says of itself.
type presence struct {
	run      uint64
	since    int64 // unix milliseconds: when it began
	leaving  bool  // it takes no partition any more
	released int   // grows with every partition that it has handed over
}

func (p presence) encode() []byte {
	return fmt.Appendf(nil, "%x %d %t %d", p.run, p.since, p.leaving, p.released)
}

func readPresence(b []byte) (p presence) {
	if n, err := fmt.Sscanf(string(b), "%x %d %t %d", &p.run, &p.since, &p.leaving, &p.released); err != nil || n != 4 {
		return presence{} // an earlier release: it lives
	}
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
	if l := j.owners.leases[partition]; l.valid() && j.owners.handing[partition] == nil {
		return l
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
	return ok && p.since <= at.Add(clockSkew).UnixMilli()
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
	o.telling.Lock()
	defer o.telling.Unlock()
	for p := range j.partitions {
		if j.store.Exclusive() || o.told[p] {
			fn(p, true)
		}
	}
	o.watchers = append(o.watchers, &fn)
	return func() {
		o.telling.Lock()
		defer o.telling.Unlock()
		o.watchers = slices.DeleteFunc(o.watchers, func(x *func(int, bool)) bool { return x == &fn })
	}
}

// own takes part in sharing the partitions, until the journal is closed.
func (j *Journal) own() {
	tick := time.NewTicker(j.cfg.OwnerTTL / 4)
	defer tick.Stop()
	news := make(chan struct{}, 1)
	stop, err := j.State(ownerBucket).Watch(j.ctx, "", func(v Value) {
		j.owners.mu.Lock()
		old, ok := j.owners.nodes[v.Key]
		j.owners.mu.Unlock()
		if v.Key == j.cfg.Node || ok == !v.Deleted && old == readPresence(v.Data) {
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
		if err := j.share(j.ctx); err != nil && j.ctx.Err() == nil {
			j.cfg.Log.Warn("sharing the partitions; it is tried again", "err", err)
		}
		j.tellOwned()
		select {
		case <-tick.C:
		case <-news:
		case <-j.ctx.Done():
			return
		}
	}
}

// share is one round.
func (j *Journal) share(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, j.cfg.OwnerTTL/2)
	defer cancel()
	j.owners.round.Lock()
	defer j.owners.round.Unlock()
	if j.owners.left {
		return nil
	}
	leaving := j.leaving.Load()
	if err := j.present(ctx); err != nil {
		return err
	}
	nodes := map[string]presence{}
	var stay []string
	for v, err := range j.State(ownerBucket).Range(ctx, "") {
		if err != nil {
			return err
		}
		nodes[v.Key] = readPresence(v.Data)
	}
	for name, p := range nodes {
		if !p.leaving {
			stay = append(stay, name)
		}
	}
	j.owners.mu.Lock()
	j.owners.nodes = nodes
	j.owners.mu.Unlock()
	var errs []error
	for i, p := range j.parts {
		j.owners.mu.Lock()
		lease, handing := j.owners.leases[i], j.owners.handing[i] != nil
		j.owners.mu.Unlock()
		mine := !leaving && preferred(i, stay) == j.cfg.Node
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

// present says that this node lives.
func (j *Journal) present(ctx context.Context) error {
	j.owners.mu.Lock()
	if j.owners.began.IsZero() {
		j.owners.began = j.cfg.Now()
	}
	p := presence{j.run, j.owners.began.UnixMilli(), j.leaving.Load(), j.owners.released}
	j.owners.mu.Unlock()
	_, err := j.State(ownerBucket).Put(ctx, j.cfg.Node, p.encode(), j.cfg.Now().Add(j.cfg.OwnerTTL))
	return err
}

// handOver gives a partition up, as soon as nothing of it is in flight here. The
// rounds go on renewing the lease until then.
func (j *Journal) handOver(partition int, lease *Lease) {
	done := make(chan struct{})
	j.owners.mu.Lock()
	if j.owners.handing == nil {
		j.owners.handing = map[int]chan struct{}{}
	}
	j.owners.handing[partition] = done
	drains := j.owners.drains
	j.owners.mu.Unlock()
	j.tellOwned()
	j.background.Go(func() {
		var all sync.WaitGroup
		for _, drain := range drains {
			all.Go(func() { (*drain)(j.ctx, partition) })
		}
		all.Wait()
		// Not while a round renews it.
		j.owners.round.Lock()
		ctx, cancel := context.WithTimeout(j.ctx, j.cfg.OwnerTTL/2)
		defer cancel()
		err := lease.Release(ctx)
		j.owners.mu.Lock()
		j.owners.leases[partition] = nil
		j.owners.released++
		delete(j.owners.handing, partition)
		close(done)
		left := j.owners.left
		j.owners.mu.Unlock()
		if !left && err == nil {
			err = j.present(ctx) // others look again
		}
		j.owners.round.Unlock()
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
	if err := j.share(ctx); err != nil {
		return err
	}
	j.owners.mu.Lock()
	waits := slices.Collect(maps.Values(j.owners.handing))
	j.owners.mu.Unlock()
	for _, done := range waits {
		select {
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (j *Journal) setLease(p int, l *Lease) {
	j.owners.mu.Lock()
	j.owners.leases[p] = l
	j.owners.mu.Unlock()
}

// tellOwned tells the watchers what has changed.
func (j *Journal) tellOwned() {
	j.owners.telling.Lock()
	defer j.owners.telling.Unlock()
	j.owners.mu.Lock()
	type change struct {
		partition int
		owned     bool
	}
	var changes []change
	for i, l := range j.owners.leases {
		valid, told := l.valid() && j.owners.handing[i] == nil, j.owners.told[i]
		j.owners.told[i] = valid
		switch lapsed := valid && l.lapsed.Swap(false); {
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

// leave ends this node's part in the sharing.
func (j *Journal) leave(ctx context.Context) {
	if err := j.Leave(ctx); err != nil {
		j.cfg.Log.Warn("partitions are not handed over and stay without an owner until their leases end", "err", err)
	}
	j.owners.round.Lock()
	defer j.owners.round.Unlock()
	j.owners.mu.Lock()
	j.owners.left = true
	clear(j.owners.leases)
	j.owners.mu.Unlock()
	j.tellOwned()
	if err := j.State(ownerBucket).Delete(ctx, j.cfg.Node, 0); err != nil {
		j.cfg.Log.Warn("leaving", "err", err)
	}
}

// preferred is who should have a partition: the node whose hash with it is the
// greatest, so that few move when a node comes or goes.
func preferred(partition int, nodes []string) string {
	var best string
	var most uint64
	for _, n := range nodes {
		sum := sha256.Sum256([]byte(strconv.Itoa(partition) + " " + n))
		if h := binary.BigEndian.Uint64(sum[:]); best == "" || h > most || h == most && n > best {
			best, most = n, h
		}
	}
	return best
}
