package a2e

import (
	"context"
	"crypto/sha256"
	"slices"
	"sync/atomic"
	"time"
)

// Memory remembers the ids of requests, so that a request that is sent twice is
// executed once (A2E §7.1). Without a Memory, each session remembers its own ids in
// memory, as many as [Limits.Seen]; the embedder's Memory can outlive the process.
// Answers are kept in memory in any case, see [Limits.Answers].
type Memory interface {
	// Seen records key until the given time and reports whether it was new. It is
	// atomic: of two calls with one key exactly one gets fresh.
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// seenIDs is the memory of one session: the newest ids, by hash, for a window of time,
// and the newest answers to them. It allocates with the first request.
type seenIDs struct {
	at    map[seenKey]struct{}
	order []seenID // oldest first, from head on
	head  int

	answers  map[seenKey]*recordedAnswer
	answered []seenKey // ids of answers, the oldest answer first
	bytes    int       // of answers
}

// recordedAnswer is the answer to a request id.
type recordedAnswer struct {
	line     []byte
	at       time.Time
	repeated bool // about to be sent again
}

// answerBudget bounds the answers that all sessions of a host keep.
type answerBudget struct {
	session, all int // bytes
	used         atomic.Int64
}

// keep keeps the answer to a recorded id; older answers of the session give way to it.
// If other sessions fill the budget, the answer is not kept.
func (s *seenIDs) keep(id string, line []byte, now time.Time, b *answerBudget) {
	k, n := seenKeyOf(id), len(line)
	if _, noted := s.at[k]; !noted {
		return
	}
	for len(s.answered) > 0 && (s.bytes+n > b.session || b.used.Load()+int64(n) > int64(b.all)) {
		s.forgetAnswer(s.answered[0], b)
	}
	if b.used.Add(int64(n)) > int64(b.all) {
		b.used.Add(-int64(n))
		return
	}
	if s.answers == nil {
		s.answers = map[seenKey]*recordedAnswer{}
	}
	s.answers[k] = &recordedAnswer{line: line, at: now}
	s.bytes += n
	s.answered = append(s.answered, k)
}

func (s *seenIDs) forgetAnswer(k seenKey, b *answerBudget) {
	a := s.answers[k]
	if a == nil {
		return
	}
	s.bytes -= len(a.line)
	b.used.Add(-int64(len(a.line)))
	delete(s.answers, k)
	i := slices.Index(s.answered, k) // mostly the first
	s.answered = slices.Delete(s.answered, i, i+1)
	if len(s.answered) == 0 {
		s.answers, s.answered = nil, nil
	}
}

// clear forgets everything.
func (s *seenIDs) clear(b *answerBudget) {
	b.used.Add(-int64(s.bytes))
	*s = seenIDs{}
}

// seenKey is the hash of an id.
type seenKey [16]byte

type seenID struct {
	key   seenKey
	until time.Time
}

func seenKeyOf(id string) seenKey {
	sum := sha256.Sum256([]byte(id))
	return seenKey(sum[:16])
}

// add records an id; false if it was recorded before.
func (s *seenIDs) add(id string, now, until time.Time, limit int, b *answerBudget) bool {
	s.trim(now, b)
	k := seenKeyOf(id)
	if _, dup := s.at[k]; dup {
		return false
	}
	if s.at == nil {
		s.at = make(map[seenKey]struct{})
	}
	for len(s.at) >= limit && s.head < len(s.order) {
		s.drop(b)
	}
	s.at[k] = struct{}{}
	s.order = append(s.order, seenID{k, until})
	return true
}

func (s *seenIDs) drop(b *answerBudget) {
	s.forgetAnswer(s.order[s.head].key, b)
	delete(s.at, s.order[s.head].key)
	s.head++
	if s.head == len(s.order) {
		s.order, s.head = nil, 0
		s.at = nil // frees the buckets
	} else if s.head > 64 && s.head > len(s.order)/2 {
		s.order = append([]seenID(nil), s.order[s.head:]...)
		s.head = 0
	}
}

func (s *seenIDs) trim(now time.Time, b *answerBudget) {
	for s.head < len(s.order) && !now.Before(s.order[s.head].until) {
		s.drop(b)
	}
}
