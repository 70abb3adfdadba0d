package bench

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/sqlite"
)

// turns is how often journal and file alternate in one measurement.
const turns = 3

// Journal measures appends to an empty journal, each a message with a replay key, at
// the numbers of callers in c.Connections (default 1, 8, 64, 256). The floor is a bare
// file: all waiting records are written at once and synced, each as long as the
// journal's record (see [floor.Appender]). On either side each caller makes a new
// message for each append. Both stay open and alternate; a median is the mean of the
// turns, a 99th percentile that of the worst turn. Journal passes each row to each as
// soon as it is measured.
func Journal(ctx context.Context, c Config, each func(Row)) error {
	if len(c.Connections) == 0 {
		c.Connections = []int{1, 8, 64, 256}
	}
	c.defaults()
	for _, storage := range c.Storage {
		for _, n := range c.Connections {
			row, err := c.journal(ctx, storage, n)
			if err != nil {
				return err
			}
			each(row)
		}
	}
	return nil
}

func (c *Config) journal(ctx context.Context, storage floor.Storage, callers int) (row Row, err error) {
	row = Row{Storage: storage, Connections: callers}
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: filepath.Join(dir, "journal"), Memory: storage == floor.Memory,
		Log: c.Log})
	if err != nil {
		return row, err
	}
	j, err := journal.Open(ctx, journal.Config{Store: s, Log: c.Log})
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	a, err := floor.NewAppender(storage, dir)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()

	text := words(0, 1<<16+c.Payload)
	ours := func(ctx context.Context, _, _ int) error { // as the hub records a signed request
		m, err := message(text, c.Payload)
		if err == nil {
			_, _, err = j.Accept(ctx, journal.Entry{Scope: "echo", Message: m,
				Key: journal.Key{ID: m.ID.String(), Sender: "sender"}})
		}
		return err
	}
	if row.RecordBytes, err = recordBytes(ctx, j, ours, c.Payload); err != nil {
		return row, err
	}
	bare := func(ctx context.Context, _, _ int) error {
		m, err := message(text, c.Payload)
		if err != nil {
			return err
		}
		record := make([]byte, row.RecordBytes)
		copy(record[copy(record, m.ID[:]):], m.Origin.Raw)
		return a.Append(ctx, record)
	}
	if !c.NoFloor {
		row.Floor = &Figures{}
	}
	for range turns {
		if row.Floor != nil {
			if err := row.Floor.turn(ctx, callers, c.Duration/turns, bare); err != nil {
				return row, fmt.Errorf("floor: %w", err)
			}
		}
		stop := c.profiled(fmt.Sprintf("%s-%d", storage, callers))
		err := row.Parley.turn(ctx, callers, c.Duration/turns, ours)
		stop()
		if err != nil {
			return row, fmt.Errorf("journal: %w", err)
		}
	}
	row.rate()
	return row, nil
}

// turn measures one more turn, and adds its share of all turns.
func (f *Figures) turn(ctx context.Context, callers int, d time.Duration,
	do func(context.Context, int, int) error) error {
	r := load.Do(ctx, callers, d/10, d, do)
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.Failed > 0 {
		return fmt.Errorf("%d of %d appends failed: %w", r.Failed, r.Failed+r.Requests, r.FirstError)
	}
	f.Throughput += r.Throughput / turns
	f.P50 += r.P50 / turns
	f.P99 = max(f.P99, r.P99)
	f.CPU += r.CPUPerRequest / turns
	return nil
}

// message is the message that a caller appends, to journal or file: a piece of text.
func message(text []byte, payload int) (*parley.Message, error) {
	id, err := parley.NewID(time.Now(), rand.Reader)
	if err != nil {
		return nil, err
	}
	raw := text[binary.BigEndian.Uint16(id[len(id)-2:]):][:payload]
	return &parley.Message{
		ID: id, Kind: parley.Request, From: "sender", To: "echo", Conversation: id,
		Parts: []parley.Part{{MediaType: "application/json", Data: raw[min(300, payload/2):]}},
		Origin: parley.Origin{Protocol: "samvad", Raw: raw, Verdict: parley.Verdict{
			KeyID: "key-current", Checks: []parley.Check{{Name: "signature", OK: true}},
		}},
	}, nil
}

// words are text of a vocabulary of 10,000, which compresses like natural text.
func words(seed, size int) []byte {
	b := make([]byte, 0, size+16)
	for n := 1; len(b) < size; n++ {
		b = append(strconv.AppendInt(append(b, "word"...), int64(seed*7919+n*n*104729)%10_000, 10), ' ')
	}
	return b[:size]
}

// recordBytes is how many bytes a record takes in the journal, measured by some appends
// before the clock starts; at least the size of the message.
func recordBytes(ctx context.Context, j *journal.Journal, do func(context.Context, int, int) error, payload int) (int,
	error) {
	const callers, times = 16, 16
	taken := func() (n uint64) {
		for _, p := range j.Stats().Partitions {
			n += p.Bytes
		}
		return n
	}
	before := taken()
	r := load.Loop(ctx, callers, 0, func(ctx context.Context, caller int) error { // each caller once
		for n := range times {
			if err := do(ctx, caller, n); err != nil {
				return err
			}
		}
		return nil
	})
	return max(payload, int(taken()-before)/(callers*times)), r.FirstError
}
