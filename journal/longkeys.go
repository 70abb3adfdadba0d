package journal

import "container/heap"

// longKeys holds the replay keys of one partition that outlive the window. They
// are few: [Config.MaxLongKeys] bounds those of each sender. The keys within the
// window are in a keyTable.
type longKeys struct {
	keys    map[hash16]*longLived
	bySeq   map[uint64]*longLived
	ends    longEnds
	senders map[hash16]int
}

type longLived struct {
	key, sender hash16
	seq, reply  uint64 // of its record, and of the terminal reply to it: 0 while there is none
	until       int64  // unix nanoseconds
	index       int    // in the heap
}

// longEnds is a heap: what ends first is on top.
type longEnds []*longLived

func (h longEnds) Len() int           { return len(h) }
func (h longEnds) Less(i, k int) bool { return h[i].until < h[k].until }
func (h longEnds) Swap(i, k int)      { h[i], h[k] = h[k], h[i]; h[i].index, h[k].index = i, k }
func (h *longEnds) Push(x any)        { k := x.(*longLived); k.index = len(*h); *h = append(*h, k) }
func (h *longEnds) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return k
}

func newLongKeys() *longKeys {
	return &longKeys{keys: make(map[hash16]*longLived), bySeq: make(map[uint64]*longLived), senders: make(map[hash16]int)}
}

// find gives the record of a key whose time has not ended, and the sequence of
// the terminal reply to it.
func (l *longKeys) find(key hash16, now int64) (seq, reply uint64, ok bool) {
	if k := l.keys[key]; k != nil && k.until > now {
		return k.seq, k.reply, true
	}
	return 0, 0, false
}

// add holds the key of the record with sequence seq until its time ends.
func (l *longKeys) add(key, sender hash16, seq uint64, until int64) {
	if k := l.keys[key]; k != nil {
		l.forget(k)
	}
	k := &longLived{key: key, sender: sender, seq: seq, until: until}
	heap.Push(&l.ends, k)
	l.keys[key], l.bySeq[seq] = k, k
	l.senders[sender]++
}

// reply notes where the terminal reply to the request with sequence seq stands;
// the first one counts. It reports whether the request has a key here.
func (l *longKeys) reply(seq, at uint64) bool {
	k := l.bySeq[seq]
	if k != nil && k.reply == 0 {
		k.reply = at
	}
	return k != nil
}

// expire removes what has ended.
func (l *longKeys) expire(now int64) {
	for len(l.ends) > 0 && l.ends[0].until <= now {
		l.forget(l.ends[0])
	}
}

func (l *longKeys) forget(k *longLived) {
	heap.Remove(&l.ends, k.index)
	delete(l.keys, k.key)
	delete(l.bySeq, k.seq)
	if l.senders[k.sender]--; l.senders[k.sender] <= 0 {
		delete(l.senders, k.sender)
	}
}

// first is the oldest record whose key is held: the log must keep it.
func (l *longKeys) first() (seq uint64, ok bool) {
	for _, k := range l.ends {
		if !ok || k.seq < seq {
			seq, ok = k.seq, true
		}
	}
	return seq, ok
}

// count is how many keys are held, of how many is sender's.
func (l *longKeys) count() int           { return len(l.ends) }
func (l *longKeys) of(sender hash16) int { return l.senders[sender] }
