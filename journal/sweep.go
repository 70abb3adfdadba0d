package journal

import (
	"context"

	"github.com/parley-hub/parley"
)

// Choice is what a sweep does with a record.
type Choice int

const (
	Pass  Choice = iota // leave it
	Take                // erase its content
	Later               // leave it, and tell of it
	Stop                // leave it and all behind it
)

// A Sweep goes through the records of one partition and erases the content of
// those that are chosen.
type Sweep struct {
	Partition int
	Number    uint64 // of the erasure
	From, To  uint64 // first and last sequence; To 0: up to the end as it is now
	Limit     int    // at most so many records are looked at; 0: all
	Dry       bool   // nothing is erased, only counted

	Choose func(*Record) Choice
	// Before is told of records that are about to lose their content, some at a
	// time: an error ends the sweep before they do.
	Before func(ctx context.Context, records []*Record) error
	// Done is told which messages have no content any more: it takes them out
	// of what was made of the log. Also of those that an interrupted sweep of
	// the same number has erased.
	Done func(ctx context.Context, ids []parley.ID) error
}

// Swept is what a [Sweep] did.
type Swept struct {
	Next   uint64     // where to go on
	Looked int        // at how many records
	Erased int        // messages that lost their content; with Dry, that would
	Later  []Position // what was chosen so
}

// Sweep erases what s chooses. What was done stays done after an error; the
// sweep may be repeated.
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
			n, err := j.Erase(ctx, s.Number, at)
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
		case !HasContent(r):
			if r.Message != nil && r.Erased != nil && r.Erased.Number == s.Number && !s.Dry {
				erased = append(erased, r.Message.ID)
			}
		case !s.Dry:
			list = append(list, r)
			size += contentSize(r)
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

func contentSize(r *Record) int {
	m := r.Message
	if m == nil {
		return 0
	}
	n := len(m.Origin.Raw)
	for i := range m.Parts {
		n += len(m.Parts[i].Data)
	}
	return n
}
