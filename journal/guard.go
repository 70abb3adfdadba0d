package journal

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
)

// The replay guard of a partition knows the keys that have not expired. It is fed
// from the log alone. A keyTable holds the keys; a hit there is compared with the
// record. Keys that outlive the window count against their sender's allowance.

// keyHash is the stored form of a replay key.
func keyHash(scope, id string) hash16 {
	b := make([]byte, 0, 128)
	b = binary.AppendUvarint(b, uint64(len(scope)))
	b = append(b, scope...)
	b = append(b, id...)
	sum := sha256.Sum256(b)
	return hash16(sum[:16])
}

// nameHash is the stored form of a sender, a chain or a lease.
func nameHash(kind, name string) hash16 { return keyHash(kind, name) }

// keyEnd returns when a record's key expires, and whether that is after the window.
func (p *partition) keyEnd(r *Record) (until int64, long bool) {
	within := nanos(r.Time.Add(p.j.cfg.Window))
	if r.Until.IsZero() {
		return within, false
	}
	until = nanos(r.Until)
	return until, until > within
}

// addKey adds the key of a record to the table, and to the next checkpoint.
func (p *partition) addKey(r *logRecord) {
	f := keyFact{at: r.Position.Sequence, key: r.key}
	var long bool
	if f.until, long = p.keyEnd(r.Record); long {
		f.sender = r.sender
	}
	if f.until > nanos(p.j.cfg.Now()) {
		p.applyFact(f)
		p.facts = append(p.facts, f)
	}
}

// addReply notes the position of the reply to the request of a delivery.
func (p *partition) addReply(d *delivery, at uint64) {
	f := keyFact{at: at, back: at - d.seq, key: d.key}
	if f.until = p.keys.reply(d.key, d.seq, at); f.until != 0 {
		p.facts = append(p.facts, f)
	}
}

func (p *partition) applyFact(f keyFact) {
	if f.back != 0 {
		p.keys.reply(f.key, f.at-f.back, f.at)
	} else if p.keys.add(f.key, f.at, f.until) && f.sender != (hash16{}) {
		p.longKeys[f.sender] = append(p.longKeys[f.sender], f.until)
	}
}

func (p *partition) expire() { p.keys.expire(nanos(p.j.cfg.Now())) }

// seen returns the record that has the key already; nil: there is none.
func (p *partition) seen(ctx context.Context, key hash16) (*Prior, error) {
	p.mu.RLock()
	found := p.keys.find(key, nanos(p.j.cfg.Now()))
	p.mu.RUnlock()
	for _, c := range found {
		r, err := p.record(ctx, c.seq)
		if err != nil {
			return nil, err
		}
		if r == nil || r.key != key {
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
