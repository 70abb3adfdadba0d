package asp

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"time"

	protocol "github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
)

// bucketErased has, by session/position, the erased records without their content.
const bucketErased = "asp-erased"

func erasedKey(session string, position int64) string {
	return session + "/" + strconv.FormatInt(position, 10)
}

// erasing prepares sessions for the erasure of records. Since a session is replayed
// from its log, erasing stores each record without its content, and a checkpoint after
// it. The context objects of erased messages lose their data.
func (b *Binding) erasing(ctx context.Context, records []*journal.Record) error {
	sessions := map[string][]*journal.Record{}
	for _, r := range records {
		if r.Chain == nil || r.Message == nil || r.Erased != nil || len(r.Message.Extensions[Protocol]) == 0 {
			continue
		}
		if id := sessionOf(r.Chain.Name); id != "" {
			sessions[id] = append(sessions[id], r)
		}
	}
	for id, list := range sessions {
		if err := b.store.erasing(ctx, id, list); err != nil {
			return fmt.Errorf("session %s: %w", id, err)
		}
	}
	return nil
}

func (s *store) erasing(ctx context.Context, session string, records []*journal.Record) error {
	c := s.chain(session)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := s.load(ctx, c); err != nil {
		return err
	}
	if c.ledger == nil {
		s.forget(c.id)
		return nil
	}
	after := *c.ledger
	after.Context = maps.Clone(after.Context)
	for _, r := range records {
		x, err := recordOf(r.Message)
		if err != nil {
			return fmt.Errorf("record at %s: %w", r.Position, err)
		}
		rec := &x.Record
		if e, err := rec.Format.Decode(rec.Raw); rec.Kind == protocol.RecordMessage && err == nil {
			for _, o := range e.Content.Context {
				if x, ok := after.Context[o.ID]; ok && x.Sender == rec.Sender {
					x.Data = json.RawMessage("{}")
					after.Context[o.ID] = x
				}
			}
		}
		if rec.Kind == protocol.RecordClose {
			after.Reason = ""
		}
		stripContent(rec)
		if _, err := s.erased.Put(ctx, erasedKey(session, rec.Position), rec, time.Time{}); err != nil {
			return err
		}
	}
	c.ledger = &after
	defer s.forget(c.id) // with its decoded records and answers
	return s.save(ctx, c, after.Participants, "")
}

// stripContent removes the content of agents from a record.
func stripContent(r *protocol.Record) {
	if r.Kind == protocol.RecordMessage {
		r.Kind = protocol.RecordErased
	}
	r.Raw, r.Reason, r.Request, r.Ledger, r.ScoreFrom, r.ScoreTo = nil, "", nil, nil, 0, 0
	if r.Dispute != nil {
		d := *r.Dispute
		d.Reason, d.Evidence = "", nil
		r.Dispute = &d
	}
}

// withoutContent gives an erased record.
func (s *store) withoutContent(ctx context.Context, session string, position int64,
	r *journal.Record) (*protocol.Record, error) {
	row, err := s.erased.Get(ctx, erasedKey(session, position))
	if err == nil && row.Revision == 0 { // an earlier release erased it
		return &protocol.Record{Session: session, Position: position, Kind: protocol.RecordErased, Time: r.Time,
			MessageID: r.Message.ID.String()}, nil
	}
	return row.Value, err
}

// Forget implements hub.Forgetter: the sessions in memory are dropped, with decoded
// records and answers.
func (b *Binding) Forget(context.Context, hub.Forgetting) (int, error) {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	clear(b.store.chains)
	return 0, nil
}
