package node

import (
	"context"
	"encoding/base64"
	"time"

	"github.com/parley-hub/parley/admin"
	samvadbridge "github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/doctor"
	"github.com/parley-hub/parley/samvad"
)

// ownHub is the hub itself, as the doctor asks it on behalf of an operator.
type ownHub struct {
	*admin.Admin
	by admin.Actor
}

func (h ownHub) Agent(ctx context.Context, name string, wait time.Duration) (admin.Agent, error) {
	return h.Admin.Agent(ctx, h.by, name, wait)
}

func (h ownHub) Ways(ctx context.Context, name string) ([]hub.Way, error) {
	return h.Admin.Ways(ctx, h.by, name)
}

func (h ownHub) Message(ctx context.Context, id string, raw bool) (admin.Recorded, error) {
	return h.Admin.Message(ctx, h.by, id, raw)
}

func (h ownHub) Refused(_ context.Context, n int) ([]admin.Refusal, error) {
	return h.Admin.Refused(h.by, n)
}

func (h ownHub) Dead(_ context.Context, f admin.DeadFilter) ([]admin.DeadLetter, error) {
	return h.Admin.Dead(h.by, f)
}

// doctor checks the ways to an agent, with the hub's own keys.
func (n *Node) doctor(ctx context.Context, by admin.Actor, agent string) []admin.DoctorStep {
	live := n.live.Load()
	info := n.info()
	info.Now = n.c.Now()
	d := &doctor.Doctor{Now: n.c.Now, Guard: n.guard, Roots: n.rootCAs, Hub: ownHub{n.admin, by}, Info: info,
		Skew:    func(name string) time.Duration { return ProtocolNamed(name).ClockLimit(live) },
		Setting: func(name string) string { return ProtocolNamed(name).Address },
		Enable:  func(name string) string { return ProtocolNamed(name).Enable },
		Enrolled: func(_ context.Context, agent string) (keys []string) {
			for _, k := range n.keys.Enrolled(agent, samvadbridge.Protocol) {
				keys = append(keys, base64.StdEncoding.EncodeToString(k.Public))
			}
			return keys
		}}
	d.Signers = func(check string) (now, next samvad.Signer, done func()) {
		now, err := samvadbridge.SignerOf(n.keys, info.SAMVAD.Identity)
		if err != nil {
			d.Failed(check, "see the hub's log", err)
			return nil, nil, nil
		}
		return now, samvadbridge.NextOf(n.keys, info.SAMVAD.Identity), func() {}
	}
	d.Address = map[string]func(context.Context, doctor.WayPoint){samvadbridge.Protocol: d.SAMVADAddress,
		"uagents": d.UAgentsAddress, "agh": d.NATSAddress}
	d.Begin()
	d.Agent(ctx, agent)
	return d.Steps
}
