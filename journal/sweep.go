package journal

import (
	"context"

	"github.com/parley-hub/parley"
)

// Choice selects what a sweep does with a record.
type Choice int

const (
	Pass  Choice = iota // leave the record
	Take                // erase its content
	Later               // leave it, and list it in Swept.Later
	Stop                // leave it, and end the sweep
)

// A Sweep reads the records of one partition and erases the content of those that
// Choose selects.
type Sweep struct {
	Partition int
	Number    uint64 // of the erasure
	Left      Remains
	From, To  uint64 // first and last sequence; To 0: the last one now
	Limit     int    // largest number of records to read; 0: all
	Dry       bool   // count only, erase nothing

	Choose func(*Record) Choice
	// Before is called with records whose content is about to be erased, several at
	// a time. An error ends the sweep before that.
	Before func(ctx context.Context, records []*Record) error
	// Done is called with the messages whose content was erased, to erase it from the
	// index, too. They include messages from an interrupted sweep with the same
	// number.
	Done func(ctx context.Context, ids []parley.ID) error
}

// Swept is the result of a [Sweep].
type Swept struct {
	Next   uint64     // sequence at which the next sweep continues
	Looked int        // records read
	Erased int        // messages whose content was erased, or with Dry would be
	Later  []Position // records for which Choose returned Later
}

// Sweep erases the content of the records that s selects. An error does not undo
// erasures; the sweep may be repeated.
func (j *Journal) Sweep(ctx context.Context, s Sweep) (out Swept, err error) {
	out.Next = max(s.From, 1)
	if s.To == 0 && s.Partition < len(j.parts) {
		s.To = j.parts[s.Partition].position()
	}
	var list []*Record     // to be erased
	var erased []parley.ID // by this erasure before
	size := 0
	flush := func() error {
		var at []Position
		ids := erased
		for _, r := range list {
			at = append(at, r.Position)
			if r.Message != nil {
				ids = append(ids, r.Message.ID)
			}
		}
		messages := len(ids) - len(erased)
		if len(list) > 0 {
			if err := s.Before(ctx, list); err != nil {
				return err
			}
			n, err := j.Erase(ctx, s.Number, s.Left, at)
			out.Erased += min(n, messages)
			if err != nil {
				return err
			}
		}
		list, erased, size = nil, nil, 0
		if len(ids) == 0 {
			return nil
		}
		return s.Done(ctx, ids)
	}
	for r, err := range j.Records(ctx, s.Partition, From{Sequence: out.Next}) {
		if err != nil {
			return out, err
		}
		if r.Position.Sequence > s.To || s.Limit > 0 && out.Looked >= s.Limit {
			break
		}
		choice := s.Choose(r)
		if choice == Stop {
			break
		}
		out.Looked++
		out.Next = r.Position.Sequence + 1
		switch {
		case choice == Later:
			out.Later = append(out.Later, r.Position)
		case choice != Take:
		case !HasContent(r, s.Left):
			if r.Message != nil && r.Erased != nil && r.Erased.Number == s.Number && !s.Dry {
				erased = append(erased, r.Message.ID)
			}
		case !s.Dry:
			list = append(list, r)
			size += ContentSize(r)
		case r.Message != nil:
			out.Erased++
		}
		if len(list)+len(erased) >= 2048 || size >= 16<<20 {
			if err := flush(); err != nil {
				return out, err
			}
		}
	}
	return out, flush()
}

// ContentSize is the number of bytes of a record's message: as received, and of its
// parts.
func ContentSize(r *Record) int {
	m := r.Message
	if m == nil {
		return 0
	}
	return len(m.Origin.Raw) + m.ContentSize()
}
