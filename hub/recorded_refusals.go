package hub

import (
	"slices"
	"time"

	"github.com/parley-hub/parley"
)

// The hub records some refused messages, and their bindings report the refusal right after. Both are one
// event: recordedRefusal joins the report to the record.
type recordedRefusal struct {
	message  parley.ID
	protocol string
	code     parley.Code
	reason   parley.Reason
	detail   string
	until    time.Time
}

const (
	maxRecordedRefusals = 256             // that are not reported yet
	reportedWithin      = 5 * time.Second // else the binding reports none
)

// recorded notes that a refused message was recorded.
func (q *refusals) recorded(m *parley.Message, e *parley.Error, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.unreported) == maxRecordedRefusals {
		q.unreported = slices.Delete(q.unreported, 0, 1)
	}
	q.unreported = append(q.unreported, recordedRefusal{m.ID, m.Origin.Protocol, e.Code, e.Reason, e.Detail,
		now.Add(reportedWithin)})
}

// record gives the recorded message that a report is about; zero: none.
func (q *refusals) record(r *Refusal) (id parley.ID) {
	q.unreported = slices.DeleteFunc(q.unreported, func(x recordedRefusal) bool {
		if id.IsZero() && x.protocol == r.Protocol && x.code == r.Code && x.reason == r.Reason &&
			x.detail == r.Detail && !r.Time.After(x.until) {
			id = x.message
			return true
		}
		return r.Time.After(x.until)
	})
	return id
}
