package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/parley-hub/parley"
)

// The writer speaks to SQLite itself rather than through database/sql, whose
// driver parses each statement again at each execution: with it, more than
// half of the time of a rebuild would go there. Queries use database/sql.

// conn is a connection of the writer. It is for one goroutine at a time.
type conn struct {
	tls   *libc.TLS
	db    uintptr
	stmts []*stmt
	kept  []uintptr
	ends  []func() // what close calls first
}

// sqliteError is a failure that SQLite tells.
type sqliteError struct {
	code int32
	text string
}

func (e *sqliteError) Error() string { return fmt.Sprintf("sqlite: %s (%d)", e.text, e.code) }

// codeOf is SQLite's result code in err, of the writer or of database/sql; 0
// where there is none.
func codeOf(err error) int {
	var e *sqliteError
	if errors.As(err, &e) {
		return int(e.code) & 0xff
	}
	var c interface{ Code() int }
	if errors.As(err, &c) {
		return c.Code() & 0xff
	}
	return 0
}

// damaged reports whether the file cannot be read any more.
func damaged(err error) bool {
	c := codeOf(err)
	return c == sqlite3.SQLITE_CORRUPT || c == sqlite3.SQLITE_NOTADB
}

// unfit reports whether the file does not take what it should: it is damaged,
// or not of this schema.
func unfit(err error) bool {
	switch codeOf(err) {
	case sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_FORMAT:
		return true
	}
	return damaged(err)
}

// readOnly reports whether a file that takes nothing may take it when it is
// opened anew: without a free descriptor SQLite tries again to open it, for
// reading only.
func readOnly(err error) bool { return codeOf(err) == sqlite3.SQLITE_READONLY }

func openConn(name string) (*conn, error) {
	c := &conn{tls: libc.NewTLS()}
	path, err := c.string(name)
	if err != nil {
		c.tls.Close()
		return nil, err
	}
	defer c.free(path)
	out, err := c.alloc(bits.UintSize / 8)
	if err != nil {
		c.tls.Close()
		return nil, err
	}
	defer c.free(out)
	rc := sqlite3.Xsqlite3_open_v2(c.tls, path, out, sqlite3.SQLITE_OPEN_READWRITE|sqlite3.SQLITE_OPEN_CREATE|sqlite3.SQLITE_OPEN_URI|sqlite3.SQLITE_OPEN_NOMUTEX, 0)
	c.db = c.pointer(out)
	if rc != sqlite3.SQLITE_OK {
		return nil, errors.Join(c.error(rc), c.close())
	}
	sqlite3.Xsqlite3_busy_timeout(c.tls, c.db, busyMillis)
	if err := c.keep(); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// keep sees to it that there is room for a piece of each size. The allocator
// gives a page of equal pieces back to the system when its last one is freed, and
// statements take and free them all the time: one that stays keeps the page. It
// is another page as the cache of SQLite grows.
func (c *conn) keep() error {
	old := c.kept
	c.kept = nil
	for size := 16; size <= 32<<10; size *= 2 {
		p, err := c.alloc(size - 8)
		if err != nil {
			c.kept = append(c.kept, old...)
			return err
		}
		c.kept = append(c.kept, p)
	}
	for _, p := range old {
		c.free(p)
	}
	return nil
}

// pointer reads what SQLite stored at p.
func (c *conn) pointer(p uintptr) uintptr {
	if bits.UintSize == 32 {
		return uintptr(binary.NativeEndian.Uint32(libc.GoBytes(p, 4)))
	}
	return uintptr(binary.NativeEndian.Uint64(libc.GoBytes(p, 8)))
}

func (c *conn) alloc(n int) (uintptr, error) {
	p := sqlite3.Xsqlite3_malloc(c.tls, int32(n))
	if p == 0 {
		return 0, &sqliteError{sqlite3.SQLITE_NOMEM, "out of memory"}
	}
	clear(libc.GoBytes(p, n))
	return p, nil
}

func (c *conn) free(p uintptr) { sqlite3.Xsqlite3_free(c.tls, p) }

func (c *conn) string(s string) (uintptr, error) {
	p, err := c.alloc(len(s) + 1)
	if err == nil {
		copy(libc.GoBytes(p, len(s)), s)
	}
	return p, err
}

func (c *conn) error(rc int32) error {
	if rc&0xff == sqlite3.SQLITE_OK || c.db == 0 {
		return &sqliteError{rc, libc.GoString(sqlite3.Xsqlite3_errstr(c.tls, rc))}
	}
	return &sqliteError{rc, libc.GoString(sqlite3.Xsqlite3_errmsg(c.tls, c.db))}
}

// close ends the connection with all its statements.
func (c *conn) close() error {
	for _, end := range c.ends {
		end()
	}
	for _, s := range c.stmts {
		sqlite3.Xsqlite3_finalize(c.tls, s.p)
		c.free(s.arena)
	}
	for _, p := range c.kept {
		c.free(p)
	}
	c.stmts, c.kept, c.ends = nil, nil, nil
	var err error
	if rc := sqlite3.Xsqlite3_close_v2(c.tls, c.db); rc != sqlite3.SQLITE_OK {
		err = c.error(rc)
	}
	c.tls.Close()
	return err
}

// finalize ends a statement that is not needed again.
func (c *conn) finalize(s *stmt) error {
	c.stmts = slices.DeleteFunc(c.stmts, func(o *stmt) bool { return o == s })
	err := s.done()
	sqlite3.Xsqlite3_finalize(c.tls, s.p)
	c.free(s.arena)
	return err
}

// exec runs statements that give nothing.
func (c *conn) exec(sql string) error {
	p, err := c.string(sql)
	if err != nil {
		return err
	}
	defer c.free(p)
	if rc := sqlite3.Xsqlite3_exec(c.tls, c.db, p, 0, 0, 0); rc != sqlite3.SQLITE_OK {
		return fmt.Errorf("%.60s: %w", sql, c.error(rc))
	}
	return nil
}

// stmt is a prepared statement. What is bound lies in its arena until run or
// done.
type stmt struct {
	c     *conn
	p     uintptr
	arena uintptr
	size  int // of the arena
	used  int
	next  int32  // parameter
	full  []bool // by parameter: it was something other than NULL last
	err   error
}

const arenaSize = 64 << 10

func (c *conn) prepare(sql string) (*stmt, error) {
	text, err := c.string(sql)
	if err != nil {
		return nil, err
	}
	defer c.free(text)
	out, err := c.alloc(bits.UintSize / 8)
	if err != nil {
		return nil, err
	}
	defer c.free(out)
	if rc := sqlite3.Xsqlite3_prepare_v3(c.tls, c.db, text, -1, sqlite3.SQLITE_PREPARE_PERSISTENT, out, 0); rc != sqlite3.SQLITE_OK {
		return nil, fmt.Errorf("%.60s: %w", sql, c.error(rc))
	}
	s := &stmt{c: c, p: c.pointer(out), size: arenaSize}
	if s.arena, err = c.alloc(s.size); err != nil {
		sqlite3.Xsqlite3_finalize(c.tls, s.p)
		return nil, err
	}
	c.stmts = append(c.stmts, s)
	return s, nil
}

func (s *stmt) check(rc int32) {
	if rc != sqlite3.SQLITE_OK && s.err == nil {
		s.err = s.c.error(rc)
	}
}

// step goes on to the next parameter, to bind something to it.
func (s *stmt) step() {
	s.next++
	for len(s.full) <= int(s.next) {
		s.full = append(s.full, false)
	}
	s.full[s.next] = true
}

// int binds the next parameter; so do the others.
func (s *stmt) int(v int64) *stmt {
	s.step()
	s.check(sqlite3.Xsqlite3_bind_int64(s.c.tls, s.p, s.next, v))
	return s
}

func (s *stmt) null() *stmt {
	s.next++
	if int(s.next) >= len(s.full) || !s.full[s.next] {
		return s // as it is already
	}
	s.full[s.next] = false
	s.check(sqlite3.Xsqlite3_bind_null(s.c.tls, s.p, s.next))
	return s
}

// id binds NULL in place of the zero id.
func (s *stmt) id(v parley.ID) *stmt {
	if v.IsZero() {
		return s.null()
	}
	return s.blob(v[:])
}

// positive binds NULL in place of 0.
func (s *stmt) positive(v int64) *stmt {
	if v == 0 {
		return s.null()
	}
	return s.int(v)
}

// hold copies what was bound to where SQLite can read it; transient says that
// SQLite must copy it again.
func (s *stmt) hold(n int) (p uintptr, transient bool) {
	if s.used+n <= s.size {
		p = s.arena + uintptr(s.used)
		s.used += n
		return p, false
	}
	p, err := s.c.alloc(n)
	if err != nil {
		s.err = errors.Join(s.err, err)
		return 0, false
	}
	return p, true
}

// sqliteTransient is SQLITE_TRANSIENT.
const sqliteTransient = ^uintptr(0)

func (s *stmt) text(v string) *stmt {
	if v == "" {
		return s.null()
	}
	s.step()
	p, transient := s.hold(len(v))
	if p == 0 {
		return s
	}
	copy(libc.GoBytes(p, len(v)), v)
	if transient {
		s.check(sqlite3.Xsqlite3_bind_text(s.c.tls, s.p, s.next, p, int32(len(v)), sqliteTransient))
		s.c.free(p)
		return s
	}
	s.check(sqlite3.Xsqlite3_bind_text(s.c.tls, s.p, s.next, p, int32(len(v)), 0))
	return s
}

func (s *stmt) blob(v []byte) *stmt {
	if len(v) == 0 {
		return s.null()
	}
	s.step()
	p, transient := s.hold(len(v))
	if p == 0 {
		return s
	}
	copy(libc.GoBytes(p, len(v)), v)
	if transient {
		s.check(sqlite3.Xsqlite3_bind_blob(s.c.tls, s.p, s.next, p, int32(len(v)), sqliteTransient))
		s.c.free(p)
		return s
	}
	s.check(sqlite3.Xsqlite3_bind_blob(s.c.tls, s.p, s.next, p, int32(len(v)), 0))
	return s
}

// row runs a query on to its next row. After false, done must have been
// called.
func (s *stmt) row() (bool, error) {
	if s.err != nil {
		return false, s.done()
	}
	switch rc := sqlite3.Xsqlite3_step(s.c.tls, s.p); rc {
	case sqlite3.SQLITE_ROW:
		return true, nil
	case sqlite3.SQLITE_DONE:
		return false, s.done()
	default:
		s.err = s.c.error(rc)
		return false, s.done()
	}
}

// run executes a statement that gives nothing.
func (s *stmt) run() error {
	if more, err := s.row(); err != nil || !more {
		return err
	}
	return s.done()
}

// done makes the statement ready for the next use.
func (s *stmt) done() error {
	err := s.err
	sqlite3.Xsqlite3_reset(s.c.tls, s.p)
	s.used, s.next, s.err = 0, 0, nil
	return err
}

// bulk inserts many rows with few statements: starting and ending one costs as
// much as a row.
type bulk struct {
	one, many *stmt
	rows      int // of many
}

const bulkRows = 16

// prepareBulk takes a statement that ends before VALUES. It should say OR FAIL or
// OR IGNORE: SQLite then need not be able to undo a part of the statement, which
// costs a copy of each page that it changes. Where it must, and with virtual
// tables, rows is 1.
func (c *conn) prepareBulk(sql string, columns, rows int) (b bulk, err error) {
	b.rows = rows
	row := "(" + strings.TrimSuffix(strings.Repeat("?,", columns), ",") + ")"
	if b.one, err = c.prepare(sql + " VALUES " + row); err != nil {
		return b, err
	}
	b.many, err = c.prepare(sql + " VALUES " + strings.TrimSuffix(strings.Repeat(row+",", rows), ","))
	return b, err
}

// insert inserts n rows; bind binds row i.
func (b *bulk) insert(n int, bind func(s *stmt, i int)) error {
	i := 0
	for ; i+b.rows <= n; i += b.rows {
		for k := range b.rows {
			bind(b.many, i+k)
		}
		if err := b.many.run(); err != nil {
			return err
		}
	}
	for ; i < n; i++ {
		bind(b.one, i)
		if err := b.one.run(); err != nil {
			return err
		}
	}
	return nil
}

func (s *stmt) colInt(i int32) int64 { return sqlite3.Xsqlite3_column_int64(s.c.tls, s.p, i) }

func (s *stmt) colText(i int32) string { return string(s.colBytes(i)) }

// colBytes is valid until the next step.
func (s *stmt) colBytes(i int32) []byte {
	p := sqlite3.Xsqlite3_column_blob(s.c.tls, s.p, i)
	n := sqlite3.Xsqlite3_column_bytes(s.c.tls, s.p, i)
	if p == 0 || n <= 0 {
		return nil
	}
	return libc.GoBytes(p, int(n))
}
