package journal

import (
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"time"
)

// keyTable holds the replay keys of one partition in at most 32 bytes each, as
// soon as there are some ten thousand. For
//
//	t.add(key, 41, until)
//	t.reply(key, 41, 57)
//
// t.find(key, now) gives sequence 41 with the reply 57, until now reaches until.
//
// A key is found by a fingerprint of 40 bits, so that find may give the sequence
// of another key: of 10 million held keys, one look-up in 100,000 does. The caller
// reads the record, which has the whole key. The fingerprint has a seed of its
// own in each table, so that nobody can choose keys that collide.
//
// The table has 256 shards, each a hash table with linear probing that grows at a
// moment of its own. What has ended leaves it within a rotation. It holds no
// pointers.
//
// find and oldest may run beside each other; everything else needs the table for
// itself.
type keyTable struct {
	seed   maphash.Seed
	shards [keyShards]keyShard
	held   int    // keys, with those that ended within a rotation
	last   uint64 // the sequence that was added last

	next    int   // the shard that is cleaned next
	cleaned int64 // unix nanoseconds: how far the rotation is
}

const (
	keyShards   = 256
	keyRotation = 8 * time.Second // within which every shard is cleaned
)

// heldKey is a key in its shard: 20 bytes.
type heldKey struct {
	print     uint32 // the fingerprint without the shard; 0: the slot is empty
	until     uint32 // unix seconds, rounded up
	reply     uint32 // how far the reply is from the request; 0: there is none yet
	low, high uint32 // of the sequence
}

func (k *heldKey) seq() uint64 { return uint64(k.high)<<32 | uint64(k.low) }

// keyShard is at most 90 per cent full, so that a search ends.
type keyShard struct {
	slots []heldKey
	used  int
}

func newKeyTable(seed maphash.Seed) *keyTable { return &keyTable{seed: seed} }

// fingerprint of a key: the shard and what tells keys within it apart.
func (t *keyTable) fingerprint(key hash16) (*keyShard, uint32) {
	h := maphash.Bytes(t.seed, key[:])
	return &t.shards[h>>56], max(1, uint32(h))
}

// wholeSeconds is when a time has passed, in seconds.
func wholeSeconds(until int64) uint32 {
	s := until / int64(time.Second)
	if until%int64(time.Second) > 0 {
		s++
	}
	return uint32(max(0, min(s, math.MaxUint32)))
}

// seconds is a moment in full seconds that have passed.
func seconds(now int64) uint32 { return uint32(max(0, min(now/int64(time.Second), math.MaxUint32))) }

// A keyedRecord is one that may have a key, with the sequence of the terminal reply,
// 0 while there is none. The reply lies in the same partition, as the step that
// settles a request does.
type keyedRecord struct{ seq, reply uint64 }

// find gives all records that may have the key and whose time has not ended.
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

// add holds the key of the record with sequence seq until its time ends. Keys are
// added in the order of the log; one that is not behind the last was added before.
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

// grow makes room for n keys more, which is cheaper than to grow while they come.
func (t *keyTable) grow(n int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.resize(n/keyShards, 0)
	}
}

// reply notes where the terminal reply to the request with this key and sequence
// stands; the first one counts. It gives when the key ends, 0 where it is not held.
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

// oldest is the first record whose key has not ended: the log must keep it.
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

// expire removes what has ended from those shards whose turn it is since the
// last call. It is cheap, and to be called at least every second.
func (t *keyTable) expire(now int64) {
	passed := now - t.cleaned
	if passed < 0 || t.cleaned == 0 {
		t.cleaned = now // the clock was set back; the shards have their turn later
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

// search gives the keys with a fingerprint.
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

// home is where the search for a fingerprint begins.
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

// resize drops what has ended, and makes room for n keys more and some besides.
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

// An allowance holds, by sender, the ends of those keys that outlive the window, in
// unix nanoseconds: so few that they may lie in memory for as long as their senders
// want.
type allowance map[hash16][]int64

// of is how many keys of a sender have not ended.
func (a allowance) of(sender hash16, now int64) int {
	kept := slices.DeleteFunc(a[sender], func(until int64) bool { return until <= now })
	if a[sender] = kept; len(kept) == 0 {
		delete(a, sender)
	}
	return len(kept)
}

// expire forgets what has ended, and gives how many keys are left.
func (a allowance) expire(now int64) (held int) {
	for sender := range a {
		held += a.of(sender, now)
	}
	return held
}

// A keyFact is what a record says about replay keys: it has a key, or it is the
// terminal reply to a request that has one.
type keyFact struct {
	at     uint64 // the record's sequence
	back   uint64 // how far before it the request is that it replies to; 0: it has the key itself
	key    hash16
	until  int64  // when the key ends; unix nanoseconds, kept in seconds, rounded up
	sender hash16 // whose allowance a key uses that outlives the window; zero for others
}

const factSize = 25 // bytes that most take in a checkpoint

func (c *coder) fact(f *keyFact, last uint64) {
	gap, until := f.at-last, int64(wholeSeconds(f.until))
	ident(c, 1, &f.key)
	number(c, 2, &gap, math.MaxUint64)
	number(c, 3, &f.back, math.MaxUint64)
	number(c, 4, &until, math.MaxUint32)
	ident(c, 5, &f.sender)
	f.at, f.until = last+gap, until*int64(time.Second)
}

// encodeKeys writes facts for a checkpoint.
func encodeKeys(facts []keyFact) []byte {
	c := coder{b: make([]byte, 0, (factSize+8)*len(facts))}
	last := uint64(0)
	for _, f := range facts {
		c.fact(&f, last)
		last = f.at
	}
	return c.b
}

// decodeKeys gives the facts that encodeKeys wrote. After an error what the
// records say is to be read.
func decodeKeys(b []byte, each func(keyFact)) error {
	c := coder{reading: true, b: b, end: len(b)}
	last := uint64(0)
	for c.next(); c.tag >= 0; {
		f := keyFact{at: last}
		before := c.i
		if c.fact(&f, last); c.err != nil || c.i == before && c.tag >= 0 {
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
