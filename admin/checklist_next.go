package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal/index"
)

// refusalsEvery is how often a waiting reader of a checklist looks for new refusals.
const refusalsEvery = time.Second

// NextChecklist is Checklist. It waits until the list is no longer of the version, at most so long.
func (a *Admin) NextChecklist(ctx context.Context, by Actor, name, version string, wait time.Duration) (Checklist,
	error) {
	leave, err := a.enter()
	if err != nil {
		return Checklist{}, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, min(max(wait, 0), maxWait))
	defer cancel()
	again := time.NewTicker(refusalsEvery)
	defer again.Stop()
	for {
		changed := a.ChecklistsChanged()
		v, err := a.Checklist(by, name)
		if err != nil || v.Version != version {
			return v, err
		}
		select {
		case <-changed:
		case <-again.C:
		case <-ctx.Done():
			return v, nil
		case <-a.ended:
			return v, nil
		}
	}
}

func getChecklist(a *Admin, c *call) (any, error) {
	var version string
	var wait time.Duration
	if err := c.params(param{"version", &version}, param{"wait", &wait}); err != nil {
		return nil, err
	}
	if wait <= 0 {
		return a.Checklist(c.by, c.r.PathValue("name"))
	}
	return a.NextChecklist(c.r.Context(), c.by, c.r.PathValue("name"), version, wait)
}

// digest is of everything that can change in a checklist.
func (v *Checklist) digest() string {
	b, err := json.Marshal([]any{v.State, v.Begun, v.Steps})
	if err != nil { // steps are texts and times
		panic(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// ResumeChecklists takes up the checklists on which the hub worked in the last hour, before it was restarted. The audit
// trail names the operator, the agent and the time; the index has the agent's messages since then. It is called once,
// when the hub runs.
func (a *Admin) ResumeChecklists() {
	var list []*checklist
	since := a.c.Now().Add(-checklistHours)
	for _, e := range a.audit.list(AuditFilter{Action: connected, Since: since}) { // the newest first
		entry, ok := a.c.Hub.Directory().Agent(e.Target)
		known := slices.ContainsFunc(list, func(l *checklist) bool { return l.agent == e.Target })
		if !ok || known || e.Outcome != "done" || e.Hub != a.c.Hub.ID() || len(list) == maxChecklists {
			continue
		}
		l := &checklist{agent: e.Target, begun: e.Time, protocol: ownProtocol(entry)}
		list = append(list, l)
		a.work(context.Background(), Actor{Name: e.Actor, Role: Operate}, l)
	}
	if len(list) > 0 {
		go a.rememberAll(list)
	}
}

// rememberAll notes what the agents of checklists said before the hub was restarted.
func (a *Admin) rememberAll(list []*checklist) {
	ctx, cancel := context.WithTimeout(context.Background(), checklistHours)
	defer cancel()
	go func() {
		select {
		case <-a.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := a.c.Index.Wait(ctx)
	for _, l := range list {
		if err == nil {
			err = a.remember(ctx, l)
		}
	}
	if err != nil && ctx.Err() == nil {
		a.c.Logger.Warn("the index does not tell what agents said that are being connected", "error", err)
	}
}

func ownProtocol(e *directory.Entry) string {
	for _, i := range e.Identities {
		if !i.StandIn && i.Protocol != Inbox(e.Name).Protocol {
			return i.Protocol
		}
	}
	return readsInbox
}

// remember notes the first proved message from an agent, and its first answer since the list was begun.
func (a *Admin) remember(ctx context.Context, l *checklist) error {
	var first *index.Message
	for _, proof := range []index.Proof{index.ProvedSession, index.ProvedSigned} {
		m, err := a.oldest(ctx, index.Filter{From: l.agent, Proof: proof})
		if err != nil {
			return err
		}
		if m != nil && (first == nil || m.Time.Before(first.Time)) {
			first = m
		}
	}
	answer, err := a.oldest(ctx, index.Filter{From: l.agent, Kind: parley.Response, Since: l.begun})
	a.checks.change(func() {
		if first != nil {
			l.heard = Seen{Time: first.Time, Message: first.ID, Protocol: first.Protocol, Assurance: first.Assurance}
		}
		if answer != nil {
			l.answered = answer.Time
		}
	})
	return err
}

// oldest is the first message that a filter chooses, nil for none.
func (a *Admin) oldest(ctx context.Context, f index.Filter) (*index.Message, error) {
	f.Oldest, f.Limit = true, 1
	page, err := a.c.Index.Messages(ctx, f)
	if err != nil || len(page.Messages) == 0 {
		return nil, err
	}
	return &page.Messages[0], nil
}
