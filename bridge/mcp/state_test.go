package mcp

import (
	"slices"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

func TestInboxForgets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		f    func(m []*parley.Message) hub.Forgetting
		want []string // contents that bob has still
		n    int
	}{
		{"the recipient", func([]*parley.Message) hub.Forgetting { return hub.Forgetting{Agent: "bob"} }, nil, 3},
		{"a sender", func([]*parley.Message) hub.Forgetting { return hub.Forgetting{Agent: "carol"} },
			[]string{`"0"`, `"2"`}, 1},
		{"a conversation", func(m []*parley.Message) hub.Forgetting {
			return hub.Forgetting{Conversation: m[0].Conversation}
		}, []string{`"1"`, `"2"`}, 1},
		{"a message", func(m []*parley.Message) hub.Forgetting {
			return hub.Forgetting{Message: func(id parley.ID) bool { return id == m[2].ID }}
		}, []string{`"0"`, `"1"`}, 1},
		{"another agent", func([]*parley.Message) hub.Forgetting { return hub.Forgetting{Agent: "dave"} },
			[]string{`"0"`, `"1"`, `"2"`}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			all := []*parley.Message{note(parley.Text("0")), note(parley.Text("1")), note(parley.Text("2"))}
			all[1].From = "carol"
			for _, m := range all {
				if out := w.deliver("bob", m); out.Err != nil {
					t.Fatal(out.Err)
				}
			}
			f := c.f(all)
			if f.Message == nil {
				f.Message = func(parley.ID) bool { return false }
			}
			n, err := w.node.Forget(t.Context(), f)
			if err != nil || n != c.n {
				t.Errorf("%d, %v", n, err)
			}
			if got := w.inbox("bob", `{"wait":0}`).contents(); !slices.Equal(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
