package asp

import (
	"context"
	"hash/maphash"
)

// A Chain checks the messages of one session in the order of their links, as
// "Verification process" says, and more strictly: it checks each message by
// itself, against the message before it, and against the counters. It reports
// every fault and goes on with the next message. Memory does not grow with the
// session, except for eight bytes a message up to a million messages.
//
// The zero value with Keys is ready. It is not safe for concurrent use.
//
// Like the published algorithm, a Chain does not detect changes to members
// outside hash and signature, another spelling of the same content, a cut tail,
// and the loss of one of two neighbours with equal content. [VerifyTranscript]
// detects them, because it also checks the server's records.
type Chain struct {
	Keys Keys

	count     int64
	head      string
	previous  string // previousHash of the last message
	session   string
	last      *Envelope
	skipped   bool // skip passed over the last message
	next      map[string]int64
	seed      maphash.Seed
	ids       map[uint64]struct{}
	recent    []uint64
	recentPos int
}

// A Finding is the result of a [Chain] for one message.
type Finding struct {
	Index    int64
	Codes    []string // faults, in the order hash, link, signature, session, counter, messageId
	Warnings []string
	Detail   string    // "fork" when two messages follow the same message
	Envelope *Envelope // nil if the message could not be parsed
}

// OK reports whether the message has no fault.
func (f *Finding) OK() bool { return len(f.Codes) == 0 }

// Bounds of a Chain's memory: counters of senders, and messageIds to find
// duplicates.
const (
	maxSenders    = 4096
	maxRemembered = 1 << 20
)

// Add checks the next message. The error is that of Keys; faults of the
// message are in the finding.
func (c *Chain) Add(ctx context.Context, raw []byte, f Format) (*Finding, error) {
	found := &Finding{Index: c.count}
	c.count++
	c.begin()
	e, err := parseEnvelope(raw, f)
	if err != nil {
		found.fault(asError(err).Code)
		c.head, c.previous, c.last = "", "", nil
		return found, nil
	}
	found.Envelope = e
	if e.root.get("content") == nil || e.checkHash() != nil {
		found.fault("hash_mismatch")
	}
	if c.skipped {
		c.skipped = false // the message before this one is missing: no comparison
	} else if e.Integrity.PreviousHash != c.head {
		found.fault("chain_mismatch")
		if c.last != nil && e.Integrity.PreviousHash == c.previous {
			found.Detail = "fork"
		}
	}
	if err := c.checkSigner(ctx, e, found); err != nil {
		return nil, err
	}
	if c.count > 1 && e.SessionID != c.session {
		found.fault("session_mismatch")
	} else {
		c.session = e.SessionID
	}
	c.checkCounter(e, found)
	c.checkID(e, found)
	if err := e.check(); err != nil && found.OK() {
		// The schema comes last: a change should show as the broken hash or link.
		found.fault(asError(err).Code)
	}
	if c.last != nil && Compare(e, c.last) <= 0 {
		found.Warnings = append(found.Warnings, "order_anomaly")
	}
	c.head, c.previous, c.last = e.Integrity.Hash, e.Integrity.PreviousHash, e
	return found, nil
}

func (c *Chain) begin() {
	if c.next == nil {
		c.next = make(map[string]int64)
		c.seed = maphash.MakeSeed()
		c.ids = make(map[uint64]struct{})
		c.head = ZeroHash
	}
}

// skip passes over a message of which only the sender and the number are known.
func (c *Chain) skip(session, sender string, number int64) {
	c.begin()
	c.count++
	c.head, c.previous, c.last, c.skipped, c.session = "", "", nil, true, session
	if _, known := c.next[sender]; known || len(c.next) < maxSenders {
		c.next[sender] = max(c.next[sender], number+1)
	}
}

func (f *Finding) fault(code string) { f.Codes = append(f.Codes, code) }

func (c *Chain) checkSigner(ctx context.Context, e *Envelope, found *Finding) error {
	var keys []Key
	if c.Keys != nil {
		var err error
		if keys, err = c.Keys.Keys(ctx, e.Sender.AgentID); err != nil {
			return err
		}
	}
	sent, ok := ParseTimestamp(e.Timestamp)
	key, known := Key{}, false
	if ok {
		key, known = keyAt(keys, sent)
	} else if len(keys) > 0 {
		key, known = keys[len(keys)-1], true
	}
	switch {
	case !known:
		found.fault("key_unknown")
	case !e.signedBy(key.Signing):
		found.fault("bad_signature")
	}
	return nil
}

func (c *Chain) checkCounter(e *Envelope, found *Finding) {
	sender := e.Sender.AgentID
	next, known := c.next[sender]
	if !known && len(c.next) >= maxSenders {
		found.fault("not_participant")
		return
	}
	switch {
	case e.SequenceNumber < next:
		found.fault("sequence_replay")
		return
	case e.SequenceNumber > next:
		found.fault("sequence_gap")
	}
	c.next[sender] = e.SequenceNumber + 1
}

func (c *Chain) checkID(e *Envelope, found *Finding) {
	if e.root.get("messageId") == nil {
		return
	}
	h := maphash.String(c.seed, e.MessageID)
	if _, seen := c.ids[h]; seen {
		found.fault("duplicate_message_id")
		return
	}
	if len(c.recent) < maxRemembered {
		c.recent = append(c.recent, h)
	} else {
		delete(c.ids, c.recent[c.recentPos])
		c.recent[c.recentPos] = h
		c.recentPos = (c.recentPos + 1) % maxRemembered
	}
	c.ids[h] = struct{}{}
}
