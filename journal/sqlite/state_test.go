package sqlite

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// TestExpiredValuesAreRemoved: expired values are removed from the file without a Scrub.
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

// TestRecent: values that the store removes by itself are removed from the cache too.
func TestRecent(t *testing.T) {
	s := fresh(t, t.TempDir())
	gone := store.Value{Key: "k", Data: []byte("v"), Until: time.Now().Add(-time.Hour)}
	_, err := s.Put(t.Context(), "s", gone, nil)
	must(t, err)
	if _, err := s.Get(t.Context(), "s", "k"); err != nil {
		t.Fatal(err)
	}
	must(t, s.Append(t.Context(), 0, 0, []store.Record{{Data: make([]byte, walBytes)}}))        // expiry starts
	must(t, s.submit(t.Context(), &request{betweenGroups: func(*writer) error { return nil }})) // and has ended
	if v, err := s.Get(t.Context(), "s", "k"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v, %v", v, err)
	}
	none := uint64(0)
	_, err = s.Put(t.Context(), "s", store.Value{Key: "k"}, &none)
	must(t, err)
	gone.Key = "scrubbed"
	_, err = s.Put(t.Context(), "s", gone, nil)
	must(t, err)
	must(t, s.Scrub(t.Context(), time.Now()))
	if v, err := s.Get(t.Context(), "s", "scrubbed"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%v, %v", v, err)
	}
}

// TestStateIsCompacted: the state's table does not grow with the number of changes, even
// if some values never change.
func TestStateIsCompacted(t *testing.T) {
	s := fresh(t, t.TempDir())
	data := make([]byte, 4000)
	for n := range 20 {
		for i := range 400 {
			v := store.Value{Key: strconv.Itoa(i), Data: data}
			if n > 0 && i%4 == 0 {
				continue
			}
			_, err := s.Put(t.Context(), "s", v, nil)
			must(t, err)
		}
	}
	var rows int64
	must(t, s.reading(t.Context(), func(c *conn) (err error) {
		rows, err = c.int("SELECT count(*) FROM state_log")
		return err
	}))
	if rows > 2*400+2*margin+walBytes/4000 {
		t.Errorf("%d rows for 400 values", rows)
	}
	n := 0
	must(t, s.Range(t.Context(), "s", "", func(v store.Value) bool { n += len(v.Data); return true }))
	if n != 400*4000 {
		t.Errorf("%d bytes of values", n)
	}
}
