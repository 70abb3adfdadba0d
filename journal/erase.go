package journal

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unique"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/store"
)

// Erasing removes the content of records. The records keep their sender, recipient,
// time, replay keys, chains and the states of deliveries, so references to a
// record's position stay valid. The store replaces the record, and removes the old
// data from all its files.

// Erased describes the erased content of a record's message. Removed are the bytes
// as received and their headers, the data of parts, names of files, extensions,
// texts of errors and the network address; of the exchange of an attempt its address,
// and what it sent and got. Digests remain if the content cannot be guessed from them:
// of the envelope, of parts and of what was sent, of 64 bytes or more. An erasure that
// leaves [Headers] spares the headers and the network addresses.
type Erased struct {
	Number uint64 // of the [Erasure]
	Digest []byte // SHA-256 of the envelope as received; nil: there was none
	Size   uint64 // of the envelope
}

// Remains is what an erasure leaves of a message, besides its record.
type Remains int

const (
	Digests Remains = iota // digests alone
	Headers                // digests, the headers of the transport and the network address
)

// digestFrom is the size from which erased content keeps a digest: shorter content
// could be found by trying.
const digestFrom = 64

func (r *logRecord) erased() *Erased {
	if r.Erased == nil {
		r.Erased = new(Erased)
	}
	return r.Erased
}

// An Erasure is the reason for erasing: one for each command, and one for each
// change of retention.
type Erasure struct {
	Number  uint64    `json:"number"`
	What    string    `json:"what"` // "agent", "conversation" or "retention"
	Name    string    `json:"name,omitempty"`
	By      string    `json:"by"`
	Node    string    `json:"node,omitempty"` // the last hub that worked on the erasure
	Reason  string    `json:"reason,omitempty"`
	Begun   time.Time `json:"begun"`
	Ended   time.Time `json:"ended,omitzero"` // zero: not finished; continued at the next start
	UpTo    []uint64  `json:"upTo,omitempty"` // by partition: the last record in the erasure's range
	Records uint64    `json:"records"`        // erased so far
	Kept    uint64    `json:"kept,omitempty"` // not erasable yet
}

func (j *Journal) erasures() *Table[Erasure] { return NewTable[Erasure](j, "erasures", 0) }

func erasureKey(n uint64) string { return fmt.Sprintf("%012d", n) }

// NewErasure records e under the next number.
func (j *Journal) NewErasure(ctx context.Context, e Erasure) (Erasure, error) {
	for {
		last, err := j.Erasures(ctx)
		if err != nil {
			return e, err
		}
		e.Number, e.Node = 1, j.cfg.Node
		if n := len(last); n > 0 {
			e.Number = last[n-1].Number + 1
		}
		if e.Begun.IsZero() {
			e.Begun = j.cfg.Now().UTC()
		}
		e.UpTo = nil
		for _, p := range j.parts {
			e.UpTo = append(e.UpTo, p.position())
		}
		_, err = j.erasures().Replace(ctx, Row[Erasure]{Key: erasureKey(e.Number), Value: e})
		if !errors.Is(err, ErrConflict) {
			return e, err
		}
	}
}

// PutErasure records the progress of an erasure.
func (j *Journal) PutErasure(ctx context.Context, e Erasure) error {
	e.Node = j.cfg.Node
	_, err := j.erasures().Put(ctx, erasureKey(e.Number), e, time.Time{})
	return err
}

// Erasure finds an erasure by its number. Errors: ErrNotFound.
func (j *Journal) Erasure(ctx context.Context, number uint64) (Erasure, error) {
	row, err := j.erasures().Get(ctx, erasureKey(number))
	if err == nil && row.Revision == 0 {
		err = fail(ErrNotFound, "erasure %d", number)
	}
	return row.Value, err
}

// Erasures lists all erasures, by number.
func (j *Journal) Erasures(ctx context.Context) ([]Erasure, error) {
	all := map[uint64]Erasure{} // a row that changes meanwhile comes again
	for row, err := range j.erasures().Range(ctx, "") {
		if err != nil {
			return nil, err
		}
		all[row.Value.Number] = row.Value
	}
	return slices.SortedFunc(maps.Values(all), func(a, b Erasure) int { return cmp.Compare(a.Number, b.Number) }), nil
}

// WatchErasures calls fn for every erasure and every change of one, made by any
// hub, with its revision. The rules of [State].Watch hold for fn.
func (j *Journal) WatchErasures(ctx context.Context, fn func(e Erasure, revision uint64)) (stop func(), err error) {
	return j.erasures().Watch(ctx, "", func(row Row[Erasure]) {
		if row.Revision != 0 {
			fn(row.Value, row.Revision)
		}
	})
}

// Held says why the content of a record must stay for now; "": it need not. It must
// stay while a delivery of the record's message, or of its steps if it has no
// message, is unsettled or a dead letter.
func (j *Journal) Held(r *Record) string {
	if r.Position.Partition >= len(j.parts) {
		return ""
	}
	var targets []target
	for i := range r.Open {
		targets = append(targets, target{r.Message.ID, unique.Make(r.Open[i].To)})
	}
	for i := 0; i < len(r.Steps) && r.Message == nil; i++ {
		targets = append(targets, targetOf(&r.Steps[i]))
	}
	for _, t := range targets {
		if d, ok := j.parts[r.Position.Partition].find(t); ok && d.State == parley.Dead {
			return "dead letter"
		} else if ok {
			return "not delivered"
		}
	}
	return ""
}

// HasContent reports whether a record has something to erase, more than what remains:
// content of its message, or of the exchange of an attempt, or texts of errors, which may
// quote content.
func HasContent(r *Record, left Remains) bool {
	return hasContent(r.Message, left) || hasText(r.Refused) ||
		slices.ContainsFunc(r.Steps, func(s Step) bool { return hasText(s.Error) || hasExchanged(s.Exchange, left) })
}

func hasContent(m *parley.Message, left Remains) bool {
	if m == nil {
		return false
	}
	return left != Headers && (len(m.Origin.Header) > 0 || m.Origin.Address != "") ||
		len(m.Origin.Raw) > 0 || len(m.Extensions) > 0 || hasText(m.Error) ||
		slices.ContainsFunc(m.Parts, func(p parley.Part) bool { return len(p.Data) > 0 || p.Name != "" || p.URI != "" })
}

// withoutContent returns a record without its content; nil: it has none.
func withoutContent(data []byte, number uint64, left Remains) ([]byte, error) {
	r, err := decode(data)
	if err != nil || !HasContent(r.Record, left) {
		return nil, err
	}
	r.Refused, r.Steps = withoutText(r.Refused), slices.Clone(r.Steps)
	for i := range r.Steps {
		r.Steps[i].Error = withoutText(r.Steps[i].Error)
		r.Steps[i].Exchange = withoutExchanged(r.Steps[i].Exchange, left)
	}
	m := r.Message
	if m == nil {
		return encode(r), nil
	}
	if r.Erased == nil {
		r.Erased = &Erased{Size: uint64(len(m.Origin.Raw))}
		if sum := sha256.Sum256(m.Origin.Raw); len(m.Origin.Raw) >= digestFrom {
			r.Erased.Digest = sum[:]
		}
		for i := range m.Parts {
			m.Parts[i] = withoutData(m.Parts[i])
		}
	}
	r.Erased.Number = number
	m.Origin.Raw, m.Extensions = nil, nil
	if left != Headers {
		m.Origin.Header, m.Origin.Address = nil, ""
	}
	m.Error = withoutText(m.Error)
	return encode(r), nil
}

func withoutData(p parley.Part) parley.Part {
	left := parley.Part{MediaType: p.MediaType}
	if sum := sha256.Sum256(p.Data); len(p.Data) >= digestFrom {
		left.Digest = "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
	}
	return left
}

func hasExchanged(x *parley.Exchange, left Remains) bool {
	return x != nil && (len(x.Sent) > 0 || len(x.Answer) > 0 || x.Size < digestFrom && len(x.Digest) > 0 ||
		left != Headers && x.Address != "")
}

func withoutExchanged(x *parley.Exchange, left Remains) *parley.Exchange {
	if !hasExchanged(x, left) {
		return x
	}
	c := *x
	c.Sent, c.Answer = nil, nil
	if c.Size < digestFrom {
		c.Digest = nil
	}
	if left != Headers {
		c.Address = ""
	}
	return &c
}

func hasText(e *parley.Error) bool { return e != nil && (e.Text != "" || e.Detail != "") }

func withoutText(e *parley.Error) *parley.Error {
	if !hasText(e) {
		return e
	}
	c := e.Because(nil)
	c.Text, c.Detail = "", ""
	return c
}

const (
	eraseBatch = 256
	eraseBytes = 4 << 20
)

// Erase removes the content of the records at the positions but for what remains, as
// part of the numbered erasure. It returns the number of changed records when the change is as
// durable as the log. Records without content, or erased before, are skipped, so
// the call may be repeated after any error. Content that must stay (see
// [Journal.Held]) is erased all the same: the caller decides.
func (j *Journal) Erase(ctx context.Context, number uint64, left Remains, at []Position) (n int, err error) {
	if number == 0 {
		return 0, fail(ErrInvalid, "an erasure needs a number")
	}
	j.eraseMu.Lock()
	defer j.eraseMu.Unlock()
	byPartition := make(map[int][]uint64)
	for _, a := range at {
		if a.Partition < 0 || a.Partition >= len(j.parts) {
			return n, fail(ErrNotFound, "record %s", a)
		}
		byPartition[a.Partition] = append(byPartition[a.Partition], a.Sequence)
	}
	for _, p := range j.parts {
		seqs := byPartition[p.index]
		slices.Sort(seqs)
		k, err := p.erase(ctx, number, left, slices.Compact(seqs))
		n += k
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// erase replaces records, in order.
func (p *partition) erase(ctx context.Context, number uint64, left Remains, seqs []uint64) (n int, err error) {
	for len(seqs) > 0 {
		var rows []store.Record
		for size := 0; len(seqs) > 0 && len(rows) < eraseBatch && size < eraseBytes; seqs = seqs[1:] {
			err := readOpened(ctx, p.j.store, p.j.sealer, p.index, seqs[0], seqs[0], func(x store.Record) error {
				b, err := withoutContent(bytes.Clone(x.Data), number, left)
				if errors.Is(err, errRecord) || err == nil && b == nil {
					return nil // a lease, or without content
				}
				if err != nil {
					return fmt.Errorf("record %d-%d: %w", p.index, x.Sequence, err)
				}
				x.Data = p.j.sealer.seal(recordAAD(p.index, x.Sequence), compress(b))
				rows = append(rows, x)
				size += len(x.Data)
				return nil
			})
			if err != nil {
				return n, err
			}
		}
		if len(rows) == 0 {
			break
		}
		if err := p.j.store.Replace(ctx, p.index, rows); err != nil {
			return n, storeError(ctx, err)
		}
		n += len(rows)
	}
	return n, nil
}

// Scrub returns when replaced and removed values of the state are in none of the
// store's files any more, including copies in checkpoints.
func (j *Journal) Scrub(ctx context.Context) error {
	j.eraseMu.Lock()
	defer j.eraseMu.Unlock()
	for _, p := range j.parts {
		if !j.Owned(p.index) {
			continue
		}
		if err := p.checkpoint(ctx); err != nil {
			return storeError(ctx, err)
		}
	}
	return storeError(ctx, j.store.Scrub(ctx, j.cfg.Now()))
}
