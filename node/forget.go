package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// forget erases the content of the messages of an agent or a conversation. A dry run only counts them.
func (e *eraser) forget(ctx context.Context, what, name, by, reason string, dry bool) (admin.Forgotten, error) {
	x := journal.Erasure{What: what, Name: name, By: by, Reason: reason}
	if dry {
		return e.run(ctx, x, true)
	}
	x, err := e.n.journal.NewErasure(ctx, x)
	if err != nil {
		return admin.Forgotten{}, err
	}
	// Once recorded, the erasure continues without its caller.
	var out admin.Forgotten
	done := make(chan struct{})
	e.work.Go(func() {
		defer close(done)
		out, err = e.run(e.ctx, x, false)
	})
	select {
	case <-done:
		return out, err
	case <-ctx.Done():
		return admin.Forgotten{}, ctx.Err()
	}
}

// resume finishes interrupted erasures.
func (e *eraser) resume(ctx context.Context) error {
	list, err := e.n.journal.Erasures(ctx)
	if err != nil {
		return err
	}
	for _, x := range list {
		if !x.Ended.IsZero() {
			continue
		}
		e.n.log.Info("an interrupted erasure continues", "number", x.Number, "what", x.What, "name", x.Name)
		if _, err := e.run(ctx, x, false); err != nil {
			return err
		}
	}
	return nil
}

const (
	maxIdentities = 1024
	maxForgotten  = 1 << 20
)

// run carries an erasure out from its beginning. Messages that an interrupted run erased are only read
// again.
func (e *eraser) run(ctx context.Context, x journal.Erasure, dry bool) (out admin.Forgotten, err error) {
	if !dry {
		end, err := e.waitLock(ctx)
		if err != nil {
			return out, err
		}
		defer end()
		switch now, err := e.n.journal.Erasure(ctx, x.Number); {
		case err != nil:
			return out, err
		case !now.Ended.IsZero():
			return out, nil // another hub has finished it meanwhile
		}
	}
	r := &forgetRun{e: e, x: x, dry: dry, since: e.n.c.Now().Add(-sessionsEnd), forgotten: map[parley.ID]struct{}{},
		out: admin.Forgotten{Erasure: x.Number, What: x.What, Name: x.Name, DryRun: dry}}
	r.what.Message = func(id parley.ID) bool { _, ok := r.forgotten[id]; return ok }
	if x.What == "conversation" {
		if r.what.Conversation, err = parley.ParseID(x.Name); err != nil {
			return r.out, err
		}
	} else {
		r.what.Agent = x.Name
		if a, ok := e.n.directory.Agent(x.Name); ok {
			r.what.Identities = slices.Clone(a.Identities)
		}
	}
	for p := range e.n.journal.Partitions() {
		if err := r.partition(ctx, p); err != nil {
			return r.out, err
		}
	}
	if dry {
		return r.out, nil
	}
	return r.out, r.finish(ctx)
}

// A forgetRun is one run of an erasure.
type forgetRun struct {
	e         *eraser
	x         journal.Erasure
	dry       bool
	since     time.Time // a chain that has grown since then is needed
	what      hub.Forgetting
	forgotten map[parley.ID]struct{} // messages that the bindings have yet to forget
	full      uint64                 // sequence number of the first message that had no room in forgotten; 0: none
	out       admin.Forgotten
}

// partition erases in one partition. If forgotten was full, it reads the partition again
// from there.
func (r *forgetRun) partition(ctx context.Context, p int) error {
	upTo := uint64(0)
	if p < len(r.x.UpTo) {
		if upTo = r.x.UpTo[p]; upTo == 0 {
			return nil
		}
	}
	for from := uint64(1); from > 0; from = r.full {
		r.full = 0
		s, err := r.e.n.journal.Sweep(ctx, journal.Sweep{Partition: p, Number: r.x.Number, From: from, To: upTo,
			Dry: r.dry, Before: r.e.n.hub.Erasing, Done: r.e.unindexMessages(false),
			Choose: func(rec *journal.Record) journal.Choice { return r.choose(ctx, rec) }})
		r.out.Erased += uint64(s.Erased)
		r.x.Records += uint64(s.Erased)
		if !r.dry {
			r.e.erased.WithLabelValues("forget").Add(float64(s.Erased))
		}
		if err != nil {
			return fmt.Errorf("erase partition %d: %w", p, err)
		}
		if r.full > 0 {
			if err := r.forgetKept(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// choose takes the records of the erasure whose content is not needed, and counts the needed ones.
func (r *forgetRun) choose(ctx context.Context, rec *journal.Record) journal.Choice {
	j, m := r.e.n.journal, rec.Message
	if m == nil {
		named := func(s journal.Step) bool { return s.To == r.what.Agent || r.what.Message(s.Message) }
		if journal.HasContent(rec, journal.Digests) && j.Held(rec) == "" && slices.ContainsFunc(rec.Steps, named) {
			return journal.Take
		}
		return journal.Pass
	}
	if !r.wants(rec) {
		return journal.Pass
	}
	if r.x.What == "agent" && m.From == r.x.Name && len(r.what.Identities) < maxIdentities && m.Origin.Peer != "" &&
		!r.what.Is(m.Origin.Protocol, m.Origin.Peer) {
		r.what.Identities = append(r.what.Identities, parley.Identity{Protocol: m.Origin.Protocol, ID: m.Origin.Peer})
	}
	if rec.Erased == nil {
		if needed := r.needed(ctx, rec); needed != nil {
			if r.full == 0 {
				*needed++
			}
			return journal.Pass
		}
	}
	switch {
	case r.full > 0:
	case len(r.forgotten) < maxForgotten:
		r.forgotten[m.ID] = struct{}{}
	case !r.dry:
		r.full = rec.Position.Sequence
	}
	return journal.Take
}

// wants reports whether a record's message belongs to the agent or the conversation.
func (r *forgetRun) wants(rec *journal.Record) bool {
	m := rec.Message
	if r.x.What == "conversation" {
		return m.Conversation == r.what.Conversation
	}
	return m.From == r.x.Name || m.To == r.x.Name ||
		slices.ContainsFunc(rec.Open, func(o journal.Opening) bool { return o.To == r.x.Name })
}

// needed gives the counter of the reason why a record's content must stay, or nil.
func (r *forgetRun) needed(ctx context.Context, rec *journal.Record) *uint64 {
	switch why := r.e.n.journal.Held(rec); {
	case why == "dead letter":
		return &r.out.Dead
	case why != "":
		return &r.out.Undelivered
	case r.e.ongoing(ctx, rec, r.since):
		return &r.out.Ongoing
	}
	return nil
}

// forgetKept has the bindings erase their state of the forgotten messages.
func (r *forgetRun) forgetKept(ctx context.Context) error {
	if r.dry {
		return nil
	}
	n, err := r.e.n.hub.Forget(ctx, r.what)
	r.out.Values += uint64(n)
	clear(r.forgotten)
	return err
}

// finish overwrites remains in the state and the index, and records that the erasure has ended.
func (r *forgetRun) finish(ctx context.Context) error {
	if err := r.forgetKept(ctx); err != nil {
		return err
	}
	j := r.e.n.journal
	if err := j.Scrub(ctx); err != nil {
		return fmt.Errorf("overwrite the old values of the state: %w", err)
	}
	if err := r.e.unindexMessages(true)(ctx, nil); err != nil {
		return fmt.Errorf("take the messages out of the index: %w", err)
	}
	r.out.Ended = r.e.n.c.Now().UTC()
	r.x.Ended, r.x.Kept = r.out.Ended, r.out.Kept()
	return j.PutErasure(ctx, r.x)
}
