package journal

import (
	"context"
	"testing"
	"time"

	"github.com/parley-hub/parley"
)

// TestHandOver: a partition is handed over only after its drain has ended. The owner
// renews the lease until then, and the next owner has the partition at once. A node that
// leaves hands over all of its partitions, and counts as alive until it is closed.
func TestHandOver(t *testing.T) {
	s := natsServer(t, nil)
	a := open(t, setup{URL: s.ClientURL(), Node: "a", Partitions: 4, OwnerTTL: time.Second})
	owned := func(j *Journal) (list []int) {
		for p := range 4 {
			if j.Owned(p) {
				list = append(list, p)
			}
		}
		return list
	}
	eventually(t, "the only node owns all partitions", func() bool { return len(owned(a)) == 4 })
	leases := make([]*Lease, 4)
	for p := range 4 {
		leases[p] = a.Owner(p)
	}
	draining, proceed := make(chan int, 4), make(chan struct{})
	defer a.OnHandOver(func(ctx context.Context, p int) {
		if a.Owned(p) || a.Owner(p) != nil {
			t.Errorf("partition %d is owned while it is drained", p)
		}
		draining <- p
		select {
		case <-proceed:
		case <-ctx.Done():
		}
	})()
	told := make(chan int, 16)
	defer a.WatchOwned(func(p int, owned bool) {
		if !owned {
			told <- p
		}
	})()
	b := open(t, setup{URL: s.ClientURL(), Node: "b", OwnerTTL: time.Second})
	moving := <-draining
	if p := <-told; p != moving {
		t.Errorf("partition %d was reported lost, %d was drained", p, moving)
	}
	lease := leases[moving]
	until := lease.Until()
	eventually(t, "the lease is renewed", func() bool { return lease.Until().After(until.Add(2 * time.Second)) })
	if b.Owned(moving) || len(owned(b)) > 0 {
		t.Fatal("the partition was handed over before its drain ended")
	}
	if !b.LivesElsewhere("a", time.Now()) || b.LivesElsewhere("a", time.Now().Add(-time.Hour)) ||
		b.LivesElsewhere("b", time.Now()) {
		t.Error("LivesElsewhere is wrong for a running, an old or the own node")
	}
	close(proceed)
	eventually(t, "each partition has one owner", func() bool {
		return len(owned(a))+len(owned(b)) == 4 &&
			b.Owned(moving)
	})

	// A node leaves.
	m := request(t, "x", "y")
	if _, err := b.Append(t.Context(), Entry{Scope: "s", Message: m,
		Open: []Opening{{To: "y", Attempt: 1}}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other node owns all partitions", func() bool { return len(owned(a)) == 4 })
	if !a.LivesElsewhere("b", time.Now()) {
		t.Error("a leaving node does not count as alive")
	}
	step := Step{Message: m.ID, To: "y", State: parley.Delivered, Attempt: 1}
	if _, err := b.Append(t.Context(), Entry{Steps: []Step{step}}); err != nil {
		t.Errorf("the outcome of an attempt in flight is refused: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the closed node counts as gone", func() bool { return !a.LivesElsewhere("b", time.Now()) })
}

// TestNodeOfADelivery: a delivery names the node of its last attempt; with a waiting
// caller, the node of that caller.
func TestNodeOfADelivery(t *testing.T) {
	s := natsServer(t, nil)
	a := open(t, setup{URL: s.ClientURL(), Node: "a", Partitions: 1})
	b := open(t, setup{URL: s.ClientURL(), Node: "b"})
	for sync, want := range map[bool]string{false: "b", true: "a"} {
		m := request(t, "x", "y")
		if _, err := a.Append(t.Context(), Entry{Scope: "s", Message: m,
			Open: []Opening{{To: "y", Sync: sync}}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the other node knows the delivery", func() bool { _, ok := b.Delivery(m.ID, "y"); return ok })
		if _, err := b.Append(t.Context(), Entry{Steps: []Step{{Message: m.ID, To: "y", State: parley.Delivering,
			Attempt: 1}}}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the attempt is known", func() bool {
			v, _ := a.Delivery(m.ID, "y")
			return v.State == parley.Delivering
		})
		if v, _ := a.Delivery(m.ID, "y"); v.Node != want {
			t.Errorf("sync %v: %q, want %q", sync, v.Node, want)
		}
	}
}
