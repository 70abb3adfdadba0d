package admin

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/readable"
	"github.com/parley-hub/parley/journal"
)

// Bounds of checklists.
const (
	maxChecklists  = 32 // that the hub works on at once, and as many that have ended
	checklistHours = time.Hour
	checklistEvery = 15 * time.Second // between two examinations, until they find no fault
)

// checklists are those of the agents that operators connect. They are in memory. After a restart those of the last hour
// are made again of the audit trail and the index: see [Admin.ResumeChecklists].
type checklists struct {
	every time.Duration // checklistEvery, but for tests

	mu      sync.Mutex
	of      map[string]*checklist // by agent
	changed chan struct{}         // closed and replaced when one changes
}

// A checklist is what the hub noted for one agent.
type checklist struct {
	agent, protocol string
	begun, ends     time.Time
	at              time.Time // of the last examination
	doctor          []DoctorStep
	heard           Seen // the first proved message from the agent
	answered        time.Time
	again           chan struct{} // the agent was heard or answered for the first time: look at once
	stop            context.CancelFunc
}

// Connect adds an agent, as [Admin.AddAgent] does, and works on its checklist for at most an hour.
func (a *Admin) Connect(ctx context.Context, by Actor, n NewAgent) (Checklist, error) {
	if err := by.may(Administer); err != nil {
		return Checklist{}, err
	}
	c := &a.checks
	c.mu.Lock()
	full := c.of[n.Name] == nil && c.working(a.c.Now()) >= maxChecklists
	c.mu.Unlock()
	if full {
		return Checklist{}, parley.Fail(parley.Unavailable, nil, "the hub connects %d agents already, the limit; wait until "+
			"one of them has ended", maxChecklists)
	}
	v, err := a.addAgent(ctx, by, n, connected)
	if err != nil {
		return Checklist{}, err
	}
	l := &checklist{agent: v.Name, begun: a.c.Now(), protocol: readsInbox}
	if len(n.Identities) > 0 {
		l.protocol = n.Identities[0].Protocol
	}
	a.work(context.WithoutCancel(ctx), by, l)
	return a.Checklist(by, v.Name)
}

// readsInbox stands for the protocol of an agent that reads an inbox at the hub, and has no other identity.
const readsInbox = "inbox"

// connected is the action of [Admin.Connect] in the audit trail.
const connected = "agent.add.connect"

// work begins with a checklist, in place of an older one of the agent.
func (a *Admin) work(ctx context.Context, by Actor, l *checklist) {
	c, now := &a.checks, a.c.Now()
	l.ends, l.again = l.begun.Add(checklistHours), make(chan struct{}, 1)
	ctx, l.stop = context.WithTimeout(ctx, l.ends.Sub(now))
	c.mu.Lock()
	if old := c.of[l.agent]; old != nil {
		old.stop()
	}
	c.of[l.agent] = l
	c.trim(now)
	c.mu.Unlock()
	go a.examine(ctx, by, l)
	go func() {
		select {
		case <-a.ended: // the doctor must not look at a hub that stops
			l.stop()
		case <-ctx.Done():
		}
	}()
}

// over reports whether nothing is left to do, or the hub waits no longer.
func (l *checklist) over(now time.Time) bool {
	return !now.Before(l.ends) || !l.answered.IsZero() && !l.at.IsZero() && !l.fails()
}

// fails reports whether the last examination found a fault.
func (l *checklist) fails() bool {
	return slices.ContainsFunc(l.doctor, func(s DoctorStep) bool { return s.State == hub.FindingFailed })
}

// working counts the checklists that have not ended.
func (c *checklists) working(now time.Time) (n int) {
	for _, l := range c.of {
		if !l.over(now) {
			n++
		}
	}
	return n
}

// trim forgets the oldest checklists beyond twice the limit: those that have ended.
func (c *checklists) trim(now time.Time) {
	old := slices.SortedFunc(maps.Values(c.of), func(a, b *checklist) int { return a.begun.Compare(b.begun) })
	for _, l := range old[:max(0, len(old)-2*maxChecklists)] {
		if l.over(now) {
			l.stop()
			delete(c.of, l.agent)
		}
	}
}

// examine lets the doctor look at an agent until nothing fails, the hour is over, or the hub ends.
func (a *Admin) examine(ctx context.Context, by Actor, l *checklist) {
	defer l.stop()
	for a.c.Workbench.Doctor != nil {
		look, cancel := context.WithTimeout(ctx, maxDoctor)
		steps := a.c.Workbench.Doctor(look, by, l.agent)
		cancel()
		if ctx.Err() != nil {
			return
		}
		a.checks.change(func() { l.doctor, l.at = steps, a.c.Now() })
		if !slices.ContainsFunc(steps, func(s DoctorStep) bool { return s.State == hub.FindingFailed }) {
			return
		}
		select {
		case <-time.After(a.checks.every):
		case <-l.again:
		case <-ctx.Done():
			return
		}
	}
}

// change changes a checklist, and tells those who watch.
func (c *checklists) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

// recorded notes the first answer of an agent, and tells those who watch of its messages.
func (c *checklists) recorded(r *journal.Record) {
	m := r.Message
	c.mu.Lock()
	l := c.of[m.From]
	c.mu.Unlock()
	if l != nil {
		c.change(func() {
			if proof := m.Origin.Verdict.Assurance; proof > parley.Unsigned && l.heard.Time.IsZero() {
				l.heard = Seen{Time: r.Time, Message: m.ID, Protocol: m.Origin.Protocol, Assurance: proof}
				l.look()
			}
			if m.Kind == parley.Response && l.answered.IsZero() {
				l.answered = r.Time
				l.look()
			}
		})
	}
}

// look has the doctor look at once.
func (l *checklist) look() {
	select {
	case l.again <- struct{}{}:
	default:
	}
}

// removed forgets the checklist of an agent that is gone.
func (c *checklists) removed(name string) {
	c.mu.Lock()
	l := c.of[name]
	c.mu.Unlock()
	if l != nil {
		l.stop()
		c.change(func() { delete(c.of, name) })
	}
}

// ChecklistsChanged is closed when a checklist has changed. Refusals are not told: read them anew now and then.
func (a *Admin) ChecklistsChanged() <-chan struct{} {
	a.checks.mu.Lock()
	defer a.checks.mu.Unlock()
	return a.checks.changed
}

// Checklists lists the checklists, the newest first.
func (a *Admin) Checklists(by Actor) ([]Checklist, error) {
	if err := by.may(Observe); err != nil {
		return nil, err
	}
	a.checks.mu.Lock()
	names := slices.Collect(maps.Keys(a.checks.of))
	a.checks.mu.Unlock()
	out := []Checklist{}
	for _, name := range names {
		if v, err := a.Checklist(by, name); err == nil { // else it is gone since
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b Checklist) int {
		return cmp.Or(b.Begun.Compare(a.Begun), strings.Compare(a.Agent, b.Agent))
	})
	return out, nil
}

// Checklist says how far an agent is connected.
func (a *Admin) Checklist(by Actor, name string) (Checklist, error) {
	if err := cmp.Or(by.may(Observe), a.resolveNames(&name)); err != nil {
		return Checklist{}, err
	}
	a.checks.mu.Lock()
	l := a.checks.of[name]
	if l != nil {
		l = new(*l) // a copy: the directory and the rest of the Admin have locks of their own
	}
	a.checks.mu.Unlock()
	e, ok := a.c.Hub.Directory().Agent(name)
	if l == nil || !ok {
		return Checklist{}, parley.Refuse(notFound, "the hub connects no agent %.128q; checklists end after "+
			"an hour", name)
	}
	out := Checklist{Agent: name, Protocol: l.protocol, Begun: l.begun, Ends: l.ends}
	out.Steps = []ConnectStep{{Step: StepProtocol, State: StepDone, Time: l.begun, Detail: l.protocol},
		{Step: StepAddress, State: StepDone, Time: l.begun, Detail: addressWords(e)}}
	for _, part := range connectParts {
		out.Steps = append(out.Steps, stepOf(part.name, part.checks, l))
	}
	out.Steps = append(out.Steps, a.firstMessage(l, e), firstAnswer(l))
	out.conclude(a.c.Now())
	out.Version = out.digest()
	v := a.view(by, e)
	out.Paste = a.paste(name, v.Identities)
	return out, nil
}

// addressWords are where an agent is, and its name.
func addressWords(e *directory.Entry) string {
	for _, i := range e.Identities {
		if !i.StandIn {
			return cmp.Or(i.URL, i.ID) + " as " + e.Name
		}
	}
	return e.Name
}

// connectParts are the checks of the doctor that make a step.
var connectParts = []struct {
	name   ConnectStepName
	checks []string
}{
	{StepReached, []string{"URL", "DNS", "address", "TCP", "TLS", "clock skew", "connection", "protocol", "registration",
		"mailbox"}},
	{StepCard, []string{"card", "key", "endpoint", "interface", "extension", "tools", "credentials", "token", "user"}},
	{StepHubKey, []string{"signed round trip"}},
}

// stepOf makes a step of what the doctor found.
func stepOf(name ConnectStepName, checks []string, l *checklist) ConnectStep {
	s := ConnectStep{Step: name, State: StepWaiting}
	if l.at.IsZero() {
		return s
	}
	s.State, s.Time = StepNotNeeded, l.at
	var details []string
	for _, f := range l.doctor {
		if !slices.Contains(checks, f.Check) {
			continue
		}
		s.Micros += f.Micros
		switch f.State {
		case hub.FindingFailed:
			s.State, s.Detail, s.Fix = StepFailed, f.Check+": "+f.Detail, f.Fix
			return s
		case hub.FindingOK:
			s.State = StepDone
		case hub.FindingWarning:
			s.State, s.Fix = StepDone, cmp.Or(s.Fix, f.Fix)
		}
		details = append(details, f.Detail)
	}
	s.Detail = strings.Join(details, "; ")
	if s.State == StepNotNeeded && s.Detail == "" {
		s.Detail = "it does not apply to this agent"
		if l.fails() {
			s.State, s.Detail = StepWaiting, "the step before failed"
		}
	}
	return s
}

// firstMessage is the step of the first proved message from an agent. Messages that were refused count: they say why
// none came.
func (a *Admin) firstMessage(l *checklist, e *directory.Entry) ConnectStep {
	s := ConnectStep{Step: StepFirstMessage, State: StepWaiting,
		Detail: "nothing came from it at all: it does not call this hub; does it know this address?"}
	if l.protocol == readsInbox {
		s.Detail = "it has sent nothing yet; it reads and answers with parley listen " + e.Name + ", or by the API"
	}
	a.mu.Lock()
	seen, ok := a.seen[e.Name]
	a.mu.Unlock()
	if !l.heard.Time.IsZero() {
		seen, ok = l.heard, true
	}
	if ok && seen.Assurance > parley.Unsigned {
		s.State, s.Time = StepDone, seen.Time
		s.Detail = seen.Assurance.String() + " by " + seen.Protocol
		return s
	}
	if ok {
		s.Detail = "its last message, by " + seen.Protocol + ", was not signed"
	}
	for _, r := range a.c.Hub.Refused(1000) { // the newest first
		if r.Time.Before(l.begun) || !claimsToBe(r.Protocol, r.Claim, e) {
			continue
		}
		s.State, s.Time, s.Ref, s.Fix = StepFailed, r.Time, r.Ref, a.viewRefusal(Actor{Role: Read}, r).Advice
		s.Detail = "something came and was refused at " + r.Step + ": " + string(r.Code)
		break
	}
	return s
}

// claimsToBe reports whether a sender claims to be an agent.
func claimsToBe(protocol, claim string, e *directory.Entry) bool {
	return claim != "" && (claim == e.Name || slices.ContainsFunc(e.Identities, func(i parley.Identity) bool {
		return i.Protocol == protocol && i.ID == claim && !i.StandIn
	}))
}

// firstAnswer is the step of the first answer of an agent.
func firstAnswer(l *checklist) ConnectStep {
	s := ConnectStep{Step: StepAnswered, State: StepWaiting, Detail: "send it a message: parley send --to " + l.agent}
	if !l.answered.IsZero() {
		s.State, s.Time, s.Detail = StepDone, l.answered, ""
	}
	return s
}

// conclude gives the state of the whole list.
func (v *Checklist) conclude(now time.Time) {
	v.State = StepDone
	for i := range v.Steps {
		s := &v.Steps[i]
		if s.State == StepWaiting && !now.Before(v.Ends) {
			s.State, s.Detail = StepGaveUp, readable.Short("the hub waits no longer: "+s.Detail, 400)
		}
		if s.State == StepFailed || s.State != StepDone && s.State != StepNotNeeded && v.State == StepDone {
			v.State = s.State
		}
	}
}
