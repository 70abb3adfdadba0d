package sqlite

import (
	"errors"
	"fmt"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// busyTimeout is how long a statement waits for another program, such as sqlite3,
// that has locked the file.
const busyTimeout = 5 * time.Second

// readerTimeout is how long the writer waits for readers of the WAL before it goes
// on with other work.
const readerTimeout = 200 * time.Millisecond

// conn is a connection to the file. Its statements are prepared once.
type conn struct{ *sqlite.Conn }

func openConn(path string, flags sqlite.OpenFlags, cacheKiB int) (*conn, error) {
	c, err := openWith(path, flags, "secure_delete = ON", "synchronous = FULL", "temp_store = MEMORY",
		"cell_size_check = ON", "wal_autocheckpoint = 0", fmt.Sprintf("cache_size = -%d", cacheKiB))
	if err == nil {
		c.SetBusyTimeout(busyTimeout)
	}
	return c, err
}

func openWith(path string, flags sqlite.OpenFlags, pragmas ...string) (*conn, error) {
	raw, err := sqlite.OpenConn(path, flags)
	if err != nil {
		return nil, err
	}
	c := &conn{raw}
	if err := c.pragmas(pragmas...); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *conn) pragmas(list ...string) error {
	for _, p := range list {
		if err := c.exec("PRAGMA " + p); err != nil {
			return err
		}
	}
	return nil
}

// errEnough from a row function ends a query.
var errEnough = errors.New("enough rows")

// query runs a statement and calls row for each row, until row returns an error.
func (c *conn) query(sql string, row func(*sqlite.Stmt) error, args ...any) error {
	err := sqlitex.Execute(c.Conn, sql, &sqlitex.ExecOptions{Args: args, ResultFunc: row})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (c *conn) exec(sql string, args ...any) error { return c.query(sql, nil, args...) }

// script runs several statements, all or none.
func (c *conn) script(sql string) error { return sqlitex.ExecuteScript(c.Conn, sql, nil) }

func (c *conn) int(sql string, args ...any) (n int64, err error) {
	err = c.query(sql, func(st *sqlite.Stmt) error { n = st.ColumnInt64(0); return nil }, args...)
	return n, err
}

func bytesOf(st *sqlite.Stmt, col int) []byte {
	b := make([]byte, st.ColumnLen(col))
	st.ColumnBytes(col, b)
	return b
}

// millis is a time as it is stored; nil: none.
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
