package bench

import (
	"os"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/bench/floor"
)

func TestJournal(t *testing.T) {
	dir := t.TempDir()
	var rows []Row
	c := Config{Connections: []int{1, 8}, Duration: 30 * time.Millisecond, Dir: dir}
	if err := Journal(t.Context(), c, func(r Row) { rows = append(rows, r) }); err != nil {
		t.Fatal(err)
	}
	want := []Row{
		{Storage: floor.Memory, Connections: 1}, {Storage: floor.Memory, Connections: 8},
		{Storage: floor.Disk, Connections: 1}, {Storage: floor.Disk, Connections: 8},
	}
	if len(rows) != len(want) {
		t.Fatalf("%d rows", len(rows))
	}
	for i, r := range rows {
		if r.Storage != want[i].Storage || r.Connections != want[i].Connections {
			t.Errorf("row %d is of %s at %d callers", i, r.Storage, r.Connections)
		}
		for side, f := range map[string]*Figures{"journal": &r.Parley, "file": r.Floor} {
			if f == nil || f.Throughput <= 0 || f.P50 <= 0 || f.P99 < f.P50 {
				t.Errorf("%s, %d callers, %s: %+v", r.Storage, r.Connections, side, f)
			}
		}
		// A record is the message of 1 KiB, whose text the journal compresses, and its
		// metadata.
		if r.RecordBytes < 1024 || r.RecordBytes > 2048 || r.Ratio <= 0 {
			t.Errorf("%d bytes a record, ratio %g", r.RecordBytes, r.Ratio)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
