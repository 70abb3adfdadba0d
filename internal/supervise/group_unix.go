//go:build unix

package supervise

import (
	"os"
	"os/exec"
	"syscall"
)

// A group is a process group, by the id of its first process.
type group int

func prepare(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	endWithParent(cmd.SysProcAttr)
}

func groupOf(first *os.Process) (group, error) { return group(first.Pid), nil }

func (g group) terminate() { g.signal(syscall.SIGTERM) }

func (g group) kill() { g.signal(syscall.SIGKILL) }

func (group) close() {}

func (g group) signal(s syscall.Signal) {
	_ = syscall.Kill(-int(g), s) // the error is that the group has ended
}
