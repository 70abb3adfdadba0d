package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/samvad"
)

func (a *app) agentsCommand() *cobra.Command {
	list := &cobra.Command{
		Use: "list", Short: "List the agents", Args: cobra.NoArgs,
		Example: "  parley agents list --json",
		RunE:    a.withHub(a.agentsList),
	}
	show := &cobra.Command{
		Use: "show NAME", Short: "Show an agent: identities, skills, keys, pending messages", Args: cobra.ExactArgs(1),
		Long:    "Show an agent. NAME is its name in the directory, or its id in a protocol: agent1q…, agent://HOST.",
		Example: "  parley agents show weather\n  parley agents show agent1q…",
		RunE:    a.withHub(a.agentsShow),
	}
	remove := &cobra.Command{
		Use: "remove NAME", Short: "Remove an agent and its keys", Args: cobra.ExactArgs(1),
		Example: "  parley agents remove weather",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			if err := hub.RemoveAgent(ctx, args[0]); err != nil {
				return err
			}
			return a.print(map[string]string{"removed": args[0]}, "agent %s is removed\n", args[0])
		}),
	}
	expose := &cobra.Command{
		Use: "expose NAME [PROTOCOL…|all|none]", Short: "Let agents of other protocols reach an agent",
		Args: cobra.MinimumNArgs(2),
		Long: "Let agents of other protocols find and call an agent through a stand-in. The list replaces\n" +
			"the earlier one; all means every protocol, none means none.",
		Example: `  parley agents expose weather samvad agh
  parley agents expose weather all
  parley agents expose weather none`,
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			protocols := args[1:]
			if len(protocols) == 1 && protocols[0] == "none" {
				protocols = []string{}
			}
			v, err := hub.Expose(ctx, args[0], protocols)
			if err != nil {
				return err
			}
			what := "nowhere but in its own protocols"
			if len(v.Exposed) > 0 {
				what = "in " + strings.Join(v.Exposed, ", ")
			}
			return a.print(v, "agent %s is exposed %s\n", v.Name, what)
		}),
	}
	return group("agents", "List, add and change the agents that the hub knows",
		"  parley agents\n  parley agents add weather --samvad https://weather.corp\n  parley agents pause weather",
		a.withHub(a.agentsList), list, show, a.agentsAdd(), remove,
		a.agentsPause("pause", "Stop deliveries to an agent; its messages wait at the hub", true),
		a.agentsPause("resume", "Resume deliveries to an agent, in order", false),
		expose, a.agentsLink())
}

func (a *app) agentsList(ctx context.Context, hub *admin.Client, _ []string) error {
	list, err := hub.Agents(ctx)
	if err != nil {
		return err
	}
	none := "no agents yet; add one with `parley agents add NAME --samvad URL`, or `parley listen NAME --create`"
	titles := []string{"AGENT", "SPEAKS", "EXPOSED IN", "SKILLS", "STATE", "FROM", "LAST HEARD OF"}
	return printList(a, list, none, titles, func(v *admin.Agent) []string {
		state := "ready"
		if v.Paused {
			state = "paused"
		}
		seen := ""
		if v.Seen != nil {
			seen = stamp(v.Seen.Time) + " " + v.Seen.Assurance.String()
		}
		return []string{v.Name, strings.Join(v.Native, ","), strings.Join(v.Exposed, ","), strconv.Itoa(len(v.Skills)),
			state, string(v.Source), seen}
	})
}

func (a *app) agentsShow(ctx context.Context, hub *admin.Client, args []string) error {
	v, err := hub.Agent(ctx, args[0], 0)
	if err != nil {
		return err
	}
	mine, err := hub.Keys(ctx)
	if err != nil {
		return err
	}
	mine.Own = slices.DeleteFunc(mine.Own, func(k keyring.Key) bool { return k.Owner != v.Name })
	mine.Enrolled = slices.DeleteFunc(mine.Enrolled, func(k keyring.Enrolled) bool { return k.Agent != v.Name })
	if a.json {
		// Without keys a list has always been null here.
		mine.Own = append([]keyring.Key(nil), mine.Own...)
		mine.Enrolled = append([]keyring.Enrolled(nil), mine.Enrolled...)
		return a.print(struct {
			admin.Agent
			Keys admin.Keys `json:"keys"`
		}{v, mine}, "")
	}
	line := func(label, format string, args ...any) {
		fmt.Fprintf(a.out, "%-12s %s\n", label, short(fmt.Sprintf(format, args...), 300))
	}
	line("agent", "%s", v.Name)
	if v.Title != "" {
		line("title", "%s", v.Title)
	}
	if v.Description != "" {
		line("about", "%s", v.Description)
	}
	state := "ready"
	if v.Paused {
		state = "paused: its messages wait at the hub"
	}
	line("state", "%s", state)
	line("added", "%s, from %s", stamp(v.Added), v.Source)
	for _, i := range v.Identities {
		kind := ""
		switch {
		case i.StandIn && slices.Contains(v.Native, i.Protocol):
			kind = " (a retired stand-in: the hub forwards its messages)"
		case i.StandIn:
			kind = " (a stand-in)"
		}
		line(i.Protocol, "%s %s%s", i.ID, i.URL, kind)
	}
	if len(v.Exposed) > 0 {
		line("exposed in", "%s", strings.Join(v.Exposed, ", "))
	}
	for _, p := range slices.Sorted(maps.Keys(v.Addresses)) {
		line("reached in", "%-8s %s", p, clean(v.Addresses[p]))
	}
	for _, s := range v.Skills {
		line("skill", "%s  %s", s.ID, s.Description)
	}
	if p := v.Profile; p != nil {
		line("account", "%s, changed %s", p.Account, stamp(p.Updated))
		for _, one := range [][2]string{{"handle", p.Handle}, {"avatar", p.Avatar}, {"banner", p.Banner},
			{"metadata", string(p.Metadata)}, {"readme", p.Readme}} {
			if one[1] != "" {
				line(one[0], "%s", one[1])
			}
		}
		for _, text := range p.Prompts {
			line("prompt", "%s", text)
		}
	}
	for _, k := range mine.Own {
		line("own key", "%s %s %s since %s", k.Purpose, k.ID, k.State, stamp(k.Created))
	}
	for _, k := range mine.Enrolled {
		line("enrolled", "%s %s %s by %s on %s", k.Purpose, k.KeyID, keyring.Fingerprint(k.Algorithm, k.Public), k.By,
			stamp(k.Created))
	}
	if v.Waiting != nil {
		line("waiting", "%d, oldest %s; %s", v.Waiting.Open, stamp(v.Waiting.Oldest),
			plural(v.Waiting.Dead, "dead letter", "dead letters"))
	}
	if v.Seen != nil {
		line("last heard", "%s, %s by %s, message %s", stamp(v.Seen.Time), v.Seen.Assurance, v.Seen.Protocol,
			v.Seen.Message)
	} else {
		line("last heard", "not since the hub started")
	}
	return nil
}

func (a *app) agentsPause(use, text string, paused bool) *cobra.Command {
	return &cobra.Command{
		Use: use + " NAME", Short: text, Args: cobra.ExactArgs(1), Example: "  parley agents " + use + " weather",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			v, err := hub.Pause(ctx, args[0], paused)
			if err != nil {
				return err
			}
			return a.print(v, "agent %s is %sd\n", v.Name, use)
		}),
	}
}

func (a *app) agentsLink() *cobra.Command {
	var id admin.NewIdentity
	c := &cobra.Command{
		Use: "link NAME", Short: "Say that a further identity is this agent's", Args: cobra.ExactArgs(1),
		Long: `Give an agent a further identity of its own: the same agent, in another
protocol. Where the hub stood in for it there, its stand-in retires.`,
		Example: "  parley agents link planner --protocol samvad --id agent://planner.corp --url https://planner.corp --key BASE64",
		RunE: func(cmd *cobra.Command, args []string) error {
			if id.ID == "" {
				return usage("say which identity: --id, in the form of its protocol, for example agent://HOST")
			}
			if err := knownProtocol(id.Protocol); err != nil {
				return err
			}
			if id.Protocol == "samvad" {
				if err := samvadID(id.ID); err != nil {
					return err
				}
			}
			hub, err := a.hub()
			if err != nil {
				return err
			}
			v, err := hub.Link(cmd.Context(), args[0], id)
			if err != nil {
				return a.hubError(err)
			}
			return a.print(v, "%s is %s in %s\n", v.Name, clean(id.ID), id.Protocol)
		},
	}
	f := c.Flags()
	f.StringVar(&id.Protocol, "protocol", "samvad", "protocol of the identity")
	f.StringVar(&id.ID, "id", "", "the identity: agent://HOST")
	f.StringVar(&id.URL, "url", "", "where it is reached")
	f.StringVar(&id.PublicKey, "key", "", "its public key, base64")
	f.StringVar(&id.KeyID, "key-id", "", "id of the key (default: the key answers to any)")
	return c
}

// adding are the flags of agents add.
type adding struct {
	samvad, id, key, keyID, title string
	uagents, endpoint             string
	a2e, asp, agh                 string
	expose                        []string
	inbox                         bool
	wait                          time.Duration
}

func (a *app) agentsAdd() *cobra.Command {
	var s adding
	c := &cobra.Command{
		Use: "add NAME", Short: "Add an agent, and say what to do at its side", Args: cobra.ExactArgs(1),
		Long: `Add an agent, by the flag of its protocol, or one that reads an inbox at the hub.
For SAMVAD the agent's card is read, if it is there: it tells the identity, the
skills, and the key, unless --key gives one. What to enter at the agent is
printed; with --wait the first proved message is waited for. An agent that is
there already is changed.

A SAMVAD agent that only calls has no URL: give --id and --key.`,
		Example: `  parley agents add weather --samvad https://weather.corp
  parley agents add weather --samvad http://127.0.0.1:3002 --key BASE64 --wait 2m
  parley agents add caller --id agent://client.local --key BASE64
  parley agents add bob --uagents agent1q…
  parley agents add robot --a2e new
  parley agents add lab --a2e https://lab.corp/a2e --expose all
  parley agents add anna --asp anna-card.json --wait 2m
  parley agents add patcher --agh ws_alpha/patch-worker.s1 --wait 2m
  parley agents add me --inbox`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.add(cmd.Context(), args[0], s) },
	}
	f := c.Flags()
	f.StringVar(&s.samvad, "samvad", "", "base URL of an agent that speaks SAMVAD")
	f.StringVar(&s.id, "id", "", "its identity, agent://HOST (default: that of its card)")
	f.StringVar(&s.key, "key", "", "its public key, base64 (default: that of its card)")
	f.StringVar(&s.keyID, "key-id", "", "id of that key (default: it answers to any)")
	f.StringVar(&s.uagents, "uagents", "", "address of a uAgent, agent1q…")
	f.StringVar(&s.a2e, "a2e", "", "new: an A2E agent that connects to the hub with a token; or the URL of an A2E host, whose tools become its skills")
	f.StringVar(&s.asp, "asp", "", "file with the card of an ASP agent (parley keys asp makes one)")
	f.StringVar(&s.agh, "agh", "", "an AGH peer, WORKSPACE/PEER")
	f.StringVar(&s.endpoint, "endpoint", "", "with --uagents: where it takes envelopes (default: as it registers itself with the hub)")
	f.StringVar(&s.title, "title", "", "name for people")
	f.StringSliceVar(&s.expose, "expose", nil, "protocols in which the hub stands in for it: samvad, uagents, a2e, agh, asp, all")
	f.BoolVar(&s.inbox, "inbox", false, "it reads its messages at the hub (parley listen)")
	f.DurationVar(&s.wait, "wait", 0, "wait so long for its first proved message")
	return c
}

// added is what agents add tells programs.
type added struct {
	Agent   admin.Agent    `json:"agent"`
	Hub     admin.Hosting  `json:"hub"`
	Paste   []paste        `json:"paste,omitempty"`
	Notes   []string       `json:"notes,omitempty"`
	First   *admin.Seen    `json:"first,omitempty"`
	Refused *admin.Refusal `json:"refused,omitempty"`
}

// paste is something to enter at the agent's side.
type paste struct {
	Why  string `json:"why"`
	SDK  string `json:"sdk"`
	Line string `json:"line"`
}

func (a *app) add(ctx context.Context, name string, s adding) error {
	if s.samvad == "" && s.id == "" && s.uagents == "" && s.a2e == "" && s.asp == "" && s.agh == "" && !s.inbox {
		return usage("say how the agent is reached: --samvad URL, --uagents ADDRESS, --a2e new or URL, --asp CARD, --agh WORKSPACE/PEER, --id agent://HOST with --key for one that only calls, or --inbox")
	}
	if err := parley.CheckName(name); err != nil {
		return usage("%s", parley.AsError(err).Text)
	}
	hub, err := a.hub()
	if err != nil {
		return err
	}
	info, err := hub.Info(ctx)
	if err != nil {
		return a.hubError(err)
	}
	n := admin.NewAgent{Name: name, Title: s.title, Expose: s.expose, Inbox: s.inbox}
	out := added{Hub: info.SAMVAD}
	if s.samvad != "" || s.id != "" {
		id, err := a.meet(ctx, s, &n, &out)
		if err != nil {
			return err
		}
		n.Identities = append(n.Identities, id)
	}
	if s.uagents != "" {
		id, err := meetUAgent(s)
		if err != nil {
			return err
		}
		n.Identities = append(n.Identities, id)
	}
	token := ""
	if s.a2e != "" {
		id, t, err := meetA2E(s)
		if err != nil {
			return err
		}
		n.Identities, token = append(n.Identities, id), t
	}
	if s.asp != "" {
		id, err := meetASP(s.asp, &n)
		if err != nil {
			return err
		}
		n.Identities = append(n.Identities, id)
	}
	if s.agh != "" {
		id, err := meetAGH(s)
		if err != nil {
			return err
		}
		n.Identities = append(n.Identities, id)
	}
	if out.Agent, err = hub.AddAgent(ctx, n); err != nil {
		return a.hubError(err)
	}
	for _, i := range n.Identities {
		if i.Protocol == "a2e" {
			c, err := a.load()
			if err != nil {
				return err
			}
			out.Paste = append(out.Paste, pasteA2E(info.PublicURL, c.A2E.Path, token)...)
			continue
		}
		if i.Protocol == "asp" {
			out.Paste = append(out.Paste, pasteASP(info.PublicURL, i.ID)...)
			continue
		}
		if i.Protocol == "agh" {
			c, err := a.load()
			if err != nil {
				return err
			}
			lines, err := pasteAGH(&c, name, info.PublicURL, i.ID)
			if err != nil {
				return err
			}
			out.Paste = append(out.Paste, lines...)
			continue
		}
		if i.Protocol == "uagents" {
			out.Paste = append(out.Paste, pasteUAgent(info.PublicURL)...)
			continue
		}
		out.Paste = append(out.Paste, toPaste(info.SAMVAD, i)...)
	}
	if !a.json {
		a.showAdded(out, n)
	}
	if s.wait <= 0 {
		if a.json {
			return a.print(out, "")
		}
		return nil
	}
	return a.firstProof(ctx, hub, out, n, s.wait)
}

func isProtocol(name string) bool {
	return slices.Contains([]string{"samvad", "uagents", "a2e", "agh", "asp"}, name)
}

// knownProtocol refuses a --protocol that does not exist.
func knownProtocol(name string) error {
	if !isProtocol(name) {
		return usage("--protocol %q: want samvad, uagents, a2e, agh or asp", name)
	}
	return nil
}

// samvadID refuses an --id that is no SAMVAD identity.
func samvadID(id string) error {
	if _, err := samvad.AgentOrigin(id); err != nil {
		return usage("--id %q: want agent://HOST or agent://HOST:PORT", id)
	}
	return nil
}

// meet finds out what there is to know of a SAMVAD agent.
func (a *app) meet(ctx context.Context, s adding, n *admin.NewAgent, out *added) (admin.NewIdentity, error) {
	id := admin.NewIdentity{Protocol: "samvad", ID: s.id, URL: strings.TrimRight(s.samvad, "/"), PublicKey: s.key, KeyID: s.keyID}
	note := func(format string, args ...any) { out.Notes = append(out.Notes, fmt.Sprintf(format, args...)) }
	if s.key != "" {
		if _, err := samvad.ParseKey(s.key); err != nil {
			return id, usage("--key: want the base64 of an Ed25519 public key, 32 bytes: %w", err)
		}
	}
	if s.id != "" {
		if err := samvadID(s.id); err != nil {
			return id, err
		}
	}
	if s.samvad == "" {
		if s.key == "" {
			note("without --key nothing it sends is proved, unless its card at the https origin of %s has a key", id.ID)
		}
		return id, nil
	}
	u, err := url.Parse(s.samvad)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return id, usage("--samvad %q: want http(s)://HOST[:PORT][/PATH]", s.samvad)
	}
	defer func() {
		if why := a.notCalled(u.Hostname()); why != nil {
			note("the hub calls it only if its configuration allows that: %s", why)
		}
	}()
	card, err := (&samvad.Client{HTTP: &http.Client{}}).Card(ctx, id.URL)
	if err != nil {
		note("its card could not be read (%s): its skills are not known", short(rootCause(err), 200))
		if id.ID == "" {
			id.ID = "agent://" + u.Hostname()
			note("its identity is taken to be %s, as the SDKs make it; --id says otherwise", id.ID)
		}
		if id.PublicKey == "" {
			note("no key is enrolled: run this again with --key, or when the agent runs")
		}
		return id, nil
	}
	if id.ID != "" && id.ID != card.ID {
		return id, usage("--id %s: the agent's card says %s", id.ID, clean(card.ID))
	}
	id.ID = card.ID
	if n.Title == "" {
		n.Title = card.Name
	}
	n.Description = card.Description
	for _, k := range card.Skills {
		v := admin.Skill{ID: k.ID, Name: k.Name, Description: k.Description, Access: parley.Access(k.Trust), Peers: k.AllowedPeers,
			Input: json.RawMessage(k.InputSchema), Output: json.RawMessage(k.OutputSchema)}
		for _, m := range k.Modes {
			v.Modes = append(v.Modes, parley.Mode(m))
		}
		n.Skills = append(n.Skills, v)
	}
	if id.PublicKey != "" {
		return id, nil
	}
	active := 0
	for _, k := range card.PublicKeys {
		if !k.Active {
			continue
		}
		if active++; active == 1 {
			id.PublicKey = k.Key
		}
	}
	switch {
	case active == 0:
		note("its card has no active key: run this again with --key")
	case u.Scheme == "http" && !onThisMachine(u.Hostname()):
		note("its card came over plain http and could be anybody's, so its key was not enrolled; if it is right, run this again with --key %s", clean(id.PublicKey))
		id.PublicKey = ""
	default:
		if b, err := base64.StdEncoding.DecodeString(id.PublicKey); err == nil {
			note("key %s was taken from its card; compare it with the agent's operator", keyring.Fingerprint(keyring.Ed25519, b))
		}
		if active > 1 {
			note("its card has %d active keys; the first was enrolled, add the others with `parley keys enroll`", active)
		}
	}
	return id, nil
}

// notCalled says why a hub of the configuration at hand would not call a host,
// as far as the host's name tells.
func (a *app) notCalled(host string) error {
	if host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	c, err := a.load()
	if err != nil {
		return nil // the hub itself reports the error when it starts
	}
	g, err := c.Guard()
	if err != nil {
		return nil
	}
	return g.CheckAddr(addr)
}

func onThisMachine(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// rootCause is the innermost text of an error: the one with the cause.
func rootCause(err error) string {
	for {
		var op *net.OpError
		if errors.As(err, &op) {
			return op.Error()
		}
		next := errors.Unwrap(err)
		if next == nil {
			return err.Error()
		}
		err = next
	}
}

// toPaste are the lines that make an agent of an SDK trust the hub, and call
// through it.
func toPaste(hub admin.Hosting, i admin.NewIdentity) []paste {
	if hub.Identity == "" {
		return nil
	}
	var out []paste
	if i.URL != "" {
		why := "so that the agent accepts what the hub sends (before it is served)"
		out = append(out,
			paste{why, "TypeScript", fmt.Sprintf("agent.trustPeer('%s', Buffer.from('%s', 'base64'))", hub.Identity, hub.Key)},
			paste{why, "Python", fmt.Sprintf("agent.trust_peer(%q, %q)", hub.Identity, hub.Key)})
	}
	why := "so that it calls the agent NAME through the hub"
	return append(out,
		paste{why, "TypeScript", fmt.Sprintf("const client = await AgentClient.from('%s/agents/NAME', { agentId: '%s' })", hub.Base, i.ID)},
		paste{why, "Python", fmt.Sprintf("client = await AgentClient.from_url(\"%s/agents/NAME\")", hub.Base)})
}

func (a *app) showAdded(v added, n admin.NewAgent) {
	fmt.Fprintf(a.out, "agent %s is added, with %s\n", v.Agent.Name, plural(len(v.Agent.Skills), "skill", "skills"))
	for _, i := range n.Identities {
		fmt.Fprintf(a.out, "  %-10s %s %s\n", i.Protocol, clean(i.ID), clean(i.URL))
		if i.PublicKey != "" {
			fmt.Fprintf(a.out, "  %-10s %s\n", "key", clean(i.PublicKey))
		}
	}
	if n.Inbox {
		fmt.Fprintf(a.out, "  %-10s read it with: parley listen %s\n", "inbox", v.Agent.Name)
	}
	for _, s := range v.Notes {
		fmt.Fprintf(a.out, "  note       %s\n", s)
	}
	if len(n.Identities) == 0 {
		return
	}
	samvad := slices.ContainsFunc(n.Identities, func(i admin.NewIdentity) bool { return i.Protocol == "samvad" })
	if v.Hub.Identity != "" && samvad {
		fmt.Fprintf(a.out, "\nthe hub\n  identity   %s\n  public key %s\n  agents at  %s/agents/NAME\n", v.Hub.Identity, v.Hub.Key, v.Hub.Base)
	}
	why := ""
	for _, p := range v.Paste {
		if p.Why != why {
			why = p.Why
			fmt.Fprintf(a.out, "\nat the agent's side, %s\n", why)
		}
		fmt.Fprintf(a.out, "  %-10s %s\n", p.SDK, p.Line)
	}
	if len(v.Paste) > 0 && samvad {
		fmt.Fprintf(a.out, "\nA client of an SDK may have an identity and a key of its own (Python: agent://client-client);\nadd it as an agent too: parley agents add NAME-client --id agent://… --key BASE64\n")
	}
}

// firstProof waits for the first message of an agent, and says why not if
// none comes.
func (a *app) firstProof(ctx context.Context, hub *admin.Client, out added, n admin.NewAgent, wait time.Duration) error {
	if !a.json {
		fmt.Fprintf(a.out, "\nwaiting %s for its first message…\n", wait)
	}
	began := time.Now()
	v, err := hub.Agent(ctx, n.Name, 0)
	if err == nil && v.Seen == nil {
		v, err = hub.Agent(ctx, n.Name, wait)
	}
	if err != nil {
		return a.hubError(err)
	}
	if v.Seen != nil && v.Seen.Assurance > parley.Unsigned {
		out.First = v.Seen
		if a.json {
			return a.print(out, "")
		}
		return a.print(nil, "first message: %s, %s by %s, %s\n", stamp(v.Seen.Time), v.Seen.Assurance, v.Seen.Protocol, v.Seen.Message)
	}
	list, err := hub.Refused(ctx, 0)
	if err != nil {
		return a.hubError(err)
	}
	for _, r := range list {
		for _, i := range n.Identities {
			if r.Claim == i.ID && r.Time.After(began.Add(-time.Minute)) && out.Refused == nil {
				out.Refused = &r
			}
		}
	}
	if a.json {
		if err := a.print(out, ""); err != nil {
			return err
		}
		return &exitError{exitFailed, nil}
	}
	if r := out.Refused; r != nil {
		return &exitError{exitFailed, fmt.Errorf("a message that claims to be from %s was refused at the check %q: %s\n        %s", clean(r.Claim), r.Step, clean(why(r)), advice(*r))}
	}
	if len(n.Identities) == 1 && n.Identities[0].Protocol == "asp" {
		return &exitError{exitFailed, fmt.Errorf("nothing came from %s within %s\n        has the agent the hub as its server, and opened or answered a session? `parley refused` lists what was turned away", n.Name, wait)}
	}
	return &exitError{exitFailed, fmt.Errorf("nothing came from %s within %s\n        does the agent call %s/agents/NAME? `parley refused` lists what was turned away", n.Name, wait, out.Hub.Base)}
}
