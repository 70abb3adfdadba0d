package floor

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Row is one line of a table of floors.
type Row struct {
	Path        string // "samvad" or "uagents"
	Storage     Storage
	Appends     int
	Connections int
}

// Rows are what [Table] measures by default.
func Rows() []Row {
	var rows []Row
	for _, s := range []Storage{Memory, Disk} {
		for appends := 1; appends <= 2; appends++ {
			for _, n := range []int{1, 64, 256} {
				rows = append(rows, Row{"samvad", s, appends, n})
			}
		}
	}
	return append(rows, Row{"uagents", Memory, 1, 64}, Row{"uagents", Disk, 1, 64}, Row{"uagents", Disk, 1, 256})
}

// Measure measures one row; the rest comes from c.
func (r Row) Measure(ctx context.Context, c Config) (Result, error) {
	c.Storage, c.Appends, c.Connections = r.Storage, r.Appends, r.Connections
	switch r.Path {
	case "samvad":
		return Samvad(ctx, c)
	case "uagents":
		return UAgents(ctx, c)
	}
	return Result{}, fmt.Errorf("floor: there is no path %q", r.Path)
}

// Table measures rows, each as c says, and writes a table to w, a line as
// soon as it is known.
func Table(ctx context.Context, w io.Writer, rows []Row, c Config) error {
	const columns = "%-8s  %-7s  %7v  %11v  %10s  %9s  %9s  %9s\n"
	if _, err := fmt.Fprintf(w, columns, "path", "storage", "appends", "connections", "per second", "p50", "p99", "CPU each"); err != nil {
		return err
	}
	for _, r := range rows {
		res, err := r.Measure(ctx, c)
		if err != nil {
			return fmt.Errorf("%s, %s, %d appends, %d connections: %w", r.Path, r.Storage, r.Appends, r.Connections, err)
		}
		_, err = fmt.Fprintf(w, columns, r.Path, r.Storage, r.Appends, r.Connections,
			fmt.Sprintf("%.0f", res.Throughput), short(res.P50), short(res.P99), short(res.CPUPerMessage))
		if err != nil {
			return err
		}
	}
	return nil
}

func short(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
