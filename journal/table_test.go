package journal

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"
)

type counter struct {
	N    int
	Text string `json:",omitempty"`
}

// TestTableChange: concurrent changes of one row through two tables all take effect,
// each based on the newest row.
func TestTableChange(t *testing.T) {
	j := open(t, setup{Memory: true})
	tables := []*Table[counter]{NewTable[counter](j, "b", 10), NewTable[counter](j, "b", 10)}
	const each = 20
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range each {
				_, err := tables[i%2].Change(t.Context(), "k", func(r *Row[counter]) (bool, error) {
					r.Value.N++
					return true, nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	row, err := tables[0].Get(t.Context(), "k")
	if err != nil || row.Value.N != 4*each {
		t.Fatalf("%d changes of %d (%v)", row.Value.N, 4*each, err)
	}
	refusal := errors.New("not now")
	_, err = tables[0].Change(t.Context(), "k", func(*Row[counter]) (bool, error) { return true, refusal })
	if !errors.Is(err, refusal) {
		t.Fatalf("err = %v", err)
	}
	if _, err := tables[1].Replace(t.Context(), Row[counter]{Key: "k"}); !errors.Is(err, ErrConflict) {
		t.Fatalf("an existing row was created: %v", err)
	}
	if err := tables[1].Delete(t.Context(), "k", row.Revision-1); !errors.Is(err, ErrConflict) {
		t.Fatalf("a newer revision of the row was deleted: %v", err)
	}
}

// TestTableFollow: a followed table knows its own writes at once, the writes of others
// soon, and never returns to an older row.
func TestTableFollow(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var clock sync.Mutex
	j := open(t, setup{Memory: true, Now: func() time.Time {
		clock.Lock()
		defer clock.Unlock()
		return now
	}})
	ctx := t.Context()
	other := NewTable[counter](j, "b", 0)
	if _, err := other.Put(ctx, "before", counter{N: 1}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	x := NewTable[counter](j, "b", 0)
	var mu sync.Mutex
	index := map[string]int{} // an index as a caller builds it from the changes
	stop, err := x.Follow(ctx, func(before, after Row[counter]) {
		mu.Lock()
		defer mu.Unlock()
		if before.Revision != 0 && index[before.Key] != before.Value.N {
			t.Errorf("%s was %d, reported as %d", before.Key, index[before.Key], before.Value.N)
		}
		if after.Revision == 0 {
			delete(index, before.Key)
			return
		}
		if after.Revision < before.Revision {
			t.Errorf("%s goes back from revision %d to %d", after.Key, before.Revision, after.Revision)
		}
		index[after.Key] = after.Value.N
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if x.Known("before").Value.N != 1 {
		t.Fatalf("the row from before Follow is %+v", x.Known("before"))
	}
	for i := range 200 {
		key := strconv.Itoa(i % 7)
		if i%5 == 4 {
			err = x.Delete(ctx, key, 0)
			if r := x.Known(key); r.Revision != 0 {
				t.Fatalf("%s was deleted and is %+v", key, r)
			}
		} else {
			_, err = x.Put(ctx, key, counter{N: i}, time.Time{})
			if r := x.Known(key); r.Value.N != i {
				t.Fatalf("%s was set to %d and is %+v", key, i, r)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := other.Put(ctx, "other", counter{N: 7}, now.Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the row of another table is known", func() bool { return x.Known("other").Value.N == 7 })
	if err := other.Delete(ctx, "before", 0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the deletion is known", func() bool { return x.Known("before").Revision == 0 })
	var keys []string
	for _, r := range x.All() {
		keys = append(keys, r.Key)
		mu.Lock()
		if index[r.Key] != r.Value.N {
			t.Errorf("the index has %d for %+v", index[r.Key], r)
		}
		mu.Unlock()
	}
	if slices.Sort(keys); len(keys) != len(index) {
		t.Errorf("rows %v, index %v", keys, index)
	}
	clock.Lock()
	now = now.Add(2 * time.Minute)
	clock.Unlock()
	if r := x.Known("other"); r.Revision != 0 || slices.ContainsFunc(x.All(),
		func(r Row[counter]) bool { return r.Key == "other" }) {
		t.Errorf("an expired row is still known: %+v", r)
	}
}

// TestTableCache: the cache is bounded, and evicted rows are read again correctly.
func TestTableCache(t *testing.T) {
	j := open(t, setup{Memory: true})
	x := NewTable[counter](j, "b", 4)
	for i := range 20 {
		if _, err := x.Put(t.Context(), strconv.Itoa(i), counter{N: i}, time.Time{}); err != nil {
			t.Fatal(err)
		}
		if x.Len() > 4 {
			t.Fatalf("%d rows cached", x.Len())
		}
	}
	for i := range 20 {
		if r, err := x.Last(t.Context(), strconv.Itoa(i)); err != nil || r.Value.N != i {
			t.Fatalf("%d is %+v (%v)", i, r, err)
		}
	}
	if x.Uncache(); x.Len() != 0 {
		t.Fatalf("%d rows cached", x.Len())
	}
}

// TestTableSweep: every row is judged, again if it changes before it is written. A value
// that cannot be decoded is skipped.
func TestTableSweep(t *testing.T) {
	j := open(t, setup{Memory: true})
	ctx := context.WithoutCancel(t.Context())
	x := NewTable[counter](j, "b", 0)
	for i := range 6 {
		if _, err := x.Put(ctx, "k/"+strconv.Itoa(i), counter{N: i, Text: "secret"}, time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := j.State("b").Put(ctx, "k/none", []byte("{"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	changed := false
	n, err := x.Sweep(ctx, "k/", func(r *Row[counter]) Fate {
		switch {
		case r.Value.N == 0 || r.Value.Text == "":
			return Keep
		case r.Value.N == 1:
			return Remove
		}
		r.Value.Text = ""
		return Write
	})
	if err != nil || n != 5 {
		t.Fatalf("%d rows (%v)", n, err)
	}
	n, err = x.Sweep(ctx, "k/", func(r *Row[counter]) Fate {
		if r.Value.N != 2 {
			return Keep
		}
		if !changed { // another writer changes the row between its judging and its write
			changed = true
			if _, err := j.State("b").Put(ctx, r.Key, []byte(`{"N":2,"Text":"more"}`), time.Time{}); err != nil {
				t.Error(err)
			}
		}
		r.Value.Text = ""
		return Write
	})
	if err != nil || n != 1 {
		t.Fatalf("%d rows (%v)", n, err)
	}
	for r, err := range x.Range(ctx, "k/") {
		switch {
		case r.Key == "k/none":
			if err == nil {
				t.Error("an invalid value was decoded")
			}
		case err != nil, r.Value.N == 1, (r.Value.Text != "") != (r.Value.N == 0):
			t.Errorf("%+v (%v)", r, err)
		}
	}
	rows, err := x.List(ctx, "k/")
	if err != nil || len(rows) != 5 || slices.ContainsFunc(rows, func(r Row[counter]) bool { return r.Revision == 0 }) {
		t.Errorf("%+v (%v)", rows, err)
	}
}

// TestTableWatch: a watched table reports rows and deletions below a prefix, its own and
// those of others. It skips values that it cannot decode, and caches nothing.
func TestTableWatch(t *testing.T) {
	j := open(t, setup{Memory: true})
	ctx := t.Context()
	x := NewTable[counter](j, "b", 0)
	if _, err := x.Put(ctx, "a/1", counter{N: 1}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	told := make(chan Row[counter], 16)
	stop, err := x.Watch(ctx, "a/", func(row Row[counter]) { told <- row })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	want := func(key string, n int, there bool) {
		t.Helper()
		if r := <-told; r.Key != key || r.Value.N != n || (r.Revision != 0) != there {
			t.Errorf("reported %+v, want %s: %d, exists: %v", r, key, n, there)
		}
	}
	want("a/1", 1, true)
	other := NewTable[counter](j, "b", 0)
	_, err = other.Put(ctx, "b/1", counter{N: 2}, time.Time{})
	if err == nil {
		_, err = j.State("b").Put(ctx, "a/2", []byte("no JSON"), time.Time{})
	}
	if err == nil {
		_, err = other.Put(ctx, "a/3", counter{N: 3}, time.Time{})
	}
	if err != nil {
		t.Fatal(err)
	}
	want("a/3", 3, true)
	if err := x.Delete(ctx, "a/1", 0); err != nil {
		t.Fatal(err)
	}
	want("a/1", 0, false)
	if x.Len() != 0 {
		t.Errorf("%d rows are cached", x.Len())
	}
}

// TestTableOmit: a followed table reports the rows that it omits from memory, and reads
// them from the store on request.
func TestTableOmit(t *testing.T) {
	j := open(t, setup{Memory: true})
	ctx := t.Context()
	x := NewTable[counter](j, "b", 0)
	x.Omit(func(c counter) bool { return c.N > 1 })
	if _, err := x.Put(ctx, "large", counter{N: 5}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	var told []string
	stop, err := x.Follow(ctx, func(before, after Row[counter]) {
		told = append(told, after.Key+" "+strconv.Itoa(before.Value.N)+" "+strconv.Itoa(after.Value.N))
	})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for n := range 3 {
		_, err := x.Change(ctx, "k", func(r *Row[counter]) (bool, error) {
			r.Value.N = n
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if r := x.Known("k"); r.Revision != 0 || x.Len() != 0 {
		t.Errorf("%+v is held, of %d rows", r, x.Len())
	}
	if r, err := x.Last(ctx, "k"); err != nil || r.Value.N != 2 {
		t.Errorf("read %+v (%v)", r, err)
	}
	x.turn.Lock() // the follower of the state appends to told as well
	defer x.turn.Unlock()
	if want := []string{"large 0 5", "k 0 0", "k 0 1", "k 1 2"}; !slices.Equal(told[:min(4, len(told))], want) {
		t.Errorf("reported %q", told)
	}
}

// TestTableText: JSON within a value is returned byte for byte.
func TestTableText(t *testing.T) {
	x := NewTable[json.RawMessage](open(t, setup{Memory: true}), "b", 0)
	const text = `{"signed":"a < b && c > d"}`
	if _, err := x.Put(t.Context(), "k", json.RawMessage(text), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if r, err := x.Get(t.Context(), "k"); err != nil || string(r.Value) != text {
		t.Errorf("%s (%v)", r.Value, err)
	}
}
