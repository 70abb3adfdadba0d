package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/node"
)

// The checks of `doctor AGENT`. The running hub says which ways there are to the agent, and what it sees of them
// ([hub.Way]); the doctor checks the network to the addresses that the hub calls, and the messages.

// doctorWait bounds the check of one address.
const doctorWait = 20 * time.Second

// A wayPoint is an address that the hub calls to reach an agent.
type wayPoint struct {
	name, id string // of the agent; its id in the protocol
	address  string
	setting  string // that holds the address
}

// agent checks the ways to an agent, and the traffic with it.
func (d *doctor) agent(ctx context.Context, ref string) {
	name := d.named(ctx, ref)
	if d.hub == nil {
		d.configured(ctx, name)
		return
	}
	v, err := d.hub.Agent(ctx, name, 0)
	if err != nil {
		d.failed("agent", "parley agents; parley agents add "+name, err)
		return
	}
	ways, err := d.hub.Ways(ctx, name)
	if err != nil {
		d.failed("agent", "see the hub's log", err)
		return
	}
	if v.Paused {
		d.failed("agent", "parley agents resume "+name, fmt.Errorf("%s is paused: messages wait", name))
	}
	for _, w := range ways {
		d.way(ctx, name, w)
	}
	if len(ways) == 0 {
		d.failed("agent", "parley agents link "+name, fmt.Errorf("%s has no identity by which the hub reaches it", name))
	}
	d.traffic(ctx, v)
}

// configured checks an agent of the configuration while no hub runs.
func (d *doctor) configured(ctx context.Context, name string) {
	a, known := d.c.Agents[name]
	if !known {
		d.failed("agent", "start the hub, or name its configuration with --config",
			fmt.Errorf("no hub answers, and no agent %q is in the configuration", name))
		return
	}
	for _, p := range protocols {
		if p.way == nil {
			continue
		}
		if w := p.way(&d.c, &a); w != nil {
			w.Protocol = p.name
			d.way(ctx, name, *w)
		}
	}
	d.skip("connection", "no hub runs, so nobody knows who is connected, and which messages wait")
}

// way reports what the hub sees of a way, and checks the addresses on it.
func (d *doctor) way(ctx context.Context, name string, w hub.Way) {
	p := protocolNamed(w.Protocol)
	if p == nil {
		p = &protocol{}
	}
	who := name
	if w.ID != name { // the id of handlers and inboxes is the name
		who += " (" + strings.TrimSpace(w.Protocol+" "+w.ID) + ")"
	}
	d.ok("agent", "%s", strings.TrimSuffix(who+": "+w.How, ": "))
	for _, f := range w.Findings {
		if f.Check == "protocol" && p.enable != "" {
			f.Fix = p.enable
		}
		d.out = append(d.out, f)
	}
	for _, address := range w.Addresses {
		at := wayPoint{name: name, id: w.ID, address: address, setting: "agents." + name + "." + p.address}
		ctx, cancel := context.WithTimeout(ctx, doctorWait)
		if p.checkAddress != nil {
			p.checkAddress(d, ctx, at)
		} else {
			d.reach(ctx, at.setting, address, d.guard)
		}
		cancel()
	}
}

// Bounds of what the doctor tells of the traffic with an agent.
const (
	refusalsSince = time.Hour
	refusalsRead  = 1000
	waitingSince  = time.Minute // messages that wait for longer are worth a warning
)

// traffic checks what came from an agent, and what waits for it.
func (d *doctor) traffic(ctx context.Context, v admin.Agent) {
	if v.Seen == nil {
		d.skip("last heard", "no message from it since the hub started")
	} else {
		d.ok("last heard", "%s by %s, %s; %s since the hub started", stamp(v.Seen.Time), v.Seen.Protocol,
			v.Seen.Assurance, plural(int(v.Seen.Count), "message", "messages"))
		d.sentClock(ctx, v.Seen)
	}
	if w := v.Waiting; w != nil {
		switch late := d.info.Now.Sub(w.Oldest); {
		case w.Open == 0:
			d.ok("waiting", "no message waits for it")
		case late > waitingSince:
			d.warn("waiting", "the checks above say why", "%s, the oldest since %s",
				plural(w.Open, "message waits", "messages wait"), stamp(w.Oldest))
		default:
			d.ok("waiting", "%s, the oldest since %s", plural(w.Open, "message waits", "messages wait"), stamp(w.Oldest))
		}
		if w.Dead > 0 {
			d.dead(ctx, v.Name, w.Dead)
		}
	}
	d.refused(ctx, v)
}

func (d *doctor) dead(ctx context.Context, name string, n int) {
	list, err := d.hub.Dead(ctx, admin.DeadFilter{To: name})
	if err != nil || len(list) == 0 {
		return // they were retried meanwhile
	}
	last := slices.MaxFunc(list, func(a, b admin.DeadLetter) int { return a.Changed.Compare(b.Changed) })
	d.warn("dead letters", "parley dead --to "+name+"; then parley dead retry --to "+name,
		"%s; the last at %s: %s", plural(n, "message was given up", "messages were given up"), stamp(last.Changed),
		last.Reason.Text)
}

// refused tells of refused messages that claim to be an agent's: of a sender with a wrong key or clock the hub
// records nothing else.
func (d *doctor) refused(ctx context.Context, v admin.Agent) {
	all, err := d.hub.Refused(ctx, refusalsRead)
	if err != nil {
		d.skip("refused", "the refusals cannot be read: %s", err)
		return
	}
	n := 0
	var last admin.Refusal // the list has the newest first
	for _, r := range all {
		claims := r.Claim != "" && (r.Claim == v.Name || slices.ContainsFunc(v.Identities, func(i admin.Identity) bool {
			return i.Protocol == r.Protocol && i.ID == r.Claim
		}))
		if !claims || d.info.Now.Sub(r.Time) > refusalsSince {
			continue
		}
		if n == 0 {
			last = r
		}
		n++
	}
	if n == 0 {
		d.ok("refused", "no message that claims to be from it, in the last hour")
		return
	}
	d.warn("refused", "parley explain "+last.Ref, "%s to be from it in the last hour; the last: %s at %s: %s",
		plural(n, "refused message claims", "refused messages claim"), last.Code, last.Step, last.Text)
}

// sentClock compares the time that an agent wrote into its last message with the time of its arrival. An agent whose
// own clock was asked already needs no other check.
func (d *doctor) sentClock(ctx context.Context, seen *admin.Seen) {
	p := protocolNamed(seen.Protocol)
	if p == nil || p.skew == nil || slices.ContainsFunc(d.out, func(f finding) bool { return f.Check == "clock skew" }) {
		return
	}
	m, err := d.hub.Message(ctx, seen.Message.String(), false)
	if err != nil || m.Content == nil || m.Content.Sent.IsZero() {
		return
	}
	d.skew(p.name, p.skew(&d.c), m.Content.Sent, m.Content.Received, m.Content.Received)
}

// skew compares an agent's clock with this machine's: it showed at, at a time between from and to. What it shows has
// whole seconds. The protocol refuses messages when the clocks differ by limit.
func (d *doctor) skew(protocol string, limit time.Duration, at, from, to time.Time) {
	var off time.Duration
	switch {
	case at.After(to):
		off = at.Sub(to)
	case at.Add(time.Second).Before(from):
		off = at.Add(time.Second).Sub(from)
	}
	const fix = "set the clock of this machine or of the agent's: timedatectl set-ntp true"
	differs := fmt.Sprintf("the agent's clock is %s %s; %s messages are refused from %g s on",
		off.Abs().Round(time.Second), map[bool]string{true: "ahead", false: "behind"}[off > 0], protocol, limit.Seconds())
	switch {
	case off.Abs() >= limit:
		d.failed("clock skew", fix, errors.New(differs))
	case off.Abs() >= limit/2:
		d.warn("clock skew", fix, "%s", differs)
	default:
		d.ok("clock skew", "less than %g s; %s messages are refused from %g s on", limit.Seconds()/2, protocol,
			limit.Seconds())
	}
}

// dateSkew checks the clock of a peer by the Date header of its answer to a request that began at sent.
func (d *doctor) dateSkew(protocol string, limit time.Duration, resp *http.Response, sent time.Time) {
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		d.skip("clock skew", "the peer does not say what time it is")
		return
	}
	d.skew(protocol, limit, at, sent, d.now())
}

// named gives the directory name of an agent, which ref names by name or by its id in a
// protocol. It returns an unknown or ambiguous ref unchanged: find reports it.
func (d *doctor) named(ctx context.Context, ref string) string {
	if _, ok := d.c.Agents[ref]; ok {
		return ref
	}
	if d.hub != nil {
		if v, err := d.hub.Agent(ctx, ref, 0); err == nil {
			return v.Name
		}
		return ref
	}
	var names []string
	for name, a := range d.c.Agents {
		if slices.ContainsFunc(node.Protocols, func(p *node.Protocol) bool {
			return p.AgentID != nil && p.AgentID(&a) == ref
		}) {
			names = append(names, name)
		}
	}
	if len(names) == 1 {
		return names[0]
	}
	return ref
}

// defaultPorts are the ports of URLs without one.
var defaultPorts = map[string]string{"http": "80", "https": "443", "nats": "4222"}

// reach checks the way to a URL step by step: name, address, connection, certificate. A guard of nil does not check the
// address. It gives the URL, or nil if a step failed.
func (d *doctor) reach(ctx context.Context, setting, base string, guard *netguard.Guard) *url.URL {
	ends := func(check, fix string, err error) *url.URL {
		d.failed(check, fix, err)
		return nil
	}
	u, err := url.Parse(base)
	if err != nil || u.Hostname() == "" {
		return ends("URL", setting, fmt.Errorf("%q is no URL", base))
	}
	port := cmp.Or(u.Port(), defaultPorts[u.Scheme])
	if port == "" {
		return ends("URL", setting, fmt.Errorf("%q names no port", base))
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return ends("DNS", setting+", or the name server of this machine", err)
	}
	d.ok("DNS", "%s is %s", u.Hostname(), joinAddrs(addrs))
	if guard != nil {
		for _, ip := range addrs {
			if err := guard.CheckAddr(ip.Unmap()); err != nil {
				return ends("address", fmt.Sprintf("[network] allow = [%q]", prefixFor(ip)), err)
			}
		}
		d.ok("address", "the hub may call it")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return ends("TCP", setting+"; is it running, and does a firewall lie between?", err)
	}
	defer conn.Close()
	d.ok("TCP", "%s", conn.RemoteAddr())
	if u.Scheme == "https" || u.Scheme == "tls" {
		t := tls.Client(conn, &tls.Config{ServerName: u.Hostname(), RootCAs: d.roots})
		if err := t.HandshakeContext(ctx); err != nil {
			return ends("TLS", tlsFix(err, setting), err)
		}
		leaf := t.ConnectionState().PeerCertificates[0]
		d.ok("TLS", "%s, until %s", cmp.Or(leaf.Subject.CommonName, strings.Join(leaf.DNSNames, ", ")), stamp(leaf.NotAfter))
	}
	return u
}

// get sends a request without a body to a URL that reach has checked, and follows no redirect.
func (d *doctor) get(ctx context.Context, method, at string, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, at, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	client := directHTTP()
	client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: d.roots}, DisableKeepAlives: true}
	return client.Do(r)
}

func tlsFix(err error, what string) string {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "tls.ca: add the authority's certificate"
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the URL's host must be one that the certificate names"
	}
	if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
		return "renew the certificate, or set the clock"
	}
	return "the certificate of " + what
}

func joinAddrs(list []netip.Addr) string {
	var s []string
	for _, a := range list {
		s = append(s, a.Unmap().String())
	}
	slices.Sort(s)
	return strings.Join(slices.Compact(s), ", ")
}

func prefixFor(a netip.Addr) string {
	a = a.Unmap()
	if a.IsLoopback() {
		return "loopback"
	}
	return netip.PrefixFrom(a, a.BitLen()).String()
}
