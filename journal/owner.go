package journal

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Of several nodes, one dispatches the deliveries of a partition: the one that
// holds its lease. Each node says from time to time that it lives; every node
// gets from the list of those the same opinion who should have which
// partition, takes what is its own as soon as it is free, and gives up what is
// another's. A node that is silent for OwnerTTL loses all.

const (
	ownerBucket = "parley-nodes"
	ownerLease  = "parley-owner"
)

// owners is what this node owns.
type owners struct {
	mu       sync.Mutex
	leases   []*Lease // by partition; nil: not owned
	told     []bool
	watchers []*ownerWatcher

	round sync.Mutex // one round at a time
}

type ownerWatcher struct {
	mu sync.Mutex
	fn func(partition int, owned bool)
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
	if l := j.owners.leases[partition]; l.valid() {
		return l
	}
	return nil
}

func (l *Lease) valid() bool {
	return l != nil && !l.lost.Load() && l.Until().After(l.j.cfg.Now())
}

// WatchOwned calls fn for each partition this node owns now, and whenever it
// gains or loses one. The rules of Watch hold for fn.
func (j *Journal) WatchOwned(fn func(partition int, owned bool)) (stop func()) {
	w := &ownerWatcher{fn: fn}
	w.mu.Lock()
	j.owners.mu.Lock()
	var now []int
	for p := range j.partitions {
		if j.store.Exclusive() || j.owners.told[p] {
			now = append(now, p)
		}
	}
	j.owners.watchers = append(slices.Clone(j.owners.watchers), w)
	j.owners.mu.Unlock()
	for _, p := range now {
		fn(p, true)
	}
	w.mu.Unlock()
	return func() {
		j.owners.mu.Lock()
		j.owners.watchers = slices.DeleteFunc(slices.Clone(j.owners.watchers), func(x *ownerWatcher) bool { return x == w })
		j.owners.mu.Unlock()
		w.mu.Lock()
		w.fn = nil
		w.mu.Unlock()
	}
}

// own takes part in sharing the partitions, until the journal is closed.
func (j *Journal) own() {
	tick := time.NewTicker(j.cfg.OwnerTTL / 4)
	defer tick.Stop()
	for {
		if err := j.share(j.ctx); err != nil && j.ctx.Err() == nil {
			j.cfg.Log.Warn("sharing the partitions; it is tried again", "err", err)
		}
		j.tellOwned()
		select {
		case <-tick.C:
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
	if j.leaving.Load() {
		return nil
	}
	nodes := j.State(ownerBucket)
	if _, err := nodes.Put(ctx, j.cfg.Node, []byte(strconv.FormatUint(j.run, 36)), j.cfg.Now().Add(j.cfg.OwnerTTL)); err != nil {
		return err
	}
	var live []string
	for v, err := range nodes.Range(ctx, "") {
		if err != nil {
			return err
		}
		if !slices.Contains(live, v.Key) {
			live = append(live, v.Key)
		}
	}
	var errs []error
	for i, p := range j.parts {
		j.owners.mu.Lock()
		lease := j.owners.leases[i]
		j.owners.mu.Unlock()
		mine := preferred(i, live) == j.cfg.Node
		var err error
		switch {
		case lease != nil && !mine:
			j.setLease(i, nil)
			j.tellOwned()
			err = lease.Release(ctx)
		case lease != nil:
			if err = lease.Renew(ctx); errors.Is(err, ErrFenced) {
				j.setLease(i, nil)
			}
		case mine:
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

func (j *Journal) setLease(p int, l *Lease) {
	j.owners.mu.Lock()
	j.owners.leases[p] = l
	j.owners.mu.Unlock()
}

// tellOwned tells the watchers what has changed.
func (j *Journal) tellOwned() {
	j.owners.mu.Lock()
	type change struct {
		partition int
		owned     bool
	}
	var changes []change
	for i, l := range j.owners.leases {
		valid, told := l.valid(), j.owners.told[i]
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
	list := j.owners.watchers
	j.owners.mu.Unlock()
	for _, w := range list {
		w.mu.Lock()
		for _, c := range changes {
			if w.fn != nil {
				w.fn(c.partition, c.owned)
			}
		}
		w.mu.Unlock()
	}
}

// leave gives up what this node owns, for an orderly end.
func (j *Journal) leave(ctx context.Context) {
	j.owners.round.Lock()
	defer j.owners.round.Unlock()
	j.leaving.Store(true)
	for i := range j.parts {
		j.owners.mu.Lock()
		lease := j.owners.leases[i]
		j.owners.leases[i] = nil
		j.owners.mu.Unlock()
		if lease != nil {
			if err := lease.Release(ctx); err != nil {
				j.cfg.Log.Warn("a partition is not given up and stays without an owner until its lease ends", "partition", i, "err", err)
			}
		}
	}
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
