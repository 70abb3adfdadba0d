package journal

import (
	"encoding/binary"
	"hash/crc32"
	"hash/maphash"
	"iter"
	"math"
	"slices"
	"sort"
	"time"
	"unsafe"
)

// keyTable holds the replay keys of one partition in at most 32 bytes each, as
// soon as there are some ten thousand. For
//
//	t.add(key, 41, until)
//	t.reply(41, 57)
//
// t.find(key, now) gives sequence 41 with the reply 57, until now reaches until.
//
// A key is found by a fingerprint of 40 bits, so that find may give the sequence
// of another key: of 10 million held keys, one look-up in 100,000 does. The caller
// reads the record, which has the whole key. The fingerprint has a seed of its
// own in each table, so that nobody can choose keys that collide.
//
// The keys lie in blocks in the order of the log, 16 bytes each. An index leads
// from fingerprints to sequences: 256 shards with open addressing, which are
// between 72 and 90 per cent full and grow at a moment of their own. Neither has
// a pointer per key. What has ended leaves the table within a rotation.
//
// find, first, count and bytes may run beside each other; everything else needs
// the table for itself.
type keyTable struct {
	seed   maphash.Seed
	shards [keyShards]keyShard
	blocks []keyBlock // only the last one is added to, and may be empty
	held   int
	last   uint64 // the sequence that was added last

	next    int   // the block that is cleaned next
	cleaned int64 // unix nanoseconds: how far the rotation is
}

const (
	keyShards   = 256
	keyRotation = 8 * time.Second // within which every block is cleaned
	blockKeys   = 16384
	blockSpan   = 1 << 24 // of the sequences in a block
	blockSlack  = 512     // keys; large allocations are rounded up to so many
)

// heldKey is a key in its block.
type heldKey struct {
	place uint32 // shard in 8 bits, and in 24 how far the sequence is from the block's base
	print uint32 // the rest of the fingerprint
	until uint32 // unix seconds, rounded up
	reply uint32 // how far the reply is from the request; 0: there is none yet
}

type keyBlock struct {
	base uint64 // the first sequence that it may hold
	ends uint32 // when its first key ends
	keys []heldKey
}

// keyShard is a hash table with linear probing. A slot is the fingerprint and
// the lower half of the sequence; an empty one is 0, which no fingerprint is.
type keyShard struct {
	slots []uint64
	used  int
}

func newKeyTable(seed maphash.Seed) *keyTable { return &keyTable{seed: seed} }

// fingerprint of a key: the shard and what tells keys within it apart.
func (t *keyTable) fingerprint(key hash16) (shard, print uint32) {
	h := maphash.Bytes(t.seed, key[:])
	return uint32(h >> 56), max(1, uint32(h))
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

// find gives the sequences of all records that may have the key and whose time
// has not ended, with the sequence of the terminal reply: 0 while there is none.
// The reply lies in the same partition, as the step that settles a request does.
func (t *keyTable) find(key hash16, now int64) iter.Seq2[uint64, uint64] {
	shard, print := t.fingerprint(key)
	return func(yield func(seq, reply uint64) bool) { t.each(shard, print, seconds(now), yield) }
}

func (t *keyTable) each(shard, print, now uint32, yield func(seq, reply uint64) bool) {
	s := &t.shards[shard]
	if s.used == 0 {
		return
	}
	first, _ := t.first()
	for i := s.home(print); s.slots[i] != 0; i = s.after(i) {
		if uint32(s.slots[i]>>32) != print {
			continue
		}
		// The slot has half of the sequence; the other half is that of one which is held.
		seq := t.last&^math.MaxUint32 | s.slots[i]&math.MaxUint32
		for ; seq >= first; seq -= 1 << 32 {
			if k := t.at(seq); k != nil && k.print == print && k.place>>24 == shard && k.until > now {
				reply := uint64(0)
				if k.reply != 0 {
					reply = seq + uint64(k.reply)
				}
				if !yield(seq, reply) {
					return
				}
			}
			if seq < 1<<32 {
				break
			}
		}
	}
}

// add holds the key of the record with sequence seq until its time ends. Keys are
// added in the order of the log; one that is not behind the last was added before.
func (t *keyTable) add(key hash16, seq uint64, until int64) {
	shard, print := t.fingerprint(key)
	t.addPrint(shard, print, seq, wholeSeconds(until))
}

func (t *keyTable) addPrint(shard, print uint32, seq uint64, until uint32) {
	if t.hold(shard, print, seq, until) {
		t.shards[shard].add(slotOf(print, seq))
	}
}

// hold puts a key into the last block, and reports whether it was not there.
func (t *keyTable) hold(shard, print uint32, seq uint64, until uint32) bool {
	if seq <= t.last {
		return false
	}
	t.last = seq
	b := t.tail(seq)
	if len(b.keys) == 0 {
		b.base, b.ends = seq, until
	}
	b.ends = min(b.ends, until)
	b.keys = append(b.keys, heldKey{place: shard<<24 | uint32(seq-b.base), print: print, until: until})
	t.held++
	return true
}

// load adds what read gives, many keys at once. The index is made last, one shard
// after the other, which the processor's cache makes faster; find does not know
// the keys before. reply does.
func (t *keyTable) load(read func(add func(key hash16, seq uint64, until int64)) error) error {
	var waiting [keyShards][]uint64
	err := read(func(key hash16, seq uint64, until int64) {
		shard, print := t.fingerprint(key)
		if t.hold(shard, print, seq, wholeSeconds(until)) {
			waiting[shard] = append(waiting[shard], slotOf(print, seq))
		}
	})
	for i, slots := range waiting {
		s := &t.shards[i]
		if s.used += len(slots); s.used*10 > len(s.slots)*9 {
			s.resize(roomy(s.used))
		}
		for _, slot := range slots {
			s.put(slot)
		}
	}
	return err
}

// tail is the last block, with room for seq.
func (t *keyTable) tail(seq uint64) *keyBlock {
	n := len(t.blocks)
	if n == 0 || len(t.blocks[n-1].keys) == blockKeys ||
		len(t.blocks[n-1].keys) > 0 && seq-t.blocks[n-1].base >= blockSpan {
		t.blocks = append(t.blocks, keyBlock{})
		n++
	}
	b := &t.blocks[n-1]
	if c := cap(b.keys); len(b.keys) == c {
		larger := make([]heldKey, len(b.keys), min(max(64, c+c/2), blockKeys))
		copy(larger, b.keys)
		b.keys = larger
	}
	return b
}

// reply notes where the terminal reply to the request with sequence seq stands;
// the first one counts. It reports whether the request has a key here.
func (t *keyTable) reply(seq, at uint64) bool {
	k := t.at(seq)
	if k == nil {
		return false
	}
	if k.reply == 0 && at > seq && at-seq <= math.MaxUint32 {
		k.reply = uint32(at - seq)
	}
	return true
}

// at is the key of a record, nil for none.
func (t *keyTable) at(seq uint64) *heldKey {
	i := sort.Search(len(t.blocks), func(i int) bool { return t.blocks[i].base > seq }) - 1
	if i < 0 || seq-t.blocks[i].base >= blockSpan {
		return nil
	}
	keys, d := t.blocks[i].keys, uint32(seq-t.blocks[i].base)
	k := sort.Search(len(keys), func(k int) bool { return keys[k].distance() >= d })
	if k == len(keys) || keys[k].distance() != d {
		return nil
	}
	return &keys[k]
}

func (k *heldKey) distance() uint32 { return k.place & (blockSpan - 1) }

// first is the oldest record whose key is held: the log must keep it.
func (t *keyTable) first() (seq uint64, ok bool) {
	for i := range t.blocks {
		if b := &t.blocks[i]; len(b.keys) > 0 {
			return b.base + uint64(b.keys[0].distance()), true
		}
	}
	return 0, false
}

// count is how many keys are held, with those that ended within a rotation.
func (t *keyTable) count() int { return t.held }

// bytes is the memory of the table.
func (t *keyTable) bytes() int {
	n := int(unsafe.Sizeof(*t)) + cap(t.blocks)*int(unsafe.Sizeof(keyBlock{}))
	for i := range t.blocks {
		n += cap(t.blocks[i].keys) * int(unsafe.Sizeof(heldKey{}))
	}
	for i := range t.shards {
		n += cap(t.shards[i].slots) * 8
	}
	return n
}

// expire removes what has ended from those blocks whose turn it is since the
// last call. It is cheap, and to be called at least every second.
func (t *keyTable) expire(now int64) {
	passed := now - t.cleaned
	if passed < 0 || t.cleaned == 0 {
		t.cleaned = now // the clock was set back; the blocks have their turn later
		return
	}
	turn := int64(keyRotation) / int64(max(1, len(t.blocks)))
	due := passed / turn
	t.cleaned += due * turn
	for due = min(due, int64(len(t.blocks))); due > 0; due-- {
		if t.next >= len(t.blocks) {
			t.next = 0
		}
		t.clean(seconds(now))
	}
}

// sweep removes all that has ended, at once.
func (t *keyTable) sweep(now int64) {
	for t.next = 0; t.next < len(t.blocks)-1; {
		t.clean(seconds(now))
	}
	if len(t.blocks) > 0 {
		t.clean(seconds(now))
	}
}

// clean removes what has ended from the next block, and joins it with the block
// before when one has room for both.
func (t *keyTable) clean(now uint32) {
	i := t.next
	b := &t.blocks[i]
	t.drop(b, now)
	if i == len(t.blocks)-1 {
		t.next = 0 // the last one is still added to
		return
	}
	switch n := len(b.keys); {
	case n == 0:
		t.blocks = slices.Delete(t.blocks, i, i+1)
	case i > 0 && t.join(&t.blocks[i-1], b):
		t.blocks = slices.Delete(t.blocks, i, i+1)
	default:
		if c := cap(b.keys); c-n > max(blockSlack, c/16) {
			b.keys = exactly(b.keys, nil)
		}
		t.next++
	}
}

// drop removes what has ended from a block.
func (t *keyTable) drop(b *keyBlock, now uint32) {
	if len(b.keys) == 0 || b.ends > now {
		return
	}
	kept := b.keys[:0]
	b.ends = math.MaxUint32
	for _, k := range b.keys {
		if k.until <= now {
			t.shards[k.place>>24].remove(slotOf(k.print, b.base+uint64(k.distance())))
			continue
		}
		kept, b.ends = append(kept, k), min(b.ends, k.until)
	}
	t.held -= len(b.keys) - len(kept)
	b.keys = kept
}

// join moves the keys of b into the block before it, if they fit.
func (t *keyTable) join(before, b *keyBlock) bool {
	shift := b.base - before.base
	if len(before.keys)+len(b.keys) > blockKeys || shift+uint64(b.keys[len(b.keys)-1].distance()) >= blockSpan {
		return false
	}
	for i := range b.keys {
		b.keys[i].place += uint32(shift)
	}
	before.keys, before.ends = exactly(before.keys, b.keys), min(before.ends, b.ends)
	return true
}

// exactly is a and b in memory of their own, with as much room as the allocator
// gives anyway.
func exactly(a, b []heldKey) []heldKey {
	return append(append(slices.Grow([]heldKey(nil), len(a)+len(b)), a...), b...)
}

func slotOf(print uint32, seq uint64) uint64 { return uint64(print)<<32 | seq&math.MaxUint32 }

// home is where the search for a fingerprint begins.
func (s *keyShard) home(print uint32) int { return int(uint64(print) * uint64(len(s.slots)) >> 32) }

func (s *keyShard) after(i int) int {
	if i++; i < len(s.slots) {
		return i
	}
	return 0
}

// roomy is the size of a shard for n keys that need not grow or shrink soon.
func roomy(n int) int { return max(8, n*100/81+1) }

func (s *keyShard) add(slot uint64) {
	if n := len(s.slots); (s.used+1)*10 > n*9 {
		s.resize(max(8, n+n/5))
	}
	s.put(slot)
	s.used++
}

func (s *keyShard) put(slot uint64) {
	i := s.home(uint32(slot >> 32))
	for s.slots[i] != 0 {
		i = s.after(i)
	}
	s.slots[i] = slot
}

func (s *keyShard) resize(n int) {
	old := s.slots
	s.slots = make([]uint64, n)
	for _, slot := range old {
		if slot != 0 {
			s.put(slot)
		}
	}
}

// remove takes a slot out, and moves those behind it up to where they are found.
func (s *keyShard) remove(slot uint64) {
	i := s.home(uint32(slot >> 32))
	for s.slots[i] != slot {
		i = s.after(i)
	}
	n := len(s.slots)
	for k := s.after(i); s.slots[k] != 0; k = s.after(k) {
		home := s.home(uint32(s.slots[k] >> 32))
		if (k-home+n)%n >= (k-i+n)%n {
			s.slots[i], i = s.slots[k], k
		}
	}
	s.slots[i] = 0
	s.used--
	if n > 8 && s.used*100 < n*72 {
		s.resize(roomy(s.used))
	}
}

// A keyFact is what a record says about replay keys: it has a key, or it is the
// terminal reply to a request.
type keyFact struct {
	seq    uint64 // of the record with the key
	key    hash16
	until  int64  // unix nanoseconds; kept in seconds, rounded up
	sender hash16 // whose allowance a long-lived key uses; zero for others
	reply  uint64 // not 0: nothing but the reply to the request with sequence seq
}

// Kinds of facts in their encoding.
const (
	factKey = iota
	factLong
	factReply
)

const factsVersion = 1

// encodeKeys writes facts for a checkpoint, in some 20 bytes a key and 5 a reply:
// a version, the facts, and a checksum. A fact is
//
//	seq (difference to the one before, zigzag)<<2 | kind
//	key (16 bytes)  until (difference, zigzag)  [sender (16 bytes)]
//	or the reply's distance from seq
func encodeKeys(facts []keyFact) []byte {
	b := make([]byte, 1, 16+24*len(facts))
	b[0] = factsVersion
	var seq, until int64
	for i := range facts {
		f := &facts[i]
		kind := uint64(factKey)
		switch {
		case f.reply != 0:
			kind = factReply
		case f.sender != hash16{}:
			kind = factLong
		}
		b = binary.AppendUvarint(b, zigzag(int64(f.seq)-seq)<<2|kind)
		seq = int64(f.seq)
		if kind == factReply {
			b = binary.AppendUvarint(b, f.reply-f.seq)
			continue
		}
		s := int64(wholeSeconds(f.until))
		b = append(b, f.key[:]...)
		b = binary.AppendUvarint(b, zigzag(s-until))
		until = s
		if kind == factLong {
			b = append(b, f.sender[:]...)
		}
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeKeys gives the facts that encodeKeys wrote. The error is ErrCorrupt or
// ErrFormat, before the first fact: what the records say is then to be read.
func decodeKeys(data []byte, each func(keyFact)) error {
	n := len(data) - 4
	if n < 1 || crc32.Checksum(data[:n], castagnoli) != binary.LittleEndian.Uint32(data[n:]) {
		return fail(ErrCorrupt, "replay keys of a checkpoint")
	}
	if data[0] != factsVersion {
		return fail(ErrFormat, "replay keys of a checkpoint in version %d", data[0])
	}
	var seq, until int64
	b := data[1:n]
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			b = nil
			return 0
		}
		b = b[n:]
		return v
	}
	hash := func() (h hash16) { b = b[copy(h[:], b):]; return h }
	for len(b) > 0 {
		head := number()
		seq += unzigzag(head >> 2)
		f := keyFact{seq: uint64(seq)}
		if head&3 == factReply {
			f.reply = f.seq + number()
			each(f)
			continue
		}
		f.key = hash()
		until += unzigzag(number())
		f.until = until * int64(time.Second)
		if head&3 == factLong {
			f.sender = hash()
		}
		each(f)
	}
	return nil
}

func zigzag(n int64) uint64   { return uint64(n)<<1 ^ uint64(n>>63) }
func unzigzag(n uint64) int64 { return int64(n>>1) ^ -int64(n&1) }
