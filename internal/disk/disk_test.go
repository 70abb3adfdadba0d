package disk_test

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/parley-hub/parley/internal/disk"
)

// heldPath makes the test program the second process of a test: it locks the file of
// that name, reports the result, and holds the file until its input ends.
const heldPath = "PARLEY_TEST_LOCK"

func TestMain(m *testing.M) {
	path := os.Getenv(heldPath)
	if path == "" {
		os.Exit(m.Run())
	}
	f, err := disk.Lock(path)
	switch {
	case errors.Is(err, disk.ErrLocked):
		os.Stdout.WriteString("held\n")
	case err != nil:
		os.Stdout.WriteString(err.Error() + "\n")
	default:
		os.Stdout.WriteString("locked\n")
		io.Copy(io.Discard, os.Stdin)
		f.Close()
	}
	os.Exit(0)
}

// other starts a process that locks path, and returns its report and a function to
// kill it.
func other(t *testing.T, path string) (said string, kill func()) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), heldPath+"="+path)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	kill = func() {
		if !ended {
			ended = true
			_ = c.Process.Kill() // it may have ended
			_ = c.Wait()         // it was killed
			_ = in.Close()       // closed by Wait
		}
	}
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), kill
}

func TestLockKeepsOtherProcessesOut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	f, err := disk.Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("4711\n"); err != nil {
		t.Fatal(err)
	}
	if said, _ := other(t, path); said != "held" {
		t.Errorf("while the lock was held here, another process said %q", said)
	}
	if g, err := disk.Lock(path); !errors.Is(err, disk.ErrLocked) || !strings.Contains(err.Error(), path) {
		t.Errorf("a second lock in this process: %v %v", g, err)
	}
	if b, err := os.ReadFile(path); string(b) != "4711\n" {
		t.Errorf("what the holder wrote reads as %q %v", b, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	said, kill := other(t, path)
	if said != "locked" {
		t.Fatalf("the lock was given up, and another process said %q", said)
	}
	if _, err := disk.Lock(path); !errors.Is(err, disk.ErrLocked) {
		t.Errorf("while another process held the lock: %v", err)
	}
	kill()
	f, err = disk.Lock(path)
	if err != nil {
		t.Fatalf("the holder was killed: %v", err)
	}
	f.Close()
}

// TestWait counts in the locked file: a process that gets in beside the holder loses
// a count.
func TestWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	const callers, times = 8, 50
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range times {
				if err := count(path); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if b, err := os.ReadFile(path); err != nil || string(b) != strconv.Itoa(callers*times) {
		t.Errorf("counted to %q, want %d (%v)", b, callers*times, err)
	}
}

func count(path string) error {
	f, err := disk.Wait(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(string(b)) // the first finds nothing: 0
	_, err = f.WriteAt([]byte(strconv.Itoa(n+1)), 0)
	return err
}

func TestLockDirectory(t *testing.T) {
	dir := t.TempDir()
	if runtime.GOOS != "windows" {
		if err := os.Chmod(dir, 0o500); err != nil { // no file can be made there
			t.Fatal(err)
		}
	}
	f, err := disk.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if said, _ := other(t, dir); said != "held" {
		t.Errorf("while the directory was locked here, another process said %q", said)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if said, _ := other(t, dir); said != "locked" {
		t.Errorf("the lock was given up, and another process said %q", said)
	}
}

func TestLockWithoutDirectory(t *testing.T) {
	f, err := disk.Lock(filepath.Join(t.TempDir(), "none", "lock"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v %v", f, err)
	}
}

func TestSpace(t *testing.T) {
	dir := t.TempDir()
	free, total, err := disk.Space(dir)
	if err != nil || free == 0 || free > total {
		t.Errorf("free %d, total %d, %v", free, total, err)
	}
	if _, _, err := disk.Space(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no directory: %v", err)
	}
}

func TestSyncDir(t *testing.T) {
	if err := disk.SyncDir(t.TempDir()); err != nil {
		t.Error(err)
	}
}

func TestIsFull(t *testing.T) {
	f, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no device that is always full: %v", err)
	}
	defer f.Close()
	if _, err := f.WriteString("x"); !disk.IsFull(err) {
		t.Errorf("a full disk says: %v", err)
	}
	if disk.IsFull(fs.ErrNotExist) || disk.IsFull(nil) {
		t.Error("another failure counts as a full disk")
	}
}
