package delivery

import (
	"slices"

	"github.com/parley-hub/parley/journal"
)

// claimReply takes the lanes of the recipients of a reply, all or none: then the
// first attempt is recorded with the reply, and needs no record of its own.
func (d *Dispatcher) claimReply(it *item, r *Reply) []*Claim {
	if len(r.Open) == 0 || !d.c.Log.Owned(it.position.Partition) {
		return nil
	}
	claims := make([]*Claim, 0, len(r.Open))
	for _, o := range r.Open {
		c := d.Claim(it.position.Partition, r.Message.ID, o.To, r.Message.Conversation, false)
		if c == nil {
			for _, c := range claims {
				c.Release(nil)
			}
			return nil
		}
		claims = append(claims, c)
	}
	for i := range r.Open {
		r.Open[i].Attempt = 1
	}
	return claims
}

// releaseClaims gives the lanes back after err, by which a reply was not recorded or may
// have been. The entry that is recorded next opens deliveries that wait.
func (d *Dispatcher) releaseClaims(claims []*Claim, outcome *journal.Entry, err error) {
	for _, c := range claims {
		c.Release(err)
	}
	outcome.Open = slices.Clone(outcome.Open) // the journal may still use the old slice
	for i := range outcome.Open {
		outcome.Open[i].Attempt = 0
	}
}

// deliverReply makes the attempts that were recorded with a reply: the last one in
// this goroutine, the others in the background.
func (d *Dispatcher) deliverReply(claims []*Claim, a Attempt) {
	last := len(claims) - 1
	for _, c := range claims[:last] {
		c.Go(a)
	}
	claims[last].Run(d.ctx, a)
}
