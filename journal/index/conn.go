package index

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"zombiezen.com/go/sqlite"
	"zombiezen.com/go/sqlite/sqlitex"

	"github.com/parley-hub/parley"
)

// conn is a connection to the file. It is for one goroutine at a time.
type conn struct {
	*sqlite.Conn
	kept *sqlite.Stmt
}

// codeOf is SQLite's primary result code in err; ResultError also where err is
// of something else.
func codeOf(err error) sqlite.ResultCode { return sqlite.ErrCode(err).ToPrimary() }

// corrupt is an error that makes the file a damaged one.
func corrupt(what string) error { return fmt.Errorf("%s: %w", what, sqlite.ResultCorrupt.ToError()) }

// damaged reports whether the file cannot be read any more.
func damaged(err error) bool {
	c := codeOf(err)
	return c == sqlite.ResultCorrupt || c == sqlite.ResultNotADB
}

// errSQL marks a failure of a statement: SQLite's general code says nothing.
var errSQL = errors.New("a statement failed")

// unfit reports whether the file does not take what it should: it is damaged,
// or not of this schema.
func unfit(err error) bool {
	switch codeOf(err) {
	case sqlite.ResultConstraint, sqlite.ResultMismatch, sqlite.ResultSchema, sqlite.ResultFormat:
		return true
	case sqlite.ResultError:
		return errors.Is(err, errSQL)
	}
	return damaged(err)
}

// readOnly reports whether a file that takes nothing may take it when it is
// opened anew: without a free descriptor SQLite tries again to open it, for
// reading only.
func readOnly(err error) bool { return codeOf(err) == sqlite.ResultReadOnly }

// flags are those to open a file with. One in memory is named by a URI.
func flags(name string) sqlite.OpenFlags {
	f := sqlite.OpenReadWrite | sqlite.OpenCreate
	if strings.HasPrefix(name, memoryName) {
		f |= sqlite.OpenURI
	}
	return f
}

func openConn(name string) (*conn, error) {
	c, err := sqlite.OpenConn(name, flags(name))
	if err != nil {
		return nil, err
	}
	c.SetBusyTimeout(busyTimeout)
	return &conn{Conn: c}, nil
}

// keep holds a piece of memory of each size. The allocator gives a page of equal
// pieces back to the system when its last one is freed, and statements take and
// free them all the time: one that stays keeps the page. It is another page as the
// cache of SQLite grows, so the pieces are taken anew between transactions.
func (c *conn) keep() error {
	const sizes = 12 // from 16 bytes
	if c.kept == nil {
		q, err := c.Prepare("SELECT ?" + strings.Repeat(",?", sizes-1))
		if err != nil {
			return err
		}
		c.kept = q
	}
	var room [16 << (sizes - 1)]byte
	for i := range sizes {
		c.kept.BindBytes(i+1, room[:16<<i-8])
	}
	return nil
}

// exec runs statements that give nothing.
func (c *conn) exec(sql string) error {
	for sql = strings.TrimSpace(sql); sql != ""; {
		q, rest, err := c.PrepareTransient(sql)
		if err != nil {
			return fmt.Errorf("%.60s: %w: %w", sql, errSQL, err)
		}
		_, err = q.Step()
		if err := errors.Join(err, q.Finalize()); err != nil {
			return fmt.Errorf("%.60s: %w: %w", sql, errSQL, err)
		}
		sql = strings.TrimSpace(sql[len(sql)-rest:])
	}
	return nil
}

// transaction runs f in a transaction, which is undone where f fails.
func (c *conn) transaction(f func() error) error {
	err := c.exec("BEGIN IMMEDIATE")
	if err == nil {
		err = f()
	}
	if err == nil {
		err = c.exec("COMMIT")
	}
	return errors.Join(err, c.rollback())
}

// rollback undoes the transaction, if there is one.
func (c *conn) rollback() error {
	if c.AutocommitEnabled() {
		return nil
	}
	return c.exec("ROLLBACK")
}

// each runs a query and calls f for each row that it gives.
func each(c *sqlite.Conn, sql string, f func(*sqlite.Stmt) error, args ...any) error {
	return sqlitex.ExecuteTransient(c, sql, &sqlitex.ExecOptions{Args: args, ResultFunc: f})
}

// number runs a query that gives one, or nothing, which is 0.
func number(c *sqlite.Conn, sql string, args ...any) (n int64, err error) {
	err = each(c, sql, func(q *sqlite.Stmt) error { n = q.ColumnInt64(0); return nil }, args...)
	return n, err
}

// stmt is a prepared statement whose parameters are bound one after the other.
type stmt struct {
	*sqlite.Stmt
	next int
	err  error
}

// prepare gives a statement that the connection keeps.
func (c *conn) prepare(sql string) *stmt {
	q, err := c.Prepare(sql)
	if err != nil {
		err = fmt.Errorf("%w: %w", errSQL, err)
	}
	return &stmt{Stmt: q, err: err}
}

// int binds the next parameter; so do the others.
func (s *stmt) int(v int64) *stmt {
	if s.next++; s.err == nil {
		s.BindInt64(s.next, v)
	}
	return s
}

func (s *stmt) null() *stmt {
	if s.next++; s.err == nil {
		s.BindNull(s.next)
	}
	return s
}

// positive binds NULL in place of 0.
func (s *stmt) positive(v int64) *stmt {
	if v == 0 {
		return s.null()
	}
	return s.int(v)
}

// text binds NULL in place of "", and blob of nothing.
func (s *stmt) text(v string) *stmt {
	if v == "" {
		return s.null()
	}
	if s.next++; s.err == nil {
		s.BindText(s.next, v)
	}
	return s
}

func (s *stmt) blob(v []byte) *stmt {
	if len(v) == 0 {
		return s.null()
	}
	if s.next++; s.err == nil {
		s.BindBytes(s.next, v)
	}
	return s
}

// id binds NULL in place of the zero id.
func (s *stmt) id(v parley.ID) *stmt {
	if v.IsZero() {
		return s.null()
	}
	return s.blob(v[:])
}

// row runs a query on to its next row. Where it gives one, Reset must be called.
func (s *stmt) row() (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	more, err := s.Step()
	switch {
	case err != nil:
		return false, fmt.Errorf("%w: %w", errSQL, err)
	case !more:
		return false, s.Reset()
	}
	return true, nil
}

// run executes a statement that gives nothing, and makes it ready for the next
// use.
func (s *stmt) run() error {
	_, err := s.row()
	s.next = 0
	return err
}

// bytesOf is a copy of a column.
func bytesOf(q *sqlite.Stmt, column int) []byte {
	b := make([]byte, q.ColumnLen(column))
	q.ColumnBytes(column, b)
	return b
}

// bulkRows is how many rows one statement inserts: to begin and end one costs as
// much as a row.
const bulkRows = 16

// insert inserts n rows; into is the statement before VALUES, and bind binds row i.
func (c *conn) insert(into string, columns, n int, bind func(q *stmt, i int)) error {
	row := "(" + strings.TrimSuffix(strings.Repeat("?,", columns), ",") + ")"
	i := 0
	for _, rows := range []int{bulkRows, 1} {
		if n-i < rows {
			continue
		}
		q := c.prepare(into + " VALUES " + strings.TrimSuffix(strings.Repeat(row+",", rows), ","))
		for n-i >= rows {
			for range rows {
				bind(q, i)
				i++
			}
			if err := q.run(); err != nil {
				return err
			}
		}
	}
	return nil
}

const busyTimeout = 10 * time.Second
