package journal

import (
	"context"
	"crypto/sha256"
	"encoding/binary"

	"github.com/parley-hub/parley/journal/store"
)

// The replay guard knows the keys of one partition whose time has not ended. It
// is fed from the log alone: a key is known from the moment at which its record
// is. It lies in a keyTable; what finds it there is compared with the record. The
// few that outlive the window count against the allowance of their sender.

// keyHash is what is kept of a replay key.
func keyHash(scope, id string) hash16 {
	b := make([]byte, 0, 128)
	b = binary.AppendUvarint(b, uint64(len(scope)))
	b = append(b, scope...)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return hash16(sum[:16])
}

// nameHash is what is kept of a sender, a chain or a lease.
func nameHash(kind, name string) hash16 { return keyHash(kind, name) }

// keyEnd is when a record's key ends, and whether it outlives the window.
func (p *partition) keyEnd(r *Record) (until int64, long bool) {
	within := nanos(r.Time.Add(p.j.cfg.Window))
	if r.Until.IsZero() {
		return within, false
	}
	until = nanos(r.Until)
	return until, until > within
}

// remember holds the key of a record.
func (p *partition) remember(r *sealed) {
	seq := r.Position.Sequence
	f := keyFact{seq: seq, key: r.key}
	var long bool
	if f.until, long = p.keyEnd(r.Record); long {
		f.sender = r.sender
	}
	p.hold(f)
	p.note(f)
}

func (p *partition) hold(f keyFact) {
	if f.reply != 0 {
		p.keys.reply(f.key, f.seq, f.reply)
	} else if p.keys.add(f.key, f.seq, f.until) && f.sender != (hash16{}) {
		p.long.add(f.sender, f.until)
	}
}

// maxFacts is how many facts wait for a checkpoint. A node that does not own the
// partition writes none; it forgets them and reads the log when it does.
const maxFacts = 1 << 17

// note keeps a fact for the next checkpoint.
func (p *partition) note(f keyFact) {
	p.facts = append(p.facts, f)
}

func (p *partition) expire() { p.keys.expire(nanos(p.j.cfg.Now())) }

// seen tells of the record that has a key already, nil if none has.
func (p *partition) seen(ctx context.Context, key hash16) (*Prior, error) {
	type candidate struct{ seq, reply uint64 }
	var found []candidate
	now := nanos(p.j.cfg.Now())
	p.mu.RLock()
	for seq, reply := range p.keys.find(key, now) {
		found = append(found, candidate{seq, reply})
	}
	p.mu.RUnlock()
	for _, c := range found {
		var r *sealed
		var bad error
		err := p.j.store.Read(ctx, p.index, c.seq, c.seq, func(x store.Record) bool {
			r, bad = p.parse(x, true)
			return false
		})
		switch {
		case bad != nil:
			return nil, bad
		case err != nil:
			return nil, storeError(ctx, err)
		case r == nil || r.key != key:
			continue
		}
		prior := &Prior{Position: r.Position, Recorded: r.Time, Refused: r.Refused != nil}
		if r.Message != nil {
			prior.Message = r.Message.ID
		}
		if c.reply != 0 {
			prior.Reply = Position{p.index, c.reply}
		}
		return prior, nil
	}
	return nil, nil
}
