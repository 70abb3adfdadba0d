package aghnats

import (
	"container/list"
	"errors"
	"sync"
	"time"
)

// claims records which user speaks as which peer: the user that took an id which
// several may use, and the user through which a peer is reached. A claim lasts
// for two greet intervals after the last message. All last equally long, so that
// the list is in the order of expiry and each call costs the same for any number
// of peers.
type claims struct {
	mu    sync.Mutex
	byKey map[claimKey]*list.Element
	count map[string]int
	order list.List // of *claim, first to expire first
}

type claimKey struct{ workspaceID, peerID string }

type claim struct {
	key   claimKey
	uid   string
	until time.Time
}

const maxClaims = 1 << 16

var (
	errTaken = errors.New("aghnats: another user has that peer now")
	errMany  = errors.New("aghnats: the user speaks as too many peers")
)

// may reports whether uid can take k. It does not take k.
func (c *claims) may(k claimKey, uid string, limit int, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	el, ok := c.byKey[k]
	switch {
	case ok && el.Value.(*claim).uid != uid:
		return errTaken
	case !ok && (c.count[uid] >= limit || len(c.byKey) >= maxClaims):
		return errMany
	}
	return nil
}

// take records that uid spoke as k just now.
func (c *claims) take(k claimKey, uid string, until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.byKey[k]; ok {
		held := el.Value.(*claim)
		held.until = until
		c.order.MoveToBack(el)
		if held.uid == uid {
			return
		}
		c.discount(held.uid)
		held.uid = uid
	} else {
		if c.byKey == nil {
			c.byKey, c.count = map[claimKey]*list.Element{}, map[string]int{}
		}
		c.byKey[k] = c.order.PushBack(&claim{k, uid, until})
	}
	c.count[uid]++
}

// holder gives the uid that has taken k, "" if none has.
func (c *claims) holder(k claimKey, now time.Time) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	if el, ok := c.byKey[k]; ok {
		return el.Value.(*claim).uid
	}
	return ""
}

func (c *claims) expire(now time.Time) {
	for el := c.order.Front(); el != nil && !now.Before(el.Value.(*claim).until); el = c.order.Front() {
		held := c.order.Remove(el).(*claim)
		delete(c.byKey, held.key)
		c.discount(held.uid)
	}
}

func (c *claims) discount(uid string) {
	c.count[uid]--
	if c.count[uid] == 0 {
		delete(c.count, uid)
	}
}
