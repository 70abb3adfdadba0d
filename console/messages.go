package console

import (
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

// Row is a message in the list.
type Row struct {
	admin.Summary
	When Moment
}

// messages is the screen Messages.
func (c *Console) messages(q *request) (any, error) {
	page, err := c.admin.Messages(q.r.Context(), q.by, index.Filter{Limit: 100})
	if err != nil {
		return nil, err
	}
	var rows []Row
	for _, m := range page.Messages {
		rows = append(rows, Row{m, Moment{m.Time, q.now}})
	}
	return struct{ Rows []Row }{rows}, nil
}
