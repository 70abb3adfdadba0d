package asp

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/recent"
)

// Memory remembers used proofs. Seen reports whether key is new, and remembers it
// until the given time, in one step. It must fail rather than forget: an error
// refuses the message.
type Memory interface {
	Seen(ctx context.Context, key string, until time.Time) (fresh bool, err error)
}

// GuestOwner owns the proofs of all guests ([Server.Guest]); see [NewMemory].
const GuestOwner = "guest"

// NewMemory gives a Memory in process. It holds at most size keys (0 means
// 1,048,576), and at most a sixteenth of them for one owner, so that one agent
// cannot fill it. The owner is the part of a key before the first space. An entry
// that does not fit is refused with capacity_unavailable.
func NewMemory(size int, now func() time.Time) Memory {
	size = cmp.Or(size, 1<<20)
	return &memory{now: clock(now), keys: recent.Keys{Max: size, MaxOwner: max(size/16, 1)}}
}

func clock(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now
	}
	return now
}

type memory struct {
	now  func() time.Time
	keys recent.Keys
}

func (m *memory) Seen(_ context.Context, key string, until time.Time) (bool, error) {
	owner, _, _ := strings.Cut(key, " ")
	fresh, err := m.keys.Seen(owner, key, m.now(), until)
	if err != nil {
		return false, refuse("capacity_unavailable", "")
	}
	return fresh, nil
}
