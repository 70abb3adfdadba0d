//go:build linux || freebsd

package supervise

import "syscall"

// endWithParent makes the kernel end the program when this process is killed.
func endWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
