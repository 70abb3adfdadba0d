package sqlite_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/parley-hub/parley/journal/sqlite"
	"github.com/parley-hub/parley/journal/store"
)

// Open the store of a directory, for journal.Open; a second process is refused.
func ExampleOpen() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "journal")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	fmt.Println(s.Promise())
	_, err = sqlite.Open(ctx, sqlite.Config{Dir: dir})
	fmt.Println(errors.Is(err, store.ErrLocked))
	// Output:
	// Accepted means that the message is on this machine's disk: it survives the end of the program and a power cut.
	// true
}
