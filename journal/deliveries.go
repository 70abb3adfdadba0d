package journal

import (
	"slices"
	"time"
	"unique"

	"github.com/parley-hub/parley"
)

// unsettled are the states that may follow every unsettled one.
var unsettled = stateBits(parley.Waiting, parley.Answered, parley.Dead, parley.Expired, parley.Abandoned)

// transitions is the table of the package documentation: the states that may follow
// a state.
var transitions = [...]uint16{
	parley.Waiting:    unsettled | stateBits(parley.Delivering, parley.Delivered),
	parley.Delivering: unsettled | stateBits(parley.Delivering, parley.Delivered),
	parley.Delivered:  unsettled,
	parley.Dead:       stateBits(parley.Waiting, parley.Answered, parley.Dropped),
}

func stateBits(states ...parley.DeliveryState) (bits uint16) {
	for _, s := range states {
		bits |= 1 << s
	}
	return bits
}

// target identifies a delivery.
type target struct {
	message parley.ID
	to      unique.Handle[string]
}

// targets identifies the deliveries that a record opens, and the deliveries of its
// steps. It is made once per record, because it is used several times.
type targets struct{ opens, steps []target }

var noTargets targets

func (r *logRecord) targets() *targets {
	if len(r.Open)+len(r.Steps) == 0 {
		return &noTargets
	}
	if r.cachedTargets == nil {
		list := make([]target, 0, len(r.Open)+len(r.Steps))
		if r.Message != nil {
			for i := range r.Open {
				list = append(list, target{r.Message.ID, unique.Make(r.Open[i].To)})
			}
		}
		n := len(list)
		for i := range r.Steps {
			list = append(list, targetOf(&r.Steps[i]))
		}
		r.cachedTargets = &targets{list[:n], list[n:]}
	}
	return r.cachedTargets
}

// delivery is unsettled or dead. It is small and has no strings of its own, so that
// a million can be held.
type delivery struct {
	seq          uint64
	key          hash16 // replay key of the message; zero: none
	conversation parley.ID
	reply        parley.ID
	from, node   unique.Handle[string]
	next         int64 // these four: unix nanoseconds, 0: none
	expires      int64
	deadline     int64
	changed      int64
	attempt      int32
	postponed    int32
	state        parley.DeliveryState
	kind         parley.Kind
	sync         bool
	retried      bool
	err          *parley.Error
	losses       []parley.Loss
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

func (d *delivery) export(partition int, t target) Delivery {
	return Delivery{
		Delivery: parley.Delivery{
			Message: t.message, To: t.to.Value(), State: d.state, Attempt: int(d.attempt), Next: fromNanos(d.next),
			Reply: d.reply, Error: d.err, Losses: d.losses, Changed: fromNanos(d.changed),
		},
		Position: Position{Partition: partition, Sequence: d.seq},
		Kind:     d.kind, From: d.from.Value(), Conversation: d.conversation,
		Expires: fromNanos(d.expires), Deadline: fromNanos(d.deadline),
		Postponed: int(d.postponed), Sync: d.sync, Retried: d.retried, Node: d.node.Value(),
	}
}

// Conflict says why s cannot follow a delivery in this state, after this attempt;
// "": it can.
func (s *Step) Conflict(state parley.DeliveryState, attempt int) string {
	if int(state) >= len(transitions) || transitions[state]&(1<<s.State) == 0 {
		return "it is " + state.String()
	}
	switch {
	case s.State == parley.Delivering && s.Attempt != attempt+1:
		return "the attempt is not the next one"
	case s.State != parley.Delivering && s.Attempt != 0 && s.Attempt != attempt:
		return "another attempt was made since"
	}
	return ""
}

// check says why a step cannot follow; "": it can.
func (d *delivery) check(s *Step) string { return s.Conflict(d.state, int(d.attempt)) }

// advance applies a step and reports whether the delivery is settled for good. A
// dead letter is not: it may be retried.
func (d *delivery) advance(s *Step, r *Record) (gone bool) {
	d.changed = nanos(r.Time)
	if s.Postponed && d.state == parley.Delivering {
		d.postponed++
	}
	if d.state == parley.Dead || s.State == parley.Dead {
		d.retried = s.State == parley.Waiting
	}
	d.state = s.State
	d.next = 0
	switch s.State {
	case parley.Delivering:
		d.attempt = int32(s.Attempt)
		if !d.sync {
			d.node = unique.Make(r.Node)
		}
	case parley.Waiting:
		d.next = nanos(s.Next)
	case parley.Answered:
		d.reply = s.Reply
	}
	if s.Error != nil {
		d.err = s.Error.Because(nil)
	}
	d.losses = AddLosses(d.losses, s.Losses)
	return s.State != parley.Dead && s.State.Settled(d.kind)
}

// MaxLosses bounds the different losses of a delivery, if an event adds its own.
const MaxLosses = 16

// addEventLosses adds the losses of an event.
func (d *delivery) addEventLosses(losses []parley.Loss) {
	if all := AddLosses(d.losses, losses); len(all) <= MaxLosses {
		d.losses = all
	}
}

// AddLosses returns a with the losses of b that it does not have; a itself if there
// are none.
func AddLosses(a, b []parley.Loss) []parley.Loss {
	out := a
	for _, l := range b {
		if !slices.Contains(out, l) {
			out = append(slices.Clip(out), l)
		}
	}
	return out
}

func opened(r *Record, o *Opening) *delivery {
	m := r.Message
	d := &delivery{
		seq: r.Position.Sequence, conversation: m.Conversation, from: unique.Make(m.From), node: unique.Make(r.Node),
		next: nanos(o.NotBefore), expires: nanos(m.Expires), deadline: nanos(m.Deadline), changed: nanos(r.Time),
		state: parley.Waiting, kind: m.Kind, sync: o.Sync,
	}
	if o.Attempt == 1 {
		d.state, d.attempt, d.next = parley.Delivering, 1, 0
	}
	return d
}

func (f *Filter) matches(t target, d *delivery) bool {
	return (len(f.States) == 0 || slices.Contains(f.States, d.state)) &&
		(f.To == "" || f.To == t.to.Value()) &&
		(f.Conversation.IsZero() || f.Conversation == d.conversation)
}
