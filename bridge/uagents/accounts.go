package uagents

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// Bounds for accounts. The operator issues their tokens, so each account has its own
// budget, apart from that of guests.
const (
	maxProfiles     = 4096                      // of all accounts
	accountAgents   = 100                       // of one account
	accountBytes    = 4 << 20                   // of one account's profiles
	accountEvery    = time.Second               // an account's changes, on average
	accountBurst    = 200                       // at once: twice a batch
	accountLifetime = 10 * 365 * 24 * time.Hour // of a registration by an account, in effect until removed
)

// accounts keeps the profiles of accounts' agents: [protocol.ProfileStore]. It also
// registers these agents, as Agentverse does: their record in the registry has no
// signature, and a record that the agent itself signs replaces it.
type accounts struct {
	b        *Binding
	profiles *journal.Table[*protocol.Profile] // by address

	mu      sync.Mutex
	writing map[*protocol.Profile]bool // checked, and being written: they count for room and handles
	rates   map[string]*rate.Limiter   // by account
}

func newAccounts(b *Binding) *accounts {
	return &accounts{b: b, profiles: journal.NewTable[*protocol.Profile](b.c.Journal, bucketProfiles, 0),
		writing: map[*protocol.Profile]bool{}, rates: map[string]*rate.Limiter{}}
}

func (a *accounts) start(ctx context.Context) (stop func(), err error) {
	return a.profiles.Follow(ctx, func(_, after journal.Row[*protocol.Profile]) { a.b.recount(after.Key) })
}

// of gives the profile of an address, or nil.
func (a *accounts) of(address string) *protocol.Profile { return a.profiles.Known(address).Value }

// all lists the profiles by address.
func (a *accounts) all() []*protocol.Profile {
	var out []*protocol.Profile
	for _, row := range a.profiles.All() {
		out = append(out, row.Value)
	}
	slices.SortFunc(out, func(x, y *protocol.Profile) int { return strings.Compare(x.Address, y.Address) })
	return out
}

// Profile implements [protocol.ProfileStore].
func (a *accounts) Profile(_ context.Context, address string) (*protocol.Profile, error) {
	return a.of(address), nil
}

// Profiles implements [protocol.ProfileStore].
func (a *accounts) Profiles(_ context.Context, account string) (own []*protocol.Profile, err error) {
	return slices.DeleteFunc(a.all(), func(p *protocol.Profile) bool { return p.Account != account }), nil
}

// checkRoom refuses a profile whose account has no room, or whose handle is in use. The
// caller holds a.mu.
func (a *accounts) checkRoom(p *protocol.Profile) error {
	agents, bytes := 1, p.Size()
	all := map[string]*protocol.Profile{}
	for _, other := range slices.AppendSeq(a.all(), maps.Keys(a.writing)) {
		all[other.Address] = other
	}
	for _, other := range all {
		switch {
		case other.Address == p.Address:
		case p.Handle != "" && other.Handle == p.Handle:
			return protocol.ErrHandle
		case other.Account == p.Account:
			agents++
			bytes += other.Size()
		}
	}
	switch {
	case agents > accountAgents:
		return protocol.ErrFull.Saying(fmt.Sprintf("An account has at most %d agents; remove one", accountAgents))
	case bytes > accountBytes:
		return protocol.ErrFull.Saying(
			fmt.Sprintf("The profiles of an account have at most %d bytes; shorten one", accountBytes))
	case a.of(p.Address) == nil && len(all) >= maxProfiles:
		return protocol.ErrFull
	}
	return nil
}

// checkRate bounds how often an account writes. The caller holds a.mu.
func (a *accounts) checkRate(account string) error {
	l := a.rates[account]
	if l == nil {
		l = rate.NewLimiter(rate.Every(accountEvery), accountBurst)
		a.rates[account] = l
	}
	if !l.AllowN(a.b.c.Now(), 1) {
		return protocol.ErrRate.Saying("too many changes")
	}
	return nil
}

// PutProfile implements [protocol.ProfileStore].
func (a *accounts) PutProfile(ctx context.Context, p *protocol.Profile) error {
	if _, _, ok := a.b.standIns.at(p.Address); ok {
		return protocol.ErrOtherAgent // the hub holds its key
	}
	if err := a.write(ctx, p); err != nil {
		return err
	}
	return a.register(context.WithoutCancel(ctx), p)
}

func (a *accounts) write(ctx context.Context, p *protocol.Profile) error {
	a.mu.Lock()
	err := a.checkRate(p.Account)
	if err == nil {
		err = a.checkRoom(p)
	}
	if err != nil {
		a.mu.Unlock()
		return err
	}
	a.writing[p] = true
	a.mu.Unlock()
	_, err = a.profiles.Put(ctx, p.Address, p, time.Time{})
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.writing, p)
	return err
}

// register registers an account's agent, unless the agent has registered itself.
func (a *accounts) register(ctx context.Context, p *protocol.Profile) error {
	b := a.b
	var taken *protocol.Record
	err := b.almanac.Update(ctx, networks[0], p.Address, func(old *protocol.Record) (*protocol.Record, error) {
		taken = old
		if old != nil && old.Signed != nil && old.Expires.After(b.c.Now()) {
			return old, nil
		}
		r := protocol.Record{Network: networks[0], Address: p.Address, Endpoints: p.Endpoints, Protocols: p.Protocols,
			Metadata: p.Metadata, Active: true, Expires: b.c.Now().Add(accountLifetime)}
		if old != nil {
			r.Active, r.Updated, r.Registered = old.Active, old.Updated, old.Registered
		}
		taken = &r
		return &r, nil
	})
	if err != nil {
		return err
	}
	b.registered(ctx, *taken)
	return nil
}

// drop removes a profile and its registration.
func (a *accounts) drop(ctx context.Context, address string) error {
	if err := a.profiles.Delete(ctx, address, 0); err != nil {
		return err
	}
	if r := a.b.almanac.registered(address); r != nil && r.Signed == nil {
		if err := a.b.almanac.remove(ctx, address); err != nil {
			return err
		}
	}
	a.b.recount(address)
	return nil
}

// entryRemoved drops the profile of an address whose entry the operator removed. It is
// called for every change of an entry.
func (a *accounts) entryRemoved(address string) {
	if a.of(address) == nil || a.b.almanac.registered(address) == nil { // the agent is about to register
		return
	}
	if _, ok := a.b.c.Hub.Directory().Lookup(Protocol, address); ok {
		return
	}
	a.b.work.Go(func() {
		if err := a.drop(a.b.ctx, address); err != nil {
			a.b.c.Logger.Error("cannot remove the profile of an agent that was removed", "address", address,
				"error", err)
		}
	})
}

// RemoveProfile implements [protocol.ProfileStore]. A registration that the agent itself
// signed stays until it expires.
func (a *accounts) RemoveProfile(ctx context.Context, address string) error {
	ctx = context.WithoutCancel(ctx)
	if err := a.drop(ctx, address); err != nil {
		return err
	}
	b := a.b
	if r := b.almanac.registered(address); r != nil {
		b.enter(ctx, r)
	} else if !b.mailbox.has(address) {
		b.removeGuest(ctx, address)
	}
	return nil
}

// restore registers agents again after their own registration expired.
func (a *accounts) restore(ctx context.Context) {
	for _, p := range a.all() {
		if a.b.almanac.registered(p.Address) != nil {
			continue
		}
		if err := a.register(ctx, p); err != nil {
			a.b.c.Logger.Warn("cannot register an account's agent again",
				"address", p.Address, "account", p.Account, "error", err)
		}
	}
}

// Listings implements [protocol.ProfileStore]: the agents of accounts, and the
// hub's stand-ins.
func (a *accounts) Listings(context.Context) iter.Seq[protocol.Listing] {
	b := a.b
	return func(yield func(protocol.Listing) bool) {
		for _, p := range a.all() {
			if !p.Public() {
				continue
			}
			l := protocol.Listing{Profile: p, Status: "offline", Kind: protocol.KindOf(p.Endpoints)}
			if r := b.almanac.registered(p.Address); r != nil {
				l.Kind = protocol.KindOf(r.Endpoints)
				if r.Active {
					l.Status = "active"
				}
			}
			if !yield(l) {
				return
			}
		}
		for _, e := range b.c.Hub.Directory().All() {
			if !b.hosts(e) {
				continue
			}
			address := b.Address(e)
			if address == "" {
				continue
			}
			p := &protocol.Profile{Address: address, Name: cmp.Or(e.Title, e.Name), Description: e.Description,
				Created: e.Added, Updated: e.Added, Protocols: b.standIns.protocols(e)}
			if !yield(protocol.Listing{Profile: p, Status: "active", Kind: "hosted"}) {
				return
			}
		}
	}
}

func (b *Binding) profile(e *directory.Entry) *hub.Profile {
	id, ok := e.Identity(Protocol)
	if !ok {
		return nil
	}
	p := b.accounts.of(id.ID)
	if p == nil {
		return nil
	}
	return &hub.Profile{Account: p.Account, Name: p.Name, Handle: p.Handle, Description: p.Description,
		Readme: p.Readme, Prompts: p.Prompts, Avatar: p.Avatar, Banner: p.Banner, Metadata: json.RawMessage(p.Metadata),
		Updated: p.Updated}
}

// profileText is an address's title and description for the directory, from its profile.
func (b *Binding) profileText(address string) (title, description string) {
	p := b.accounts.of(address)
	if p == nil {
		return "", ""
	}
	description = p.Description
	if description == "" { // else the first line of text in the readme
		for line := range strings.Lines(p.Readme) {
			line = strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(line), "#"))
			if line != "" {
				description = line
				break
			}
		}
	}
	return p.Name, shortened(description)
}

// accountOf gives the account of a bearer token. Teams are ignored.
func (b *Binding) accountOf(ctx context.Context, bearer, _ string) (string, error) {
	if b.c.Account == nil {
		return "", protocol.ErrUnauthorized
	}
	name, why := b.c.Account(bearer)
	if name == "" {
		return "", protocol.ErrUnauthorized.Saying(why)
	}
	policy.Vouch(ctx)
	return name, nil
}

var _ protocol.ProfileStore = (*accounts)(nil)
