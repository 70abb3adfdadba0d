package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
)

// The checks of `doctor AGENT`. The running hub says which ways there are to the agent, and what it sees of them
// ([hub.Way]); the doctor checks the network to the addresses that the hub calls, and the messages.

// Wait bounds the check of one address.
const Wait = 20 * time.Second

// A WayPoint is an address that the hub calls to reach an agent.
type WayPoint struct {
	Name, ID string // of the agent; its id in the protocol
	Address  string
	Setting  string // that holds the address
}

// Agent checks the ways to an agent, and the traffic with it.
func (d *Doctor) Agent(ctx context.Context, name string) {
	v, err := d.Hub.Agent(ctx, name, 0)
	if err != nil {
		d.Failed("agent", "parley agents; parley agents add "+name, err)
		return
	}
	ways, err := d.Hub.Ways(ctx, name)
	if err != nil {
		d.Failed("agent", "see the hub's log", err)
		return
	}
	if v.Paused {
		d.Failed("agent", "parley agents resume "+name, fmt.Errorf("%s is paused: messages wait", name))
	}
	for _, w := range ways {
		d.Way(ctx, name, w)
	}
	if len(ways) == 0 {
		d.Failed("agent", "parley agents link "+name, fmt.Errorf("%s has no identity by which the hub reaches it", name))
	}
	d.traffic(ctx, v)
}

// Way reports what the hub sees of a way, and checks the addresses on it.
func (d *Doctor) Way(ctx context.Context, name string, w hub.Way) {
	who := name
	if w.ID != name { // the id of handlers and inboxes is the name
		who += " (" + strings.TrimSpace(w.Protocol+" "+w.ID) + ")"
	}
	d.OK("agent", "%s", strings.TrimSuffix(who+": "+w.How, ": "))
	for _, f := range w.Findings {
		if enable := d.Enable(w.Protocol); f.Check == "protocol" && enable != "" {
			f.Fix = enable
		}
		d.note(f)
	}
	for _, address := range w.Addresses {
		at := WayPoint{Name: name, ID: w.ID, Address: address, Setting: "agents." + name + "." + d.Setting(w.Protocol)}
		ctx, cancel := context.WithTimeout(ctx, Wait)
		if check := d.Address[w.Protocol]; check != nil {
			check(ctx, at)
		} else {
			d.Reach(ctx, at.Setting, address, d.Guard)
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
func (d *Doctor) traffic(ctx context.Context, v admin.Agent) {
	if v.Seen == nil {
		d.Skip("last heard", "no message from it since the hub started")
	} else {
		d.OK("last heard", "%s by %s, %s; %s since the hub started", stamp(v.Seen.Time), v.Seen.Protocol,
			v.Seen.Assurance, plural(int(v.Seen.Count), "message", "messages"))
		d.sentClock(ctx, v.Seen)
	}
	if w := v.Waiting; w != nil {
		switch late := d.Info.Now.Sub(w.Oldest); {
		case w.Open == 0:
			d.OK("waiting", "no message waits for it")
		case late > waitingSince:
			d.Warn("waiting", "the checks above say why", "%s, the oldest since %s",
				plural(w.Open, "message waits", "messages wait"), stamp(w.Oldest))
		default:
			d.OK("waiting", "%s, the oldest since %s", plural(w.Open, "message waits", "messages wait"), stamp(w.Oldest))
		}
		if w.Dead > 0 {
			d.dead(ctx, v.Name, w.Dead)
		}
	}
	d.refused(ctx, v)
}

func (d *Doctor) dead(ctx context.Context, name string, n int) {
	list, err := d.Hub.Dead(ctx, admin.DeadFilter{To: name})
	if err != nil || len(list) == 0 {
		return // they were retried meanwhile
	}
	last := slices.MaxFunc(list, func(a, b admin.DeadLetter) int { return a.Changed.Compare(b.Changed) })
	d.Warn("dead letters", "parley dead --to "+name+"; then parley dead retry --to "+name,
		"%s; the last at %s: %s", plural(n, "message was given up", "messages were given up"), stamp(last.Changed),
		last.Reason.Text)
}

// refused tells of refused messages that claim to be an agent's: of a sender with a wrong key or clock the hub
// records nothing else.
func (d *Doctor) refused(ctx context.Context, v admin.Agent) {
	all, err := d.Hub.Refused(ctx, refusalsRead)
	if err != nil {
		d.Skip("refused", "the refusals cannot be read: %s", err)
		return
	}
	n := 0
	var last admin.Refusal // the list has the newest first
	for _, r := range all {
		claims := r.Claim != "" && (r.Claim == v.Name || slices.ContainsFunc(v.Identities, func(i admin.Identity) bool {
			return i.Protocol == r.Protocol && i.ID == r.Claim
		}))
		if !claims || d.Info.Now.Sub(r.Time) > refusalsSince {
			continue
		}
		if n == 0 {
			last = r
		}
		n++
	}
	if n == 0 {
		d.OK("refused", "no message that claims to be from it, in the last hour")
		return
	}
	d.Warn("refused", "parley explain "+last.Ref, "%s to be from it in the last hour; the last: %s at %s: %s",
		plural(n, "refused message claims", "refused messages claim"), last.Code, last.Step, last.Text)
}

// sentClock compares the time that an agent wrote into its last message with the time of its arrival. An agent whose
// own clock was asked already needs no other check.
func (d *Doctor) sentClock(ctx context.Context, seen *admin.Seen) {
	limit := d.Skew(seen.Protocol)
	if limit == 0 || slices.ContainsFunc(d.Steps, func(s admin.DoctorStep) bool { return s.Check == "clock skew" }) {
		return
	}
	m, err := d.Hub.Message(ctx, seen.Message.String(), false)
	if err != nil || m.Content == nil || m.Content.Sent.IsZero() {
		return
	}
	d.CompareClock(seen.Protocol, limit, m.Content.Sent, m.Content.Received, m.Content.Received)
}

// CompareClock compares an agent's clock with this machine's: it showed at, at a time between from and to. What it shows has
// whole seconds. The protocol refuses messages when the clocks differ by limit.
func (d *Doctor) CompareClock(protocol string, limit time.Duration, at, from, to time.Time) {
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
		d.Failed("clock skew", fix, errors.New(differs))
	case off.Abs() >= limit/2:
		d.Warn("clock skew", fix, "%s", differs)
	default:
		d.OK("clock skew", "less than %g s; %s messages are refused from %g s on", limit.Seconds()/2, protocol,
			limit.Seconds())
	}
}

// CompareDate checks the clock of a peer by the Date header of its answer to a request that began at sent.
func (d *Doctor) CompareDate(protocol string, limit time.Duration, resp *http.Response, sent time.Time) {
	at, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		d.Skip("clock skew", "the peer does not say what time it is")
		return
	}
	d.CompareClock(protocol, limit, at, sent, d.Now())
}
