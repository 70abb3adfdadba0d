package agh

import (
	"testing"
	"time"

	protocol "github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/agh/aghtest"
)

// TestWorks: the work of AGH peers in the journal keeps the contract of package agh.
func TestWorks(t *testing.T) {
	if err := aghtest.TestWorks(func() protocol.Works { return newWorks(memoryJournal(t), time.Now) }); err != nil {
		t.Error(err)
	}
}
