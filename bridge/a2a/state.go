package a2a

import "github.com/parley-hub/parley/journal"

// state is the binding's part of the journal's state.
type state struct{}

func newState(j *journal.Journal) state { return state{} }
