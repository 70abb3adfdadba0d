//go:build linux || freebsd

package supervise

import (
	"os/exec"
	"testing"
)

func TestKilledSupervisorLeavesNoProgram(t *testing.T) {
	t.Parallel()
	address, accept := lives(t)
	args := command(t, "supervisor", address).Args
	c := exec.Command(args[0], args[1:]...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	gone := accept(1)
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("it ended without an error")
	}
	gone()
}
