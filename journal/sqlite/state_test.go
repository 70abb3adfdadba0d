package sqlite

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// Values whose Until has passed leave the file also where nobody calls Scrub.
func TestExpiredValuesAreRemoved(t *testing.T) {
	now := time.Unix(1e9, 0)
	s, err := Open(t.Context(), Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	must(t, err)
	defer s.Close()
	must(t, s.Init(t.Context(), store.Meta{Format: 1, Partitions: 2}))
	for i := range 100 {
		v := store.Value{Key: strconv.Itoa(i), Until: now.Add(time.Duration(i) * time.Minute)}
		_, err := s.Put(t.Context(), "s", v, nil)
		must(t, err)
	}
	now = now.Add(50 * time.Minute)
	big := make([]byte, 1<<20)
	for n := range uint64(8) {
		must(t, s.Append(t.Context(), 0, n, []store.Record{{Data: big}}))
	}
	for key, want := range map[string]error{"0": store.ErrNotFound, "48": store.ErrNotFound, "50": nil, "99": nil} {
		if _, err := s.Get(t.Context(), "s", key); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", key, err, want)
		}
	}
}
