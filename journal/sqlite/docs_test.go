package sqlite

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"zombiezen.com/go/sqlite"

	"github.com/parley-hub/parley/journal/store"
)

// TestDocumentedQueries: the queries of docs/journal.md return rows while a store is
// open.
func TestDocumentedQueries(t *testing.T) {
	page, err := os.ReadFile("../../docs/journal.md")
	must(t, err)
	dir := t.TempDir()
	s := fresh(t, dir)
	about := store.About{
		Time: time.Now(), Kind: "request", Message: "01890a5d-ac96-774b-bcce-b302099a8057", From: "ann", To: "bob",
	}
	must(t, s.Append(t.Context(), 1, 0, []store.Record{{Data: []byte("x"), About: about}}))
	_, err = s.Put(t.Context(), "agents", store.Value{Key: "ann", Until: time.Now()}, nil)
	must(t, err)
	c, err := openConn(filepath.Join(dir, FileName), sqlite.OpenReadOnly, 100)
	must(t, err)
	defer c.Close()
	n := 0
	for _, block := range regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(page), -1) {
		for query := range strings.SplitSeq(strings.TrimSpace(block[1]), ";\n") {
			rows := 0
			must(t, c.query(strings.TrimSuffix(query, ";"), func(*sqlite.Stmt) error { rows++; return nil }))
			if rows != 1 {
				t.Errorf("%d rows of %s", rows, query)
			}
			n++
		}
	}
	if n != 6 {
		t.Errorf("%d queries", n)
	}
}
