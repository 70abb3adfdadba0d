//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/parley-hub/parley/samvad"
)

// A tamper changes the results of a process's syncs, from outside.
type tamper struct {
	strace *exec.Cmd
	said   tail
}

// tamperWith has every fsync and fdatasync of a running process end as strace says:
// "error=EIO", or "delay_exit=1000000" (microseconds).
func tamperWith(t *testing.T, p *process, how string) *tamper {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		lacking(t, "strace is needed to have syncs fail or take long, and is not installed")
	}
	pid := p.cmd.Process.Pid
	x := &tamper{strace: exec.Command(strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace=fsync,fdatasync",
		"-e", "inject=fsync,fdatasync:"+how, "-p", fmt.Sprint(pid))}
	x.strace.Stderr = &x.said
	if err := x.strace.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.end(t) })
	err = eventually(t.Context(), time.Minute, func() (bool, error) { return traced(pid) })
	if strings.Contains(x.said.String(), "Operation not permitted") {
		lacking(t, "strace may not look at another process here: %s", x.said.String())
	}
	if err != nil {
		t.Fatalf("%v: %s", err, &x.said)
	}
	return x
}

// end lets the process go on by itself.
func (x *tamper) end(t *testing.T) {
	t.Helper()
	if x.strace.ProcessState != nil {
		return
	}
	if err := x.strace.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	_ = x.strace.Wait() // it was interrupted
}

// traced reports whether strace is attached to all threads of a process.
func traced(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(threads) == 0 {
		return false, fmt.Errorf("the threads of process %d: %w", pid, err)
	}
	for _, path := range threads {
		b, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil || strings.Contains(string(b), "TracerPid:\t0\n") {
			return false, err
		}
	}
	return true, nil
}

// task sends a task that takes a handler some milliseconds, and gives its id.
func (d *disk) task(t *testing.T, n, milliseconds int) string {
	t.Helper()
	s, err := sign(d.sender, d.base, samvad.ModeAsync, samvad.Call{To: d.to, Skill: "slow",
		Payload: fmt.Appendf(nil, `{"n":"slow-%d","ms":%d}`, n, milliseconds)})
	if err != nil {
		t.Fatal(err)
	}
	a := d.send(t, s)
	if a.status != http.StatusAccepted {
		t.Fatal(a)
	}
	return a.task()
}

// TestFailingSync has every sync of a running hub fail, and then work again. Bytes
// written before a failed sync may never reach the disk, even if later syncs succeed.
// So the hub acknowledges nothing more, says what to do, and works again after a
// restart.
func TestFailingSync(t *testing.T) {
	t.Parallel()
	d := newDiskIn(t, t.TempDir(), "1")
	for i := range 10 {
		d.expect(t, fmt.Sprint("before-", i), http.StatusOK)
	}
	d.wantReady(t)
	var tasks []string
	for i := range 5 {
		tasks = append(tasks, d.task(t, i, 2000)) // in flight when the disk fails
	}
	refused := func(when string) {
		t.Helper()
		var senders sync.WaitGroup
		for i := range 8 {
			mode := samvad.ModeSync
			if i%2 == 0 {
				mode = samvad.ModeAsync
			}
			s := d.shot(t, fmt.Sprint(when, i), mode, 4<<10)
			senders.Go(func() {
				a, err := s.post(t.Context(), d.client)
				if err != nil || a.status != http.StatusInternalServerError ||
					a.code() != samvad.CodeAgentUnavailable ||
					a.header.Get("Parley-Ref") == "" {
					t.Errorf("%s: %s, Parley-Ref %q, %v", when, a, a.header.Get("Parley-Ref"), err)
				}
			})
		}
		senders.Wait()
		d.wantNotReady(t, "start again when the disk works")
	}
	fault := tamperWith(t, d.process, "error=EIO")
	refused("while syncs fail ")
	refused("while syncs fail, once more ")
	fault.end(t)
	refused("when syncs work again ")
	if said := d.process.errs.String(); !strings.Contains(said, "The journal takes nothing until it is opened again") {
		t.Errorf("the log does not say what happened:\n%s", said)
	}
	if !d.process.alive() {
		t.Fatal("the process ended")
	}

	d.process.kill()
	d.start(t)
	d.wantReady(t)
	for _, id := range tasks {
		var status string
		err := eventually(t.Context(), 20*time.Second, func() (ok bool, err error) {
			status, _, err = taskState(t.Context(), d.client, d.base, id)
			return status == "done", err
		})
		if err != nil {
			t.Errorf("a task that was acknowledged is %q after the restart: %v", status, err)
		}
	}
	d.expect(t, "after", http.StatusOK)
	d.verify(t)
}

// TestSlowSync has every sync of a running hub take two seconds. Patient senders wait,
// and are acknowledged; hasty ones go away and come back with more, which must not fill
// the memory. The hub is ready, and says so at once.
func TestSlowSync(t *testing.T) {
	t.Parallel()
	const (
		hasty, size = 64, 512 << 10
		bound       = 112 << 20
	)
	each := much(t, 8, 20, 20) // 256 MiB in all, or 640
	d := newDiskIn(t, t.TempDir(), "1")
	d.expect(t, "before", http.StatusOK)
	fault := tamperWith(t, d.process, "delay_exit=2000000")
	before := d.process.status(t, "VmRSS:")
	var acked, told, left atomic.Int64
	var senders, patient sync.WaitGroup
	for i := range hasty {
		senders.Go(func() {
			for k := range each {
				s := d.shot(t, fmt.Sprintf("hasty-%d-%d", i, k), samvad.ModeAsync, size)
				ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
				a, err := s.post(ctx, d.client)
				cancel()
				switch {
				case errors.Is(err, context.DeadlineExceeded):
					left.Add(1)
				case err != nil:
					t.Errorf("the hub went away: %v", err)
				case a.status == http.StatusAccepted:
					acked.Add(1)
					d.note(s)
				case a.status >= 400 && a.code() == samvad.CodeAgentUnavailable && a.header.Get("Parley-Ref") != "":
					told.Add(1)
				default:
					t.Errorf("on a slow disk: %s", a)
				}
			}
		})
	}
	over := make(chan struct{})
	for i := range 3 {
		patient.Go(func() {
			for n := 0; ; n++ {
				s := d.shot(t, fmt.Sprintf("patient-%d-%d", i, n), samvad.ModeSync, 4<<10)
				a, err := s.post(t.Context(), d.client)
				if err != nil || a.status != http.StatusOK && a.code() != samvad.CodeAgentUnavailable {
					t.Errorf("on a slow disk: %s, %v", a, err)
					return
				}
				if a.status == http.StatusOK {
					d.note(s)
				}
				d.wantReady(t)
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	senders.Wait()
	grown := d.process.status(t, "VmHWM:") - before
	t.Logf("of %d hasty messages %d were acknowledged, %d refused, %d given up; the hub grew by %.0f MiB", hasty*each,
		acked.Load(), told.Load(), left.Load(), mib(grown))
	if grown > bound {
		t.Errorf("the hub grew by %.0f MiB, want at most %d", mib(grown), bound>>20)
	}
	close(over)
	patient.Wait()
	if left.Load()+told.Load() == 0 {
		t.Error("the disk was not slow")
	}
	d.expect(t, "still slow", http.StatusOK)
	d.wantReady(t)
	fault.end(t)
	d.expect(t, "fast again", http.StatusOK)
	d.verify(t)
}
