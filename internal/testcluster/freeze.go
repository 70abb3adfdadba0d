//go:build unix

package testcluster

import (
	"errors"
	"fmt"
	"syscall"
)

// Freeze stops the server i where it stands: its connections stay open, and it
// answers nothing.
func (c *Processes) Freeze(i int) error {
	pid, err := c.signal(i, syscall.SIGSTOP)
	if err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		return fmt.Errorf("testcluster: server %d does not freeze: %w", i, err)
	}
	return nil
}

// Thaw lets a frozen server go on.
func (c *Processes) Thaw(i int) error {
	_, err := c.signal(i, syscall.SIGCONT)
	return err
}

func (c *Processes) signal(i int, sig syscall.Signal) (pid int, err error) {
	c.mu.Lock()
	p := c.running[i]
	c.mu.Unlock()
	if p == nil {
		return 0, errors.New("testcluster: the server does not run")
	}
	if err := p.cmd.Process.Signal(sig); err != nil {
		return 0, fmt.Errorf("testcluster: %w", err)
	}
	return p.cmd.Process.Pid, nil
}
