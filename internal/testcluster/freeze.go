//go:build unix

package testcluster

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// Freeze suspends a child of this process: its connections stay open, and it
// answers nothing.
func Freeze(p *os.Process) error {
	err := p.Signal(syscall.SIGSTOP)
	if err != nil {
		return fmt.Errorf("testcluster: %w", err)
	}
	var status syscall.WaitStatus
	if _, err = syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		return fmt.Errorf("testcluster: process %d does not freeze: %w", p.Pid, err)
	}
	return nil
}

// Thaw resumes a frozen process.
func Thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// Freeze freezes the server i.
func (c *Processes) Freeze(i int) error { return c.of(i, Freeze) }

// Thaw resumes the frozen server i.
func (c *Processes) Thaw(i int) error { return c.of(i, Thaw) }

func (c *Processes) of(i int, do func(*os.Process) error) error {
	c.mu.Lock()
	p := c.running[i]
	c.mu.Unlock()
	if p == nil {
		return errors.New("testcluster: the server does not run")
	}
	return do(p.cmd.Process)
}
