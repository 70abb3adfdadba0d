package console

import (
	"net/url"
	"slices"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

const (
	// countsEvery is how often the numbers of an open page are counted again.
	countsEvery = 10 * time.Second
	// newMost is the number of new rows of a batch. A reader takes in no more in a quarter of a second, and each costs the
	// hub its template.
	newMost = 25
	// openMost bounds the rows whose changes are never left out.
	openMost = 400
)

// openRows are rows that a page shows and that will change.
type openRows map[string]bool

// note notes whether a row that the page gets will change.
func (o openRows) note(e *admin.TimelineEntry) {
	m := e.Message
	if m == nil {
		return
	}
	id := m.ID.String()
	if !slices.ContainsFunc(m.Deliveries, func(d index.Delivery) bool { return !d.State.Settled(m.Kind) }) {
		delete(o, id)
	} else if len(o) < openMost {
		o[id] = true
	}
}

// choose gives the entries of a batch that a page gets, the oldest first, and the number of the others: it gets the
// changes of its open rows, and the newest of the rest.
func (o openRows) choose(batch []admin.TimelineEntry) (chosen []*admin.TimelineEntry, missed uint64) {
	fresh := 0
	for i := range batch {
		e := &batch[i]
		if e.Message == nil || !o[e.Message.ID.String()] {
			if fresh++; fresh > newMost {
				missed++
				continue
			}
		}
		chosen = append(chosen, e)
	}
	slices.Reverse(chosen)
	return chosen, missed
}

// timelineOf is the filter of the page.
func timelineOf(q *request) (admin.TimelineFilter, error) {
	f, _, err := timelineFilter(q.r.URL.Query(), q.now)
	return f, err
}

// messagesSince pushes the rows of the page that are new or changed since it was made.
func (c *Console) messagesSince(q *request, made time.Time, out *pushes) error {
	f, query, err := timelineFilter(q.r.URL.Query(), q.now)
	if err != nil {
		return err
	}
	l := c.list(q, &f, query)
	page, err := c.admin.Timeline(q.r.Context(), q.by, f)
	if err != nil {
		return err
	}
	q.open = openRows{}
	for i := len(page.Entries) - 1; i >= 0; i-- {
		q.open.note(&page.Entries[i])
		if e := &page.Entries[i]; changedSince(e, made.Add(-time.Second)) {
			if err := c.push(l.row(e), out); err != nil {
				return err
			}
		}
	}
	return nil
}

func changedSince(e *admin.TimelineEntry, t time.Time) bool {
	if e.Message == nil {
		return !e.Refusal.Time.Before(t)
	}
	for i := range e.Message.Deliveries {
		if !e.Message.Deliveries[i].Changed.Before(t) {
			return true
		}
	}
	return !e.Message.Time.Before(t)
}

// messagesNews pushes the rows of a batch, the oldest first, and those that the filter chooses no longer.
func (c *Console) messagesNews(q *request, b *admin.Batch, out *pushes) error {
	f, query, err := timelineFilter(q.r.URL.Query(), q.now)
	if err != nil {
		return err
	}
	l := c.list(q, &f, query)
	chosen, missed := q.open.choose(b.Entries)
	out.missed(missed)
	for _, e := range chosen {
		q.open.note(e)
		if err := c.push(l.row(e), out); err != nil {
			return err
		}
	}
	for i := range b.Others {
		e := admin.TimelineEntry{Message: &b.Others[i]}
		r := l.row(&e)
		r.Gone = true
		if err := c.push(r, out); err != nil {
			return err
		}
	}
	return c.pushCounts(q, &f, query, out)
}

func (c *Console) push(r Row, out *pushes) error {
	html, err := c.part("messages", "row", &r)
	if err == nil {
		out.row(r.ID, html)
	}
	return err
}

// pushCounts pushes the numbers of failed, refused, waiting and slow entries, now and then.
func (c *Console) pushCounts(q *request, f *admin.TimelineFilter, query url.Values, out *pushes) error {
	if q.now.Sub(q.counted) < countsEvery {
		return nil
	}
	q.counted = q.now
	n, err := c.admin.Counts(q.r.Context(), q.by, *f)
	if err != nil {
		return err
	}
	for name, data := range map[string]any{"show": showChoices(query, &n), "total": countWords(*shownCount(&n, f.Show))} {
		html, err := c.part("messages", name, data)
		if err != nil {
			return err
		}
		out.element(name, html)
	}
	return nil
}
