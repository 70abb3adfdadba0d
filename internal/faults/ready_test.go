package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/sqlite"
)

// TestReadyAfterKill kills a process that appends to a journal without pause,
// and opens the journal. The longest form does so with 2 GB.
func TestReadyAfterKill(t *testing.T) {
	t.Parallel()
	megabytes, bound := int64(48), time.Duration(0)
	if much(t, 0, 0, 1) > 0 {
		megabytes, bound = 2048, 10*time.Second // the promise is 2 s, on a machine that does nothing else
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command(self)
	child.Env = append(os.Environ(), fillEnv+"="+dir)
	var said tail
	child.Stderr = &said
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, sqlite.FileName)
	err = eventually(t.Context(), 9*time.Minute, func() (bool, error) {
		info, err := os.Stat(path)
		return err == nil && info.Size() >= megabytes<<20, err
	})
	if kill := child.Process.Kill(); kill != nil {
		t.Error(kill)
	}
	_ = child.Wait() // it was killed
	if err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	wal, err := os.Stat(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	j, err := openFilled(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	defer func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	}()
	t.Logf("ready after %s: %d MB, %d MB of WAL", took.Round(time.Millisecond), megabytes, wal.Size()>>20)
	if bound > 0 && took > bound {
		t.Errorf("want at most %s", bound)
	}
	// The journal still has its entries, the keys too.
	e, err := filling(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, prior, err := j.Accept(t.Context(), e); err != nil || prior == nil {
		t.Errorf("a key from before the kill is not known: %v, %v", prior, err)
	}
}

// fillEnv has the test binary fill the journal in a directory until it is killed.
const fillEnv = "PARLEY_FAULTS_FILL"

func openFilled(ctx context.Context, dir string) (*journal.Journal, error) {
	s, err := sqlite.Open(ctx, sqlite.Config{Dir: dir})
	if err != nil {
		return nil, err
	}
	return journal.Open(ctx, journal.Config{Store: s, Node: "filled"})
}

// filling is an entry of 1.2 KB with a key.
func filling(n uint64) (journal.Entry, error) {
	id, err := parley.NewID(time.Now(), strings.NewReader(fmt.Sprintf("%032d", n)))
	return journal.Entry{Scope: "worker", Key: journal.Key{ID: "key " + strconv.FormatUint(n, 10), Sender: "sender"},
		Message: &parley.Message{
			ID: id, Kind: parley.Notice, From: "sender", To: "worker", Conversation: id,
			Parts: []parley.Part{parley.Text(strings.Repeat("text ", 220))}}}, err
}

// fill appends with many callers until the process ends.
func fill(dir string) error {
	j, err := openFilled(context.Background(), dir)
	if err != nil {
		return err
	}
	var number atomic.Uint64
	failed := make(chan error)
	for range 256 {
		go func() {
			for {
				e, err := filling(number.Add(1))
				if err == nil {
					_, _, err = j.Accept(context.Background(), e)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	return <-failed
}
