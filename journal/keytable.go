package journal

import (
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"time"
)

// keyTable holds the replay keys of one partition, in at most 32 bytes each from
// some ten thousand keys on. For
//
//	t.add(key, 41, until)
//	t.reply(key, 41, 57)
//
// t.find(key, now) returns sequence 41 with the reply 57, until now reaches until.
//
// Keys are found by a fingerprint of 40 bits, so find may return the sequence of
// another key: with 10 million keys, one look-up in 100,000 does. The caller
// compares the key in the record. Each table has a random seed for fingerprints, so
// that senders cannot choose colliding keys.
//
// The table has 256 shards, each a hash table with linear probing. They grow at
// different moments. Expired keys are removed within a rotation. The table has no
// pointers.
//
// find and oldest may run concurrently; every other method needs exclusive access.
type keyTable struct {
	seed   maphash.Seed
	shards [keyShards]keyShard
	held   int    // keys, including keys that expired within a rotation
	last   uint64 // the last added sequence

	next    int   // the next shard to be cleaned
	cleaned int64 // unix nanoseconds: progress of the rotation
}

const (
	keyShards   = 256
	keyRotation = 8 * time.Second // within which every shard is cleaned
)

// heldKey is a key in its shard: 20 bytes.
type heldKey struct {
	print     uint32 // the fingerprint without the shard; 0: the slot is empty
	until     uint32 // unix seconds, rounded up
	reply     uint32 // distance of the reply from the request; 0: no reply yet
	low, high uint32 // of the sequence
}

func (k *heldKey) seq() uint64 { return uint64(k.high)<<32 | uint64(k.low) }

// keyShard is at most 90 per cent full, so that a search ends.
type keyShard struct {
	slots []heldKey
	used  int
}

func newKeyTable(seed maphash.Seed) *keyTable { return &keyTable{seed: seed} }

// fingerprint returns the shard of a key, and its fingerprint within the shard.
func (t *keyTable) fingerprint(key hash16) (*keyShard, uint32) {
	h := maphash.Bytes(t.seed, key[:])
	return &t.shards[h>>56], max(1, uint32(h))
}

// wholeSeconds is a time in seconds, rounded up.
func wholeSeconds(until int64) uint32 {
	s := until / int64(time.Second)
	if until%int64(time.Second) > 0 {
		s++
	}
	return uint32(max(0, min(s, math.MaxUint32)))
}

// seconds is a time in seconds, rounded down.
func seconds(now int64) uint32 { return uint32(max(0, min(now/int64(time.Second), math.MaxUint32))) }

// A keyedRecord may have a key. reply is the sequence of the terminal reply in the
// same partition, 0: there is none yet.
type keyedRecord struct{ seq, reply uint64 }

// find returns all records that may have the key and have not expired.
func (t *keyTable) find(key hash16, now int64) (found []keyedRecord) {
	s, print := t.fingerprint(key)
	for k := range s.search(print) {
		x := keyedRecord{seq: k.seq()}
		if k.reply != 0 {
			x.reply = x.seq + uint64(k.reply)
		}
		if k.until > seconds(now) {
			found = append(found, x)
		}
	}
	return found
}

// add adds the key of a record until it expires. Keys are added in the order of the
// log; a key whose record is not after the last one was added before.
func (t *keyTable) add(key hash16, seq uint64, until int64) bool {
	if seq <= t.last {
		return false
	}
	t.last = seq
	s, print := t.fingerprint(key)
	if (s.used+1)*10 > len(s.slots)*9 {
		s.resize(1, 0)
	}
	s.put(heldKey{print: print, until: wholeSeconds(until), low: uint32(seq), high: uint32(seq >> 32)})
	t.held++
	return true
}

// grow makes room for n more keys at once.
func (t *keyTable) grow(n int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.resize(n/keyShards, 0)
	}
}

// reply notes the sequence of the first terminal reply to the request with this key
// and sequence. It returns the expiry of the key, 0: the table does not have it.
func (t *keyTable) reply(key hash16, seq, at uint64) (until int64) {
	s, print := t.fingerprint(key)
	for k := range s.search(print) {
		if k.seq() == seq {
			if k.reply == 0 && at > seq && at-seq <= math.MaxUint32 {
				k.reply = uint32(at - seq)
			}
			return int64(k.until) * int64(time.Second)
		}
	}
	return 0
}

// oldest is the first record with an unexpired key: the log must keep that record.
func (t *keyTable) oldest(now int64) (seq uint64, ok bool) {
	at := seconds(now)
	for i := range t.shards {
		for k := range t.shards[i].slots {
			if k := &t.shards[i].slots[k]; k.print != 0 && k.until > at && (!ok || k.seq() < seq) {
				seq, ok = k.seq(), true
			}
		}
	}
	return seq, ok
}

// expire removes expired keys from the shards that are due since the last call. It
// is cheap; call it at least every second.
func (t *keyTable) expire(now int64) {
	passed := now - t.cleaned
	if passed < 0 || t.cleaned == 0 {
		t.cleaned = now // the clock was set back; the shards are due later
		return
	}
	const turn = int64(keyRotation) / keyShards
	due := passed / turn
	t.cleaned += due * turn
	for range min(due, keyShards) {
		s := &t.shards[t.next]
		t.next = (t.next + 1) % keyShards
		t.held -= s.used
		s.resize(0, seconds(now))
		t.held += s.used
	}
}

// search returns the keys with a fingerprint.
func (s *keyShard) search(print uint32) iter.Seq[*heldKey] {
	return func(yield func(*heldKey) bool) {
		if s.used == 0 {
			return
		}
		for i := s.home(print); s.slots[i].print != 0; i = s.after(i) {
			if s.slots[i].print == print && !yield(&s.slots[i]) {
				return
			}
		}
	}
}

// home is the slot where the search for a fingerprint begins.
func (s *keyShard) home(print uint32) int { return int(uint64(print) * uint64(len(s.slots)) >> 32) }

func (s *keyShard) after(i int) int {
	if i++; i < len(s.slots) {
		return i
	}
	return 0
}

func (s *keyShard) put(k heldKey) {
	i := s.home(k.print)
	for s.slots[i].print != 0 {
		i = s.after(i)
	}
	s.slots[i] = k
	s.used++
}

// resize removes expired keys, and makes room for n more keys and some reserve.
func (s *keyShard) resize(n int, now uint32) {
	kept := 0
	for i := range s.slots {
		if k := &s.slots[i]; k.print != 0 && k.until > now {
			kept++
		}
	}
	if n == 0 && kept == s.used {
		return
	}
	n += kept
	old := s.slots
	*s = keyShard{slots: make([]heldKey, n+n/3+8)}
	for _, k := range old {
		if k.print != 0 && k.until > now {
			s.put(k)
		}
	}
}

// An allowance holds, by sender, the expiry of keys that outlive the window, in
// unix nanoseconds. MaxLongKeys bounds them.
type allowance map[hash16][]int64

// of counts the keys of a sender that have not expired.
func (a allowance) of(sender hash16, now int64) int {
	kept := slices.DeleteFunc(a[sender], func(until int64) bool { return until <= now })
	a[sender] = kept
	if len(kept) == 0 {
		delete(a, sender)
	}
	return len(kept)
}

// expire removes expired keys, and returns how many are left.
func (a allowance) expire(now int64) (held int) {
	for sender := range a {
		held += a.of(sender, now)
	}
	return held
}

// A keyFact is the part of a record that concerns replay keys: the record has a
// key, or is the terminal reply to a request that has one.
type keyFact struct {
	at     uint64 // the record's sequence
	back   uint64 // distance of its request; 0: it has the key itself
	key    hash16
	until  int64  // expiry of the key; unix nanoseconds, encoded in seconds, rounded up
	sender hash16 // of a key that outlives the window; else zero
}

const factSize = 25 // bytes of most facts in a checkpoint

func (c *coder) fact(f *keyFact, last uint64) {
	gap, until := f.at-last, int64(wholeSeconds(f.until))
	ident(c, 1, &f.key)
	number(c, 2, &gap, math.MaxUint64)
	number(c, 3, &f.back, math.MaxUint64)
	number(c, 4, &until, math.MaxUint32)
	ident(c, 5, &f.sender)
	f.at, f.until = last+gap, until*int64(time.Second)
}

// encodeKeys encodes facts for a checkpoint.
func encodeKeys(facts []keyFact) []byte {
	c := coder{b: make([]byte, 0, (factSize+8)*len(facts))}
	last := uint64(0)
	for _, f := range facts {
		c.fact(&f, last)
		last = f.at
	}
	return c.b
}

// decodeKeys decodes the result of encodeKeys. After an error the log must be read.
func decodeKeys(b []byte, each func(keyFact)) error {
	c := coder{reading: true, b: b, end: len(b)}
	last := uint64(0)
	for c.next(); c.tag >= 0; {
		f := keyFact{at: last}
		before := c.i
		c.fact(&f, last)
		if c.err != nil || c.i == before && c.tag >= 0 {
			break
		}
		last = f.at
		each(f)
	}
	if c.err != nil || c.tag >= 0 {
		return fail(ErrCorrupt, "replay keys of a checkpoint")
	}
	return nil
}
