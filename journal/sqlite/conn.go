package sqlite

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
)

// busyTimeout is how long a statement waits for another program, such as
// sqlite3, that has locked the file.
const busyTimeout = 5 * time.Second

// readerTimeout is how long the writer waits for readers of the WAL, before it
// does what else there is and tries again.
const readerTimeout = 200 * time.Millisecond

// conn is a connection to the file. Its statements are prepared once.
type conn struct{ *sqlite.Conn }

func openConn(path string, flags sqlite.OpenFlags, cacheKiB int) (*conn, error) {
	raw, err := sqlite.OpenConn(path, flags)
	if err != nil {
		return nil, err
	}
	c := &conn{raw}
	c.SetBusyTimeout(busyTimeout)
	for _, p := range []string{
		"secure_delete = ON", "synchronous = FULL", "temp_store = MEMORY", "cell_size_check = ON",
		"wal_autocheckpoint = 0", fmt.Sprintf("cache_size = -%d", cacheKiB),
	} {
		if err := c.exec("PRAGMA " + p); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// query runs a statement and calls row for each row, until it gives false.
func (c *conn) query(sql string, row func(*sqlite.Stmt) bool, args ...any) (err error) {
	st, err := c.Prepare(sql)
	if err != nil {
		return err
	}
	bind(st, args)
	for {
		more, err := st.Step()
		if err != nil {
			return err
		}
		if !more {
			return nil
		}
		if row != nil && !row(st) {
			return st.Reset()
		}
	}
}

func (c *conn) exec(sql string, args ...any) error { return c.query(sql, nil, args...) }

// script runs statements that are not needed again.
func (c *conn) script(sql string) error {
	for sql = strings.TrimSpace(sql); sql != ""; {
		st, rest, err := c.PrepareTransient(sql)
		if err != nil {
			return err
		}
		for more := true; more && err == nil; {
			more, err = st.Step()
		}
		if err := errors.Join(err, st.Finalize()); err != nil {
			return fmt.Errorf("%s: %w", sql[:len(sql)-rest], err)
		}
		sql = strings.TrimSpace(sql[len(sql)-rest:])
	}
	return nil
}

func (c *conn) int(sql string, args ...any) (n int64, err error) {
	err = c.query(sql, func(st *sqlite.Stmt) bool { n = st.ColumnInt64(0); return true }, args...)
	return n, err
}

func bind(st *sqlite.Stmt, args []any) {
	for i, a := range args {
		switch a := a.(type) {
		case nil:
			st.BindNull(i + 1)
		case int:
			st.BindInt64(i+1, int64(a))
		case int64:
			st.BindInt64(i+1, a)
		case uint64:
			st.BindInt64(i+1, integer(a))
		case string:
			st.BindText(i+1, a)
		case []byte:
			st.BindBytes(i+1, a)
		default:
			panic(fmt.Sprintf("a parameter of type %T", a))
		}
	}
}

// integer is what SQLite can count to.
func integer(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

func bytesOf(st *sqlite.Stmt, col int) []byte {
	b := make([]byte, st.ColumnLen(col))
	st.ColumnBytes(col, b)
	return b
}

// millis is a time as it is stored, nil for none.
func millis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

func timeOf(st *sqlite.Stmt, col int) time.Time {
	if st.ColumnIsNull(col) {
		return time.Time{}
	}
	return time.UnixMilli(st.ColumnInt64(col)).UTC()
}
