package console

import "github.com/parley-hub/parley/admin"

// A Frame is what every page shows of the hub.
type Frame struct {
	Version string
	Promise string // the meaning of "accepted", as a sentence
	Free    uint64 // bytes; 0: not known
	Dead    int
	Open    int
	Agents  int
	Lag     uint64 // records that the index has not yet
	Fault   string // why the frame is incomplete
}

func (c *Console) frame(q *request) *Frame {
	i, err := c.admin.Info(q.by)
	if err != nil {
		return &Frame{Fault: err.Error()}
	}
	f := &Frame{Version: i.Version, Promise: i.Promise}
	s, err := c.admin.Stats(q.by)
	if err != nil {
		f.Fault = err.Error()
		return f
	}
	f.Free, f.Dead, f.Open, f.Agents = s.Free, s.Dead, s.Open, s.Agents
	if s.Index != nil {
		f.Lag = s.Index.Lag
	}
	return f
}

// role is the word of a role in the console.
func role(r admin.Role) string {
	switch r {
	case admin.Operate:
		return "operator"
	case admin.Administer:
		return "admin"
	}
	return "viewer"
}
