package index

import (
	"errors"
	"math/bits"
	"unsafe"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// tokenizer is the one that SQLite takes texts and searches apart with.
type tokenizer struct {
	c        *conn
	p        uintptr
	tokenize func(tls *libc.TLS, tokenizer, context uintptr, flags int32, text uintptr, n int32, token uintptr) int32
	call     tokenCall // keeps what SQLite is given
	word     func([]byte)
}

type tokenCall struct {
	f func(tls *libc.TLS, context uintptr, flags int32, token uintptr, n, start, end int32) int32
}

const pointerSize = bits.UintSize / 8

// tokenizeDocument is FTS5_TOKENIZE_DOCUMENT.
const tokenizeDocument = 4

// openTokenizer asks FTS5 for the tokenizer unicode61 with its defaults, by the
// pointers of its interface for extensions.
func openTokenizer(c *conn) (*tokenizer, error) {
	api, err := ftsAPI(c)
	if err != nil {
		return nil, err
	}
	name, err := c.string("unicode61")
	if err != nil {
		return nil, err
	}
	defer c.free(name)
	out, err := c.alloc(4 * pointerSize) // data, and xCreate, xDelete, xTokenize
	if err != nil {
		return nil, err
	}
	defer c.free(out)
	functions := out + pointerSize
	find := c.pointer(api + 2*pointerSize) // behind iVersion and xCreateTokenizer
	if rc := (*(*func(*libc.TLS, uintptr, uintptr, uintptr, uintptr) int32)(function(&find)))(c.tls, api, name, out, functions); rc != sqlite3.SQLITE_OK {
		return nil, c.error(rc)
	}
	t := &tokenizer{c: c}
	create, remove, tokenize := c.pointer(functions), c.pointer(functions+pointerSize), c.pointer(functions+2*pointerSize)
	data := c.pointer(out)
	if rc := (*(*func(*libc.TLS, uintptr, uintptr, int32, uintptr) int32)(function(&create)))(c.tls, data, 0, 0, out); rc != sqlite3.SQLITE_OK {
		return nil, c.error(rc)
	}
	t.p = c.pointer(out)
	c.ends = append(c.ends, func() { (*(*func(*libc.TLS, uintptr))(function(&remove)))(c.tls, t.p) })
	t.tokenize = *(*func(*libc.TLS, uintptr, uintptr, int32, uintptr, int32, uintptr) int32)(function(&tokenize))
	t.call.f = func(_ *libc.TLS, _ uintptr, _ int32, token uintptr, n, _, _ int32) int32 {
		t.word(libc.GoBytes(token, int(n)))
		return sqlite3.SQLITE_OK
	}
	return t, nil
}

// function makes a pointer to a C function what Go takes for a function, as the
// translation of SQLite does itself.
func function(p *uintptr) unsafe.Pointer { return unsafe.Pointer(&struct{ uintptr }{*p}) }

// ftsAPI is SQLite's fts5_api.
func ftsAPI(c *conn) (uintptr, error) {
	out, err := c.alloc(pointerSize)
	if err != nil {
		return 0, err
	}
	defer c.free(out)
	kind, err := c.string("fts5_api_ptr")
	if err != nil {
		return 0, err
	}
	defer c.free(kind)
	q, err := c.prepare("SELECT fts5(?)")
	if err != nil {
		return 0, err
	}
	q.check(sqlite3.Xsqlite3_bind_pointer(c.tls, q.p, 1, out, kind, 0))
	_, err = q.row()
	if err := errors.Join(err, c.finalize(q)); err != nil {
		return 0, err
	}
	return c.pointer(out), nil
}

// each hands over the words of a text; they are valid during the call.
func (t *tokenizer) each(text string, word func([]byte)) error {
	p, err := t.c.string(text)
	if err != nil {
		return err
	}
	defer t.c.free(p)
	t.word = word
	if rc := t.tokenize(t.c.tls, t.p, 0, tokenizeDocument, p, int32(len(text)), *(*uintptr)(unsafe.Pointer(&t.call))); rc != sqlite3.SQLITE_OK {
		return t.c.error(rc)
	}
	return nil
}
