package index

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"
)

// codeOf is SQLite's primary result code of err; ResultError if err is not
// SQLite's.
func codeOf(err error) sqlite.ResultCode { return sqlite.ErrCode(err).ToPrimary() }

// damaged reports whether the file cannot be read any more.
func damaged(err error) bool {
	c := codeOf(err)
	return c == sqlite.ResultCorrupt || c == sqlite.ResultNotADB
}

// errSQL marks a failed statement: SQLite's general error code does not.
var errSQL = errors.New("a statement failed")

// unfit reports whether the file is damaged, or has another schema.
func unfit(err error) bool {
	switch codeOf(err) {
	case sqlite.ResultConstraint, sqlite.ResultMismatch, sqlite.ResultSchema, sqlite.ResultFormat:
		return true
	case sqlite.ResultError:
		return errors.Is(err, errSQL)
	}
	return damaged(err)
}

const busyTimeout = 10 * time.Second

func openConn(name string) (*sqlite.Conn, error) {
	c, err := sqlite.OpenConn(name, openFlags)
	if err == nil {
		c.SetBusyTimeout(busyTimeout)
	}
	return c, err
}

// openFlags open a file, or a database in memory, which is named by a URI.
const openFlags = sqlite.OpenReadWrite | sqlite.OpenCreate | sqlite.OpenURI

// execute runs a statement and calls f for each row.
func execute(c *sqlite.Conn, sql string, f func(*sqlite.Stmt) error, args ...any) error {
	return sqlError(sql, sqlitex.ExecuteTransient(c, sql, &sqlitex.ExecOptions{Args: args, ResultFunc: f}))
}

// executePrepared is execute for a statement that the connection keeps prepared.
func executePrepared(c *sqlite.Conn, sql string, f func(*sqlite.Stmt) error, args ...any) error {
	return sqlError(sql, sqlitex.Execute(c, sql, &sqlitex.ExecOptions{Args: args, ResultFunc: f}))
}

func sqlError(sql string, err error) error {
	if err != nil {
		err = fmt.Errorf("%.60s: %w: %w", sql, errSQL, err)
	}
	return err
}

// number runs a query, which the connection keeps prepared, and returns its only
// number; no row: 0.
func number(c *sqlite.Conn, sql string, args ...any) (n int64, err error) {
	err = executePrepared(c, sql, func(q *sqlite.Stmt) error { n = q.ColumnInt64(0); return nil }, args...)
	return n, err
}

// transaction calls f in a transaction, which is rolled back if f fails.
func transaction(c *sqlite.Conn, f func() error) (err error) {
	end, err := sqlitex.ImmediateTransaction(c)
	if err != nil {
		return err
	}
	defer end(&err)
	return f()
}

// bytesOf is a copy of a column.
func bytesOf(q *sqlite.Stmt, column int) []byte {
	b := make([]byte, q.ColumnLen(column))
	q.ColumnBytes(column, b)
	return b
}

// values binds the parameters of a statement one after the other.
type values struct {
	q  *sqlite.Stmt
	at int
}

func (v *values) int(n int64) *values {
	v.at++
	v.q.BindInt64(v.at, n)
	return v
}

// positive binds a number, NULL for 0.
func (v *values) positive(n int64) *values {
	if n > 0 {
		return v.int(n)
	}
	return v.blob(nil)
}

// text binds a text, NULL for "" to save memory.
func (v *values) text(s string) *values {
	if s == "" {
		return v.blob(nil)
	}
	v.at++
	v.q.BindText(v.at, s)
	return v
}

func (v *values) blob(b []byte) *values {
	v.at++
	if len(b) > 0 {
		v.q.BindBytes(v.at, b)
	} else {
		v.q.BindNull(v.at)
	}
	return v
}

// bulkValues is the number of values in one statement that inserts: beginning and
// ending a statement costs as much as a row.
const bulkValues = 350

// insert inserts a row for each element of list, and returns how many were
// inserted. bind binds the columns of one row; VALUES in sql is replaced by the
// rows.
func insert[T any](c *sqlite.Conn, sql string, columns int, list []T, bind func(T, *values)) (n int, err error) {
	row := "(" + strings.TrimSuffix(strings.Repeat("?,", columns), ",") + ")"
	for i := 0; i < len(list); {
		rows := bulkValues / columns
		if len(list)-i < rows {
			rows = 1
		}
		full := strings.Replace(sql, "VALUES", "VALUES "+strings.TrimSuffix(strings.Repeat(row+",", rows), ","), 1)
		q, err := c.Prepare(full)
		for err == nil && len(list)-i >= rows {
			v := values{q: q}
			for range rows {
				bind(list[i], &v)
				i++
			}
			if _, err = q.Step(); err == nil {
				n += c.Changes()
				err = q.Reset()
			}
		}
		if err != nil {
			return n, sqlError(sql, err)
		}
	}
	return n, nil
}
