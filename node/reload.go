package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// reloading is the state of a node's reloads.
type reloading struct {
	one sync.Mutex // one reload at a time

	mu     sync.Mutex
	at     time.Time
	failed bool
}

// lastReload is the time of the last reload, and whether a later one was refused.
func (n *Node) lastReload() (time.Time, bool) {
	n.reloads.mu.Lock()
	defer n.reloads.mu.Unlock()
	return n.reloads.at, n.reloads.failed
}

// Reload reads the configuration again and applies rules, rates, network.allow,
// agents, callers, tokens, the certificate, alerts and the log's level. Connections stay.
// It checks everything first: after an error the whole old configuration is in
// force. The result names changed keys that need a restart.
func (n *Node) Reload(ctx context.Context) (admin.Reloaded, error) {
	n.reloads.one.Lock()
	defer n.reloads.one.Unlock()
	out, err := n.reload(ctx)
	n.reloads.mu.Lock()
	n.reloads.failed = err != nil
	if err == nil {
		n.reloads.at = n.c.Now()
	}
	n.reloads.mu.Unlock()
	if err != nil {
		n.log.Error("the configuration was not taken up; the old one is in force", "error", err)
		return out, err
	}
	n.log.Info("the configuration was read anew", "changed", out.Changed, "needsRestart", out.Restart)
	return out, nil
}

func (n *Node) reload(ctx context.Context) (admin.Reloaded, error) {
	out := admin.Reloaded{Changed: []string{}, Restart: []string{}}
	if n.c.Read == nil {
		return out, parley.Refuse(parley.Unsupported, "this hub was not started from a configuration file")
	}
	refuse := func(err error) (admin.Reloaded, error) {
		return out, parley.Refuse(parley.InvalidContent, "the configuration was not taken up: %s", err).Because(err)
	}
	c, err := n.c.Read()
	if err != nil {
		return refuse(err)
	}
	k, err := c.check()
	if err != nil {
		return refuse(err)
	}
	old := n.live.Load()
	reloads := map[string]bool{}
	for _, key := range Keys() {
		reloads[key.Name] = key.Reload
	}
	now := flat(&c)
	for _, name := range changed(flat(old), now) {
		if n.reloadable(reloads, name, &c) {
			out.Changed = append(out.Changed, name)
		}
	}
	// Each reload before the restart names the keys that need it.
	for _, name := range changed(flat(&n.read), now) {
		if !n.reloadable(reloads, name, &c) {
			out.Restart = append(out.Restart, name)
		}
	}

	// Every step that can fail comes before the first change.
	p, err := n.policy.Next(n.policyConfig(&c, k))
	if err != nil {
		return refuse(err)
	}
	entries, err := n.readAgents(&c)
	if err != nil {
		return refuse(err)
	}
	for _, e := range entries {
		if old, ok := n.directory.Agent(e.agent.Name); ok && old.Source != directory.FromConfig {
			return refuse(fmt.Errorf("agents.%s: an agent of that name comes from %s", e.agent.Name, old.Source))
		}
	}
	if n.certs != nil && c.TLS.Cert != "" {
		if err := n.certs.use(c.TLS.Cert, c.TLS.Key); err != nil {
			return refuse(err)
		}
	}

	known, err := n.finder.read(&c)
	if err != nil {
		return refuse(err)
	}
	if err := n.tokens.Reread(ctx); err != nil && !errors.Is(err, os.ErrNotExist) {
		return refuse(err)
	}

	n.policy = p
	n.hub.SetPolicy(p)
	n.hub.SetMappings(k.mappings)
	n.guard.SetAllow(k.allow)
	n.proxies.Store(&k.proxies)
	n.finder.replace(known)
	if n.c.Level != nil && c.LogLevel != old.LogLevel {
		n.c.Level.Set(k.level)
	}
	n.live.Store(&c)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(old.Agents)) {
		if _, ok := c.Agents[name]; !ok {
			if err := n.directory.Withdraw(ctx, name, directory.FromConfig); err != nil &&
				!errors.Is(err, directory.ErrUnknown) {
				errs = append(errs, fmt.Errorf("agents.%s: %w", name, err))
			}
			if _, err := n.keys.Forget(name); err != nil {
				errs = append(errs, fmt.Errorf("keys of agents.%s: %w", name, err))
			}
			for _, b := range n.bindings {
				if b.Gone != nil {
					b.Gone(name)
				}
			}
		}
	}
	again := old.Policy.Expose != c.Policy.Expose
	entries = slices.DeleteFunc(entries, func(e configuredAgent) bool {
		was, ok := old.Agents[e.agent.Name]
		return ok && !again && reflect.DeepEqual(was, c.Agents[e.agent.Name]) &&
			!slices.ContainsFunc(e.enrolments, func(e Enrolment) bool { return e.Files })
	})
	n.enrollKeys(entries)
	for _, e := range entries {
		if err := n.putAgent(ctx, e); err != nil {
			errs = append(errs, err)
		}
	}
	for _, b := range n.bindings {
		if b.Reloaded != nil {
			b.Reloaded()
		}
	}
	return out, errors.Join(errs...)
}

// reloadable reports whether a reload applies a change of a key. A listener cannot get
// TLS or lose it while it is open.
func (n *Node) reloadable(reloads map[string]bool, name string, c *Config) bool {
	switch {
	case strings.HasPrefix(name, "agents."), name == "allow", name == "map", strings.HasPrefix(name, "callers."):
		return true
	case name == "tls.cert", name == "tls.key":
		return n.certs != nil && c.TLS.Cert != ""
	case name == "log":
		return n.c.Level != nil
	}
	return reloads[name]
}

// flat lists the values of a configuration by key; each agent is one value, and so is the
// list of rules.
func flat(c *Config) map[string]any {
	out := map[string]any{}
	flatten(reflect.ValueOf(c).Elem(), "", out)
	for _, p := range withoutField(reflect.TypeFor[Config]()) {
		flatten(reflect.ValueOf(p.Section(c)).Elem(), p.Name+".", out)
	}
	return out
}

func flatten(v reflect.Value, prefix string, out map[string]any) {
	t := v.Type()
	for i := range t.NumField() {
		if !isKey(t.Field(i)) {
			continue
		}
		name, f := t.Field(i).Tag.Get("toml"), v.Field(i)
		if f.Kind() == reflect.Pointer && !f.IsNil() {
			f = f.Elem()
		}
		switch {
		case f.Kind() == reflect.Map:
			for _, k := range f.MapKeys() {
				out[prefix+name+"."+k.String()] = f.MapIndex(k).Interface()
			}
		case f.Kind() == reflect.Struct && f.Type() != reflect.TypeFor[Duration]():
			flatten(f, prefix+name+".", out)
		case f.Kind() == reflect.Slice && f.Len() == 0:
			// An empty list means the same as none.
		default:
			out[prefix+name] = f.Interface()
		}
	}
}

// changed names the keys whose values differ.
func changed(a, b map[string]any) []string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return slices.DeleteFunc(slices.Sorted(maps.Keys(all)), func(name string) bool {
		return reflect.DeepEqual(a[name], b[name]) // a missing value is nil, which no key has
	})
}

// policyConfig gives the configuration of the policy.
func (n *Node) policyConfig(c *Config, k checked) policy.Config {
	p := policy.Config{Hub: n.name, Assurance: map[string]parley.Assurance{"": k.assurance}, Allow: k.rules,
		Least: slices.Concat(c.a2aGuests(), c.mcpGuests(), k.least), Limits: k.limits, MaxBytes: int(n.k.body),
		SenderRate:  rateOf(c.Limits.SenderRate),
		UnknownRate: rateOf(c.Limits.UnknownRate), Now: n.c.Now}
	if c.Policy.Assurance == "" {
		p.Protocol = map[string]parley.Assurance{}
		for _, protocol := range Protocols {
			if protocol.Assurance != 0 {
				p.Protocol[protocol.Name] = protocol.Assurance
			}
		}
	}
	return p
}
