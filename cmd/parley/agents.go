package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/connect"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
	"github.com/parley-hub/parley/node"
)

func (a *app) agentsCommand() *cobra.Command {
	var chosen admin.AgentFilter
	var wide, trouble bool
	list := &cobra.Command{
		Use: "list", Short: "List the agents, by name",
		Long: `List the agents, by name. With --json it prints one page, whose "next" is the --cursor
of the following one.`,
		Example: `  parley agents list
  parley agents list --filter weather
  parley agents list --trouble --wide
  parley agents list --filter 'team-1/*' --limit 0`,
		PreRunE: func(*cobra.Command, []string) error {
			if chosen.Limit < 0 {
				return usage("--limit %d: want 0 (all) or more", chosen.Limit)
			}
			if trouble {
				chosen.State, chosen.Order = cmp.Or(chosen.State, "trouble"), "trouble"
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			return a.agentsList(ctx, hub, chosen, wide)
		}),
	}
	list.Flags().StringVar(&chosen.Filter, "filter", "", "only agents with this text in the name, the title or an "+
		"identity; with *, a pattern for one of them as a whole")
	list.Flags().IntVar(&chosen.Limit, "limit", 50, "at most this many; 0 means all")
	list.Flags().StringVar(&chosen.Cursor, "cursor", "", "go on behind a page: its \"next\" in the output of --json")
	agentsChosen(list, &chosen, &wide, &trouble)
	show := &cobra.Command{
		Use: "show NAME", Short: "Show an agent: identities, skills, keys, pending messages", Args: cobra.ExactArgs(1),
		Long:    "Show an agent. NAME is its name in the directory, or its id in a protocol: agent1q…, agent://HOST.",
		Example: "  parley agents show weather\n  parley agents show agent1q…",
		RunE:    a.withHub(a.agentsShow),
	}
	var dry bool
	remove := &cobra.Command{
		Use: "remove NAME", Short: "Remove an agent, its keys and its tokens", Args: cobra.ExactArgs(1),
		Example: "  parley agents remove weather --dry-run\n  parley agents remove weather",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			if dry {
				r, err := hub.RemovalPreview(ctx, args[0])
				if err != nil {
					return err
				}
				return a.print(r, "%s\n", clean(r.Text))
			}
			if err := hub.RemoveAgent(ctx, args[0]); err != nil {
				return err
			}
			return a.print(map[string]string{"removed": args[0]}, "agent %s is removed\n", args[0])
		}),
	}
	remove.Flags().BoolVar(&dry, "dry-run", false, "only say what would go")
	expose := &cobra.Command{
		Use: "expose NAME [PROTOCOL…|all|none]", Short: "Let agents of other protocols reach an agent",
		Args: cobra.MinimumNArgs(2),
		Long: "Let agents of other protocols find and call an agent through a stand-in. The list replaces\n" +
			"the earlier one; all means every protocol, none means none.",
		Example: `  parley agents expose weather samvad agh
  parley agents expose weather all
  parley agents expose weather none
  parley agents expose weather all --dry-run`,
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			v, err := hub.Expose(ctx, args[0], exposedIn(args[1:]))
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
	a.dryRun(expose, func(ctx context.Context, hub *admin.Client, args []string) (admin.Preview, error) {
		return hub.PreviewExpose(ctx, args[0], exposedIn(args[1:]))
	})
	return group("agents", "List, add and change the agents that the hub knows",
		"  parley agents\n  parley agents add weather --samvad https://weather.corp\n  parley agents pause weather",
		list.RunE, list, show, a.agentsAdd(), remove,
		a.agentsPause("pause", "Stop deliveries to an agent; its messages wait at the hub", true),
		a.agentsPause("resume", "Resume deliveries to an agent, in order", false),
		a.agentsChecklist(), a.agentsSpeakers(), expose, a.agentsRecord(), a.agentsLink(), a.agentsDelivery(),
		a.agentsExport())
}

// exposedIn reads the protocols of `agents expose`.
func exposedIn(args []string) []string {
	if len(args) == 1 && args[0] == "none" {
		return []string{}
	}
	return args
}

func (a *app) agentsList(ctx context.Context, client *admin.Client, f admin.AgentFilter, wide bool) error {
	var page admin.AgentPage
	var list []admin.Agent
	limit := cmp.Or(f.Limit, math.MaxInt)
	for more := true; more; more = page.Next != "" && len(list) < limit {
		f.Limit = min(limit-len(list), index.MaxLimit)
		var err error
		if page, err = client.Agents(ctx, f); err != nil {
			return err
		}
		list, f.Cursor = append(list, page.Agents...), page.Next
	}
	page.Agents = list
	if a.json {
		return a.print(page, "")
	}
	none := "no agents yet; add one with `parley agents add NAME --samvad URL`, or `parley listen NAME --create`"
	if f.Limit, f.Cursor, f.Order = 0, "", ""; f != (admin.AgentFilter{}) {
		none = "no agents match the flags"
		if f.Filter != "" {
			none = "no agents match --filter"
		}
	}
	if len(list) == 0 {
		return a.print(nil, "%s\n", none)
	}
	if wide {
		return a.wideAgents(&page)
	}
	titles := []string{"AGENT", "SPEAKS", "EXPOSED IN", "SKILLS", "STATE", "FROM", "LAST HEARD OF"}
	var rows [][]string
	for _, v := range list {
		seen := ""
		if v.Seen != nil {
			seen = a.when(v.Seen.Time) + " " + v.Seen.Assurance.String()
		}
		rows = append(rows, []string{v.Name, strings.Join(v.Native, ","), strings.Join(v.Exposed, ","),
			strconv.Itoa(len(v.Skills)), strings.ReplaceAll(string(v.State), "_", " "), string(v.Source), seen})
	}
	err := a.table(titles, rows, func(row int) []string {
		if s := &list[row].AgentState; s.State == hub.Unreachable || s.State == hub.Failing || s.State == hub.Postponed {
			return []string{a.stateWords(s)}
		}
		return nil
	})
	if err == nil && page.More > 0 {
		fmt.Fprintf(a.errs, "%s: --limit 0 lists all, --filter TEXT chooses\n",
			plural(page.More, "more agent", "more agents"))
	}
	return err
}

func (a *app) agentsShow(ctx context.Context, hub *admin.Client, args []string) error {
	v, err := hub.Agent(ctx, args[0], 0)
	if err != nil {
		return err
	}
	mine, err := hub.AgentKeys(ctx, v.Name)
	if err != nil {
		return err
	}
	if a.json {
		// Without keys a list has always been null here.
		mine.Own = append([]keyring.Key(nil), mine.Own...)
		mine.Enrolled = append([]keyring.Enrolled(nil), mine.Enrolled...)
		return a.print(struct {
			admin.Agent
			Keys admin.Keys `json:"keys"`
		}{v, mine}, "")
	}
	line := a.labels(12, 300)
	line("agent", "%s", v.Name)
	line("title", "%s", v.Title)
	line("about", "%s", v.Description)
	line("state", "%s", cmp.Or(a.stateWords(&v.AgentState), "ready"))
	line("delivery", "%s", scheduleWords(v.Delivery))
	line("added", "%s: %s", a.when(v.Added), cmp.Or(v.Origin.Text, string(v.Source)))
	for _, i := range v.Identities {
		kind := ""
		switch {
		case i.StandIn && slices.Contains(v.Native, i.Protocol):
			kind = " (a retired stand-in: the hub forwards its messages)"
		case i.StandIn:
			kind = " (a stand-in)"
		}
		line(i.Protocol, "%s%s", identityWords(i.ID, i.URL), kind)
	}
	a.showBindings(&v, line)
	line("recorded", "%s", v.Record)
	line("exposed in", "%s", strings.Join(v.Exposed, ", "))
	for _, p := range slices.Sorted(maps.Keys(v.Addresses)) {
		line("reached in", "%s %s", p, v.Addresses[p])
	}
	for _, s := range v.Skills {
		line("skill", "%s %s", s.ID, s.Description)
	}
	if p := v.Profile; p != nil {
		line("account", "%s, changed %s", p.Account, a.when(p.Updated))
		line("handle", "%s", p.Handle)
		line("avatar", "%s", p.Avatar)
		line("banner", "%s", p.Banner)
		line("metadata", "%s", p.Metadata)
		line("readme", "%s", p.Readme)
		for _, text := range p.Prompts {
			line("prompt", "%s", text)
		}
	}
	for _, k := range mine.Own {
		line("own key", "%s %s %s since %s", k.Purpose, k.ID, k.State, a.when(k.Created))
	}
	for _, k := range mine.Enrolled {
		used := ""
		if !k.Used.IsZero() {
			used = ", last used " + a.when(k.Used)
		}
		line("enrolled", "%s %s %s by %s on %s%s", k.Purpose, k.KeyID, keyring.Fingerprint(k.Algorithm, k.Public), k.By,
			a.when(k.Created), used)
	}
	showCallers(v.Callers, line)
	if v.Waiting != nil {
		waiting := "nothing"
		if v.Waiting.Open > 0 {
			waiting = fmt.Sprintf("%d, the oldest from %s", v.Waiting.Open, a.when(v.Waiting.Oldest))
		}
		line("waiting", "%s; %s", waiting, plural(v.Waiting.Dead, "dead letter", "dead letters"))
	}
	if v.Seen != nil {
		line("last heard", "%s, %s by %s, message %s", a.when(v.Seen.Time), v.Seen.Assurance, v.Seen.Protocol,
			v.Seen.Message)
	} else {
		line("last heard", "not since the hub started")
	}
	return nil
}

func (a *app) agentsPause(use, text string, paused bool) *cobra.Command {
	var reason string
	change := func(hub *admin.Client, ctx context.Context, name string) (admin.Agent, error) {
		if paused {
			return hub.PauseFor(ctx, name, reason)
		}
		return hub.Pause(ctx, name, false)
	}
	c := &cobra.Command{
		Use: use + " NAME", Short: text, Args: cobra.ExactArgs(1), Example: "  parley agents " + use + " weather",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			v, err := change(hub, ctx, args[0])
			if err != nil {
				return err
			}
			return a.print(v, "agent %s is %sd\n", v.Name, use)
		}),
	}
	if paused {
		c.Example += "\n  parley agents pause weather --reason 'its disk is being replaced'"
		c.Flags().StringVar(&reason, "reason", "", "why, for `parley agents show` and the audit trail")
	}
	return c
}

func (a *app) agentsExport() *cobra.Command {
	var guests bool
	c := &cobra.Command{
		Use: "export [NAME…]", Short: "Write agents as sections of the configuration file",
		Args: cobra.ArbitraryArgs,
		Long: `Write the agents that came by commands, the API or their own registration as they would
stand in the configuration file; with names only these. No secret is written: a comment
says where a file with a token or card is needed. Guests, for whom nobody vouches, are
comments.

An agent is in the file or added by command, not both. To move one: append its section to
the file, run parley agents remove NAME, and then parley config reload.`,
		Example: `  parley agents export >> parley.toml
  parley agents export weather`,
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			var list []admin.Agent
			for _, name := range args {
				v, err := hub.Agent(ctx, name, 0)
				if err != nil {
					return a.hubError(err, "`parley agents` lists them")
				}
				if v.Source == directory.FromConfig || v.Source == directory.FromCode {
					return fmt.Errorf("agent %s comes from the %s: there is nothing to export", name, v.Source)
				}
				list = append(list, v)
			}
			if len(args) == 0 {
				for v, err := range hub.AllAgents(ctx, admin.AgentFilter{Limit: index.MaxLimit}) {
					if err != nil {
						return err
					}
					list = append(list, v)
				}
			}
			keys, err := hub.Keys(ctx)
			if err != nil {
				return err
			}
			text := string(node.ExportAgents(list, keys.Enrolled, guests))
			if text == "" && !a.json {
				fmt.Fprintln(a.errs, "no agents to export: all come from the configuration or the program")
			}
			return a.print(map[string]string{"toml": text}, "%s", text)
		}),
	}
	c.Flags().BoolVar(&guests, "guests", false, "write guests as agents for whom you vouch")
	return c
}

func (a *app) agentsRecord() *cobra.Command {
	return &cobra.Command{
		Use: "record NAME full|headers|digest", Short: "Say what the journal keeps of the content of an agent's messages",
		Args: cobra.ExactArgs(2),
		Long: `Say what the journal keeps of the content of the messages from and to an agent, once
their delivery is settled and they are an hour old; earlier messages included:

  full     all (the default)
  headers  headers of the transport (the signatures of SAMVAD), the network address,
           and digests
  digest   digests alone

Sender, recipient, kind, skill, times, checks and the states of deliveries always stay,
and exported conversations verify by the digests. Erased content does not come back.`,
		Example: "  parley agents record weather headers",
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			v, err := hub.Record(ctx, args[0], parley.Recording(args[1]))
			if err != nil {
				return err
			}
			return a.print(v, "of the messages of %s the journal keeps: %s\n", v.Name, v.Record)
		}),
	}
}

func (a *app) agentsLink() *cobra.Command {
	var id admin.NewIdentity
	c := &cobra.Command{
		Use: "link NAME", Short: "Say that a further identity is this agent's", Args: cobra.ExactArgs(1),
		Long: `Give an agent a further identity of its own: the same agent, in another
protocol. Where the hub stood in for it there, its stand-in retires.`,
		Example: "  parley agents link planner --protocol samvad --id agent://planner.corp --url " +
			"https://planner.corp --key BASE64",
		PreRunE: func(*cobra.Command, []string) error {
			if id.ID == "" {
				return usage("say which identity: --id, in the form of its protocol, for example agent://HOST")
			}
			if err := knownProtocol(id.Protocol); err != nil {
				return err
			}
			if check := protocolNamed(id.Protocol).checkID; check != nil {
				return check(id.ID)
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			v, err := hub.Link(ctx, args[0], id)
			if err != nil {
				return err
			}
			return a.print(v, "%s is %s in %s\n", v.Name, clean(id.ID), id.Protocol)
		}),
	}
	f := c.Flags()
	f.StringVar(&id.Protocol, "protocol", "samvad", "protocol of the identity")
	f.StringVar(&id.ID, "id", "", "the identity: agent://HOST")
	f.StringVar(&id.URL, "url", "", "where it is reached")
	f.StringVar(&id.PublicKey, "key", "", "its public key, base64")
	f.StringVar(&id.KeyID, "key-id", "", "id of the key (default: the key answers to any)")
	a.dryRun(c, func(ctx context.Context, hub *admin.Client, args []string) (admin.Preview, error) {
		return hub.PreviewLink(ctx, args[0], id)
	})
	return c
}

// addFlags are the flags of `agents add` for all protocols.
type addFlags struct {
	title  string
	expose []string
	inbox  bool
	record string
	wait   time.Duration
	retry  deliveryFlags
	ways   []adder // of all protocols; after parsing, of those with a given flag
}

func (a *app) agentsAdd() *cobra.Command {
	var s addFlags
	c := &cobra.Command{
		Use: "add NAME", Short: "Add an agent, and show what to enter at its side", Args: cobra.ExactArgs(1),
		Long: `Add an agent, by the flag of its protocol, or one that reads an inbox at the hub.
For SAMVAD the hub reads the agent's card, if there is one, for the identity, the
skills and, without --key, the key; for A2A the card below the URL, for MCP the list of
tools: where its network.allow lets it. The command shows what it says, and prints
the lines to enter at the agent; with --wait it then shows the steps of its checklist
as they turn, until the first proved message: with --json a line for each,
the result last. An agent that exists is changed.

A SAMVAD agent that only calls has no URL: give --id and --key.`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			s.ways = slices.DeleteFunc(s.ways, func(w adder) bool { return !w.given() })
			if len(s.ways) == 0 && !s.inbox {
				return usage("say how the agent is reached: %s", waysToAdd())
			}
			if err := cmp.Or(parley.CheckName(args[0]), parley.Recording(s.record).Check()); err != nil {
				return usage("%s", parley.AsError(err).Text)
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			return a.add(ctx, hub, args[0], s)
		}),
	}
	for _, p := range protocols {
		if p.add.flags != nil {
			c.Example += p.add.help
			s.ways = append(s.ways, p.add.flags(c))
		}
	}
	c.Example += "  parley agents add me --inbox"
	f := c.Flags()
	f.StringVar(&s.title, "title", "", "name for people")
	f.StringSliceVar(&s.expose, "expose", nil,
		"protocols in which the hub stands in for it: "+protocolNames("or")+", or all")
	f.BoolVar(&s.inbox, "inbox", false, "it reads its messages at the hub (parley listen)")
	f.StringVar(&s.record, "record", "", "what the journal keeps of the content of its messages: full, headers or "+
		"digest; see parley agents record --help")
	f.DurationVar(&s.wait, "wait", 0, "wait so long for its first proved message")
	s.retry.register(c)
	return c
}

// added is the result of `agents add` with --json.
type added struct {
	Agent   admin.Agent    `json:"agent"`
	Hub     admin.Hosting  `json:"hub"`
	Paste   []admin.Paste  `json:"paste,omitempty"`
	Notes   []string       `json:"notes,omitempty"`
	First   *admin.Seen    `json:"first,omitempty"`
	Refused *admin.Refusal `json:"refused,omitempty"`
}

// flagValues are the values of flags of `agents add`, by flag.
type flagValues map[string]*string

// values declares flags, which [connect] explains.
func values(c *cobra.Command, flags ...string) flagValues {
	v := flagValues{}
	for _, f := range flags {
		v[f] = c.Flags().String(f, "", connect.Help(f))
	}
	return v
}

// identity makes an identity of the flags, in a way of a protocol.
func (v flagValues) identity(protocol, way string) func(string) (admin.NewIdentity, error) {
	return func(name string) (admin.NewIdentity, error) {
		given := connect.Values{}
		for f, s := range v {
			given[f] = *s
		}
		id, err := connect.WayTo(protocol, way).Identity(name, given)
		if err != nil {
			return id, usage("%s", parley.AsError(err).Text)
		}
		return id, nil
	}
}

func (a *app) add(ctx context.Context, hub *admin.Client, name string, s addFlags) error {
	info, err := hub.Info(ctx)
	if err != nil {
		return err
	}
	n := admin.NewAgent{Name: name, Title: s.title, Expose: s.expose, Inbox: s.inbox, Delivery: s.retry.change(),
		Record: parley.Recording(s.record)}
	out := added{Hub: info.SAMVAD}
	for _, w := range s.ways {
		id, err := w.identity(name)
		if err != nil {
			return err
		}
		n.Identities = append(n.Identities, id)
	}
	if err := a.read(ctx, hub, &n, &out, s.ways); err != nil {
		return err
	}
	if s.wait > 0 { // the hub then works on its checklist
		if _, err = hub.Connect(ctx, n); err == nil {
			out.Agent, err = hub.Agent(ctx, name, 0)
		}
	} else {
		out.Agent, err = hub.AddAgent(ctx, n)
	}
	if err != nil {
		return err
	}
	if !a.json {
		a.showAdded(out, n, s.ways)
	}
	if s.wait <= 0 {
		return a.verdict(true, out, func() error { return nil })
	}
	absent := "does the agent call " + out.Hub.Base + "/agents/NAME?"
	if len(s.ways) == 1 && s.ways[0].absent != "" {
		absent = s.ways[0].absent
	}
	return a.firstProof(ctx, hub, out, n, s.wait, absent)
}

// read lets the hub complete an agent with what the agent says of itself.
func (a *app) read(ctx context.Context, hub *admin.Client, n *admin.NewAgent, out *added, ways []adder) error {
	given := *n
	r, err := hub.PreviewAgent(ctx, given)
	switch e, ok := errors.AsType[*parley.Error](err); {
	case ok && e.Code == parley.Malformed:
		return usage("%s", clean(e.Text))
	case err != nil:
		return err
	}
	*n, out.Notes, out.Paste = r.Agent, r.Notes, r.Paste
	n.Delivery = given.Delivery
	for i, w := range ways { // the hub gives no secret back, and does not know those of agents
		n.Identities[i].Credentials = given.Identities[i].Credentials
		if w.token == nil || w.token() == "" {
			continue
		}
		for j := range out.Paste {
			p := &out.Paste[j]
			p.Why = strings.Replace(p.Why, "was shown once", "is shown this once", 1)
			p.Line = strings.Replace(p.Line, strconv.Quote(connect.TokenPlace), strconv.Quote(w.token()), 1)
		}
	}
	return nil
}

// rootCause is the text of the innermost error: the cause.
func rootCause(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Error()
	}
	for next := err; next != nil; next = errors.Unwrap(next) {
		err = next
	}
	return err.Error()
}

// identityWords are an identity and its URL, which is the identity itself in some protocols.
func identityWords(id, url string) string {
	if url == "" || url == id {
		return id
	}
	return id + " " + url
}

func (a *app) showAdded(v added, n admin.NewAgent, ways []adder) {
	skills := "" // of an agent elsewhere they may come later
	if n := len(v.Agent.Skills); n > 0 {
		skills = ", with " + plural(n, "skill", "skills")
	}
	fmt.Fprintf(a.out, "agent %s is added%s\n", v.Agent.Name, skills)
	for _, i := range n.Identities {
		fmt.Fprintf(a.out, "  %-10s %s\n", i.Protocol, clean(identityWords(i.ID, i.URL)))
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
	for _, w := range ways {
		if w.hub != nil {
			fmt.Fprint(a.out, w.hub(v.Hub))
		}
	}
	why := ""
	for _, p := range v.Paste {
		if p.Why != why {
			why = p.Why
			fmt.Fprintf(a.out, "\nat the agent's side, %s\n", why)
		}
		fmt.Fprintf(a.out, "  %-10s %s\n", p.SDK, p.Line)
	}
	for _, w := range ways {
		if len(v.Paste) > 0 {
			fmt.Fprint(a.out, w.hint)
		}
	}
}

// firstProof waits for the first message of an agent. If none comes, the error names the
// cause, or asks about likely ones.
func (a *app) firstProof(ctx context.Context, hub *admin.Client, out added, n admin.NewAgent, wait time.Duration,
	absent string) error {
	if !a.json {
		fmt.Fprintf(a.out, "\nwaiting %s for its first message…\n", wait)
	}
	began := time.Now()
	list, err := hub.Checklist(ctx, n.Name)
	if err == nil {
		waits, cancel := context.WithTimeout(ctx, wait)
		_, err = a.watchSteps(waits, hub, list, heardFrom)
		cancel()
	}
	if err != nil {
		return err
	}
	v, err := hub.Agent(ctx, n.Name, 0)
	if err != nil {
		return err
	}
	if v.Seen != nil && v.Seen.Assurance > parley.Unsigned {
		out.First = v.Seen
		return a.print(out, "first message: %s, %s by %s, %s\n", stamp(v.Seen.Time), v.Seen.Assurance, v.Seen.Protocol,
			v.Seen.Message)
	}
	refused, err := hub.Refused(ctx, 0)
	if err != nil {
		return err
	}
	for _, r := range refused {
		for _, i := range n.Identities {
			if r.Claim == i.ID && r.Time.After(began.Add(-time.Minute)) && out.Refused == nil {
				out.Refused = &r
			}
		}
	}
	return a.verdict(false, out, func() error {
		if r := out.Refused; r != nil {
			return fmt.Errorf("a message that claims to be from %s was refused at the check "+
				"%q: %s\n        %s", clean(r.Claim), r.Step, clean(why(r)), r.Advice)
		}
		return fmt.Errorf("nothing came from %s within %s\n        %s `parley refused` lists "+
			"refused messages", n.Name, wait, absent)
	})
}

// heardFrom reports whether a proved message came from the agent of a checklist.
func heardFrom(v *admin.Checklist) bool {
	return slices.ContainsFunc(v.Steps, func(s admin.ConnectStep) bool {
		return s.Step == admin.StepFirstMessage && s.State == admin.StepDone
	})
}
