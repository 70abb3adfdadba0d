package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	exam "github.com/parley-hub/parley/internal/doctor"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
)

func (a *app) doctorCommand() *cobra.Command {
	var noSend, atHub bool
	c := &cobra.Command{
		Use:   "doctor [AGENT]",
		Short: "Check the hub, or the way to one agent, and show how to fix problems",
		Long: `Check the configuration, files, disk, clock, ports, the admin API and public_url.

With an agent's name, or its id in a protocol, check each way to it:
- an agent that the hub calls: name, address, connection, certificate, clock, and what the
  protocol offers without starting work: a card, a key, a ping, a signed request;
- an agent that connects, or fetches its messages: its registration, token or user, whether
  it is connected now, and when the hub last heard of it. Only the running hub knows this;
- all: whether it is paused, which messages wait, dead letters, and refused messages that
  claim to be from it.

The signed request of SAMVAD names a skill that no agent has ("` + exam.Skill + `"): an agent
that answers so has accepted the hub's signature. In a cluster only the hubs have the private
keys, so the request is skipped. While "parley keys rotate" replaces the hub's SAMVAD key, each
SAMVAD agent gets such a request signed with the new key; agents that do not accept it fail.

With --hub the running hub checks the ways to the agent, from where it is and with its own
keys, also in a cluster.

Run it on the hub's machine, as the hub's user. Each failed line names the setting or
command that fixes it. A warning tells of what may be meant, such as an agent that is not
started. The exit code is 0 if nothing failed, else 1; warnings do not count.`,
		Example: "  parley doctor\n  parley doctor museum\n  parley doctor --hub museum\n  parley doctor --json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d := newDoctor(a, noSend)
			switch {
			case atHub && (len(args) == 0 || noSend):
				return usage("--hub is for the ways to one agent, with the signed request: parley doctor --hub AGENT")
			case atHub:
				hub, err := a.hub()
				if err == nil {
					d.Steps, err = hub.Doctor(cmd.Context(), args[0])
				}
				if err != nil {
					return a.hubError(err, "`parley agents` lists them")
				}
				return d.report()
			}
			d.examine(cmd.Context(), argument(args))
			return d.report()
		},
	}
	c.Flags().BoolVar(&noSend, "no-send", false, "skip the signed request")
	c.Flags().BoolVar(&atHub, "hub", false, "let the running hub check the ways to the agent")
	return c
}

type doctor struct {
	exam.Doctor
	a   *app
	c   node.Config
	hub *admin.Client // of a running hub, else nil
}

// newDoctor makes a doctor that has made no check yet.
func newDoctor(a *app, noSend bool) *doctor {
	d := &doctor{a: a, Doctor: exam.Doctor{Now: time.Now, NoSend: noSend}}
	d.Enrolled, d.Signers = d.enrolled, d.signers
	d.Setting = func(name string) string { return node.ProtocolNamed(name).Address }
	d.Enable = func(name string) string { return node.ProtocolNamed(name).Enable }
	d.Skew = func(name string) time.Duration { return node.ProtocolNamed(name).ClockLimit(&d.c) }
	d.Address = map[string]func(context.Context, exam.WayPoint){}
	for _, p := range protocols {
		if p.checkAddress != nil {
			d.Address[p.name] = func(ctx context.Context, at exam.WayPoint) { p.checkAddress(d, ctx, at) }
		}
	}
	return d
}

func (d *doctor) report() error {
	ok := !slices.ContainsFunc(d.Steps, func(f admin.DoctorStep) bool { return f.State == hub.FindingFailed })
	return d.a.verdict(ok, map[string]any{"ok": ok, "checks": d.Steps}, func() error {
		for _, f := range d.Steps {
			d.a.hang(fmt.Sprintf("%s %-18s ", d.a.painted(mood(string(f.State)), fmt.Sprintf("%-8s", f.State)), f.Check), 28, "",
				clean(f.Detail))
			if f.Fix != "" {
				d.a.hang(fmt.Sprintf("%28s-> ", ""), 31, "", clean(f.Fix))
			}
		}
		return nil
	})
}

// examine checks the hub first: a fault there is often the cause of an agent's.
func (d *doctor) examine(ctx context.Context, agent string) {
	d.Begin()
	start, wall := d.Now(), d.Now().Round(0)
	if !d.configuration() {
		return
	}
	d.adminAPI(ctx)
	if agent != "" {
		d.agent(ctx, agent)
		d.clock(start, wall)
		return
	}
	d.files()
	d.disk()
	d.ports()
	d.listeners(ctx)
	d.guests()
	for _, p := range protocols {
		if p.checkHub != nil {
			p.checkHub(d, ctx)
		}
	}
	d.clock(start, wall)
}

func (d *doctor) configuration() bool {
	file := d.a.configFile()
	c, err := d.a.load()
	if err != nil {
		return d.Failed("configuration", "fix the file; `parley config describe KEY` explains a key", err)
	}
	d.c = c
	if d.Guard, err = guardOf(&c); err != nil {
		return d.Failed("configuration", "network.allow", err)
	}
	if d.Roots, err = c.Roots(); err != nil {
		return d.Failed("configuration", "tls.ca", err)
	}
	if file == "" {
		return d.Skip("configuration", "there is no %s here; `parley init` makes one", configName)
	}
	return d.OK("configuration", "%s", file)
}

func (d *doctor) adminAPI(ctx context.Context) {
	hub, err := d.a.hub()
	if err != nil {
		what, fix, _ := strings.Cut(err.Error(), "\n")
		if none, ok := errors.AsType[*exitError](err); ok && none.code == exitUnreachable {
			d.Skip("admin API", "%s", short(err.Error(), 160))
		} else {
			d.Failed("admin API", strings.TrimSpace(fix), errors.New(what))
		}
		return
	}
	info, err := hub.Info(ctx)
	_, away := errors.AsType[*admin.UnreachableError](err)
	at, _ := announced(d.c.Data) // an error was reported above
	switch {
	case away && d.a.admin == "" && at.Admin == "":
		d.Skip("admin API", "no hub runs on %s", d.c.Data)
	case away:
		d.Failed("admin API", "start the hub with `parley serve`, set listen.admin, or name the hub with --admin", err)
	case errors.Is(err, admin.ErrToken):
		d.Failed("admin API", "set "+tokenEnv+" to a token of that hub; on its machine unset it and set --data", err)
	case err != nil:
		d.Failed("admin API", "see the hub's log", err)
	default:
		d.hub, d.Hub, d.Info = hub, hub, info
		d.OK("admin API", "hub %s at %s", info.Hub, hub.Base)
		if err := hub.Ready(ctx); err != nil {
			d.Failed("hub", "see the hub's log; engine.min_free if the disk is full", err)
		} else {
			d.OK("hub", "takes messages; accepted = %s", info.Promise)
		}
	}
}

// files checks that only the owner can read the data directory's files.
func (d *doctor) files() {
	if d.c.Durability == "memory" {
		d.Skip("files", "a hub in memory has none")
		return
	}
	if _, err := os.Stat(d.c.Data); errors.Is(err, fs.ErrNotExist) {
		d.Failed("data directory", "parley init, or name another with data or --data",
			fmt.Errorf("%s is not there", d.c.Data))
		return
	}
	good := true
	if runtime.GOOS == "windows" {
		good = false
		d.Skip("files", "Windows has no file modes; see who may read them with: icacls %s /T", shellWord(d.c.Data))
	}
	look := func(path, key string, max fs.FileMode, need bool) {
		i, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !need || path == "":
		case err != nil:
			good = d.Failed("files", key, err)
		case disk.OthersMay(i):
			good = d.Failed("files", fmt.Sprintf("chmod %o %s", max, shellWord(path)),
				fmt.Errorf("%s has mode %o: others can read it", path, i.Mode().Perm()))
		}
	}
	look(d.c.Data, "data", 0o700, true)
	look(filepath.Join(d.c.Data, "keys"), "data", 0o700, false)
	look(filepath.Join(d.c.Data, "keys", keyring.FileName), "data", 0o600, false)
	look(filepath.Join(d.c.Data, node.AddressFile), "data", 0o600, false)
	switch tokens, err := admin.ReadTokens(d.c.Data); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		good = d.Failed("admin tokens", "fix "+admin.TokenFile+": a hub does not start with it", err)
	case len(tokens.Clear()) > 0:
		good = d.Failed("admin tokens", "restart the hub: it replaces the secrets by their hashes",
			fmt.Errorf("%s holds secrets in clear: %s", filepath.Join(d.c.Data, admin.TokenFile),
				strings.Join(tokens.Clear(), ", ")))
	}
	look(d.c.Engine.KeyFile, "engine.key_file", 0o600, d.c.Engine.KeyFile != "")
	look(d.c.TLS.Key, "tls.key", 0o600, d.c.TLS.Key != "")
	look(d.c.Alerts.Token, "alerts.token_file", 0o600, d.c.Alerts.Token != "")
	if d.c.TLS.Cert != "" {
		if cert, err := tls.LoadX509KeyPair(d.c.TLS.Cert, d.c.TLS.Key); err != nil {
			good = d.Failed("certificate", "tls.cert and tls.key", err)
		} else if leaf := cert.Leaf; leaf != nil && d.Now().After(leaf.NotAfter) {
			good = d.Failed("certificate", "tls.cert: replace the file; the hub loads it by itself",
				fmt.Errorf("%s ended on %s", d.c.TLS.Cert, stamp(leaf.NotAfter)))
		}
	}
	if good {
		d.OK("files", "only the owner can read %s and the files in it", d.c.Data)
	}
}

func (d *doctor) disk() {
	if d.c.Durability == "memory" || d.c.Engine.URL != "" {
		return
	}
	dir := d.c.Data
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(abs(dir))
	}
	free, total, err := disk.Space(dir)
	if err != nil {
		d.Failed("disk", "data", err)
		return
	}
	if least := d.c.MinFree(total); free < least {
		d.Failed("disk", "free space, or set engine.min_free",
			fmt.Errorf("%s is free; below %s the hub accepts nothing", size(free), size(least)))
	} else {
		d.OK("disk", "%s of %s are free; below %s the hub accepts nothing", size(free), size(total), size(least))
	}
}

func size(n uint64) string {
	f, unit := float64(n), 0
	for f >= 1024 && unit < 4 {
		f, unit = f/1024, unit+1
	}
	return fmt.Sprintf("%.4g %s", f, []string{"B", "KiB", "MiB", "GiB", "TiB"}[unit])
}

// ports checks that the listeners' ports are free, unless the hub runs.
func (d *doctor) ports() {
	if d.hub != nil {
		d.Skip("ports", "the running hub uses them")
		return
	}
	for _, l := range []struct{ key, address string }{{"listen.http", d.c.Listen.HTTP},
		{"listen.admin", d.c.Listen.Admin}} {
		if l.address == "" {
			continue
		}
		s, err := net.Listen("tcp", l.address)
		if err != nil {
			d.Failed("ports", l.key+": choose another address, or stop the program that uses this one", err)
			continue
		}
		s.Close()
		d.OK("ports", "%s %s is free", l.key, l.address)
	}
}

// listeners checks that the running hub's listeners take connections.
func (d *doctor) listeners(ctx context.Context) {
	if d.hub == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.Info.Addresses)) {
		address := d.Info.Addresses[name]
		if name == "admin" { // it has answered already
			continue
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			d.Failed("listener "+name, "see the hub's log; does a firewall lie between?", err)
			continue
		}
		conn.Close()
		d.OK("listener "+name, "takes connections at %s", address)
	}
}

// guests shows the budget of guests, and warns of settings that expose the hub to
// them.
func (d *doctor) guests() {
	for _, w := range d.c.Exposures() {
		d.Warn("exposure", "", "%s", w)
	}
	if d.hub == nil || d.Info.Guests == nil {
		d.Skip("guests", "no hub runs; `parley config describe guests` lists the limits")
		return
	}
	g := d.Info.Guests
	d.OK("guests", "use %s of %s of memory, %d of %d registrations, %d of %d mailboxes, %d of %d connections; "+
		"%s may be recorded now, %s a day; %d refused, %d delayed since the start",
		size(uint64(g.Memory)), size(uint64(g.MaxMemory)), g.Registrations, g.MaxRegistrations, g.Mailboxes,
		g.MaxMailboxes,
		g.Connections, g.MaxConnections, size(uint64(g.Disk)), size(uint64(g.MaxDisk)), g.Refused, g.Delayed)
	d.OK("connections", "%d of %d are open; one address may use %g of the guests' share", g.AllConnections,
		g.MaxAllConnections, g.Share)
}

// strictest gives the protocol that forgives the least difference of clocks.
func (d *doctor) strictest() (name string, limit time.Duration) {
	for _, p := range node.Protocols {
		if p.Skew != nil && (name == "" || p.Skew(&d.c) < limit) {
			name, limit = p.Name, p.Skew(&d.c)
		}
	}
	return name, limit
}

// clock checks this machine's clock; [doctor.skew] compares it with an agent's.
func (d *doctor) clock(start, wall time.Time) {
	end := d.Now()
	// With the monotonic reading stripped, Sub is the wall clock's own.
	if drift := end.Round(0).Sub(wall) - end.Sub(start); drift.Abs() > time.Second {
		d.Failed("clock", "let only one time service set the clock, in small steps",
			fmt.Errorf("the clock was set by %s while this ran", drift.Round(time.Millisecond)))
		return
	}
	if exe, err := os.Executable(); err == nil {
		if i, err := os.Stat(exe); err == nil && i.ModTime().After(end.Add(24*time.Hour)) {
			d.Failed("clock", "set the clock: timedatectl set-ntp true",
				fmt.Errorf("it is %s here, earlier than the build of this program", stamp(end)))
			return
		}
	}
	if d.hub != nil {
		name, limit := d.strictest()
		if skew := d.Info.Now.Sub(start); skew.Abs() > limit {
			d.Failed("clock", "set the clock of the hub's machine or of this one: timedatectl set-ntp true",
				fmt.Errorf("the hub's clock is off by %s; %s forgives %g s", skew.Round(time.Second), name, limit.Seconds()))
			return
		}
	}
	d.OK("clock", "%s, steady", stamp(end))
}
