// Package doctor checks the way to an agent step by step, and says for each fault the setting that mends it. For an agent
// of SAMVAD, for example: its name, whether the hub may call the address, the connection, the certificate, its clock, its
// card and key, and whether it accepts the hub's key.
package doctor

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/internal/readable"
	"github.com/parley-hub/parley/samvad"
)

// A Doctor makes the checks of one examination.
type Doctor struct {
	Steps []admin.DoctorStep // those made so far

	Now    func() time.Time
	Guard  *netguard.Guard // judges the addresses that the hub calls
	Roots  *x509.CertPool  // besides those of the system
	NoSend bool            // skip the signed request

	Hub  Hub // of the agent; nil: none runs
	Info admin.Info

	// Skew gives the difference of clocks from which on a protocol refuses messages; 0: clocks do not matter.
	Skew func(protocol string) time.Duration
	// Setting names the setting that holds an agent's address in a protocol, and Enable those that switch the protocol
	// on; "" for none.
	Setting, Enable func(protocol string) string
	// Address checks an address that the hub calls to reach an agent, by protocol; of others the network is checked.
	Address map[string]func(context.Context, WayPoint)

	// Enrolled gives an agent's public keys of SAMVAD, base64.
	Enrolled func(ctx context.Context, agent string) []string
	// Signers gives the hub's key, and the one that a rotation will bring or nil, until done is called. Without them it
	// has said why, in a step of this check.
	Signers func(check string) (now, next samvad.Signer, done func())

	last time.Time // of the step before
}

// A Hub is a running hub, as far as the doctor asks it: an [admin.Client], or the hub itself.
type Hub interface {
	Agent(ctx context.Context, name string, wait time.Duration) (admin.Agent, error)
	Ways(ctx context.Context, name string) ([]hub.Way, error)
	Message(ctx context.Context, id string, raw bool) (admin.Recorded, error)
	Refused(ctx context.Context, n int) ([]admin.Refusal, error)
	Dead(ctx context.Context, f admin.DeadFilter) ([]admin.DeadLetter, error)
}

func (d *Doctor) add(state hub.FindingState, check, fix, detail string) {
	d.note(hub.Finding{Check: check, State: state, Detail: detail, Fix: fix})
}

// note adds a step, which took the time since the one before.
func (d *Doctor) note(f hub.Finding) {
	now := d.Now()
	if d.last.IsZero() {
		d.last = now
	}
	d.Steps = append(d.Steps, admin.DoctorStep{Finding: f, Micros: now.Sub(d.last).Microseconds()})
	d.last = now
}

// Begin starts the time of the first step.
func (d *Doctor) Begin() { d.last = d.Now() }

// OK adds a check that found no fault.
func (d *Doctor) OK(check, format string, args ...any) bool {
	d.add(hub.FindingOK, check, "", fmt.Sprintf(format, args...))
	return true
}

// Skip adds a check that could not be made.
func (d *Doctor) Skip(check, format string, args ...any) bool {
	d.add(hub.FindingSkipped, check, "", fmt.Sprintf(format, args...))
	return true
}

// Warn adds a warning; fix may be "".
func (d *Doctor) Warn(check, fix, format string, args ...any) {
	d.add(hub.FindingWarning, check, fix, fmt.Sprintf(format, args...))
}

// Failed adds a check that failed.
func (d *Doctor) Failed(check, fix string, err error) bool {
	d.add(hub.FindingFailed, check, fix, short(err.Error(), 400))
	return false
}

// Texts for people.
var (
	clean  = readable.Clean
	short  = readable.Short
	plural = readable.Plural
	stamp  = readable.Stamp
)
