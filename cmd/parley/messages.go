package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

// messageFlags choose messages.
type messageFlags struct {
	index.Filter
	conversation, kind, state, proof, slow string
}

func (f *messageFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.Agent, "agent", "", "only messages from or to this agent")
	c.Flags().StringVar(&f.From, "from", "", "only messages from this agent")
	c.Flags().StringVar(&f.To, "to", "", "only messages to this agent")
	c.Flags().StringVar(&f.conversation, "conversation", "", "only this conversation: its id, or the beginning of it")
	c.Flags().StringVar(&f.kind, "kind", "", "only messages of this kind, e.g. request")
	c.Flags().StringVar(&f.state, "state", "", "only messages with a delivery in this state, e.g. dead")
	c.Flags().StringVar(&f.Protocol, "protocol", "", "only messages that came by this protocol")
	c.Flags().StringVar(&f.Via, "via", "", "only messages that went out by this protocol")
	c.Flags().StringVar(&f.proof, "proof", "", "only messages with this proof: signed, session, unsigned or refused")
	c.Flags().StringVar(&f.slow, "slow", "", "only requests whose answer took so long, or that wait so long for it: 2s")
	c.Flags().StringVar(&f.Text, "text", "", "only messages with these words, this id, or this agent")
}

// parse completes the filter, but for the conversation.
func (f *messageFlags) parse() error {
	if f.kind != "" && f.Kind.UnmarshalText([]byte(f.kind)) != nil {
		return usage("--kind %q: want request, event, response, error, notice, cancel or input", f.kind)
	}
	if f.state != "" && f.State.UnmarshalText([]byte(f.state)) != nil {
		return usage("--state %q: want waiting, delivering, delivered, answered, dead, dropped, expired or abandoned",
			f.state)
	}
	if f.proof != "" && f.Proof.UnmarshalText([]byte(f.proof)) != nil {
		return usage("--proof %q: want signed, session, unsigned or refused", f.proof)
	}
	if d, ok := duration(f.slow); ok && d > 0 {
		f.Slow = d
	} else if f.slow != "" {
		return usage("--slow %q: want a duration such as 2s", f.slow)
	}
	if f.conversation != "" {
		return checkID(f.conversation, "a conversation", conversationsListed)
	}
	return nil
}

// find finds the conversation.
func (f *messageFlags) find(ctx context.Context, a *app, hub *admin.Client) error {
	if f.conversation == "" {
		return nil
	}
	v, err := hub.Conversation(ctx, f.conversation, "", 1)
	f.Conversation = v.ID
	return a.hubError(err, conversationsListed)
}

func (a *app) messagesCommand() *cobra.Command {
	var m messageFlags
	var since, until, before string
	var limit int
	var show [3]bool
	var count, follow bool
	f := func() admin.TimelineFilter { return admin.TimelineFilter{Filter: m.Filter, Before: before} }
	c := &cobra.Command{
		Use:   "messages",
		Short: "List messages and refusals by time",
		Long: `List messages and refused requests in one table, the newest last. With several flags all of
them must match. A page ends with the cursor of the page before it; --count gives numbers
in place of rows. Refusals that were not recorded are known since the hub started.

The exit code is 0, also if nothing matches; 2 for a wrong flag, and 3 if no hub answers.`,
		Example: `  parley messages
  parley messages --agent weather --slow 2s --since 1h
  parley messages --proof unsigned --count
  parley messages --failed --follow`,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if limit < 1 || limit > index.MaxLimit {
				return usage("--limit %d: want 1 to %d", limit, index.MaxLimit)
			}
			if count && follow {
				return usage("--count and --follow exclude each other")
			}
			m.Failed, m.Refused, m.Waiting = show[0], show[1], show[2]
			if m.Since, err = moment("--since", since); err != nil {
				return err
			}
			if m.Until, err = moment("--until", until); err != nil {
				return err
			}
			return m.parse()
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			if err := m.find(ctx, a, hub); err != nil {
				return err
			}
			m.Limit = limit
			switch {
			case count:
				return a.messageCounts(ctx, hub, f())
			case follow:
				return a.messagesFollow(ctx, hub, f())
			}
			return a.messageList(ctx, hub, f())
		}),
	}
	m.register(c)
	c.Flags().BoolVar(&show[0], "failed", false, "only failures: refusals, error answers, dead letters")
	c.Flags().BoolVar(&show[1], "refused", false, "only refusals")
	c.Flags().BoolVar(&show[2], "waiting", false, "only messages with a delivery that waits for its next attempt")
	c.Flags().StringVar(&since, "since", "", "only those since this time; or a duration back from now (2h)")
	c.Flags().StringVar(&until, "until", "", "only those before this time; or a duration back from now (2h)")
	c.Flags().StringVar(&before, "before", "", "the page before this cursor")
	c.Flags().IntVar(&limit, "limit", 100, "at most this many, the newest")
	c.Flags().BoolVar(&count, "count", false, "count: all, failed, refused, waiting and slow, each up to 10,000")
	c.Flags().BoolVar(&follow, "follow", false, "show new and changed messages in place of a list, until interrupted")
	return c
}

func (a *app) messageList(ctx context.Context, hub *admin.Client, f admin.TimelineFilter) error {
	page, err := hub.Timeline(ctx, f)
	if err != nil {
		return err
	}
	if a.json {
		return a.print(page, "")
	}
	if page.NoWords {
		fmt.Fprintln(a.errs, "--text was not searched in content: the journal is encrypted, or the token "+
			"has not the role read")
	}
	if len(page.Entries) == 0 {
		return a.hidden(ctx, hub, f)
	}
	slices.Reverse(page.Entries)
	rows := make([][]string, len(page.Entries))
	for i := range page.Entries {
		rows[i] = a.entryRow(&page.Entries[i])
	}
	titles := []string{"TIME", "ID", "FROM → TO", "KIND", "PROOF", "STATE", "ANSWER", "CONTENT"}
	if err := a.table(titles, rows, func(int) []string { return nil }); err != nil || page.Older == "" {
		return err
	}
	fmt.Fprintf(a.errs, "there are older ones: --before %s\n", page.Older)
	return nil
}

// entryRow is the row of an entry.
func (a *app) entryRow(e *admin.TimelineEntry) []string {
	m, r := e.Message, e.Refusal
	if m == nil {
		return []string{a.when(r.Time), r.Ref, "?" + shortName(r.Claim, 40) + " → " + shortName(r.To, 40), "",
			"refused, " + short(r.Protocol, 12), "at " + short(r.Step, 30), "", short(why(r), 60)}
	}
	what, state, answer := kindAndSkill(m), deliveryState(m), ""
	if e.Folded > 0 {
		what += fmt.Sprintf(" ×%d", e.Folded)
	}
	if m.Answer != 0 {
		answer = time.Duration(m.Answer).Round(time.Millisecond).String()
	}
	if n := attempts(m); n > 1 {
		state += fmt.Sprintf(", %d attempts", n)
	}
	said := short(m.Snippet, 60)
	if m.Error != nil {
		said = brief(m.Error, 60)
	} else if said == "" {
		said = short(m.Preview, 60)
	}
	return []string{a.when(m.Time), a.id(m.ID), parties(m), what, ways(m), state, answer, said}
}

// ways are the proof, the protocol by which a message came, and those by which it went out.
func ways(m *admin.Summary) string {
	out := []string{}
	for _, d := range m.Deliveries {
		if d.Protocol != "" && !slices.Contains(out, d.Protocol) {
			out = append(out, short(d.Protocol, 12))
		}
	}
	if len(out) == 0 {
		return proof(m)
	}
	return proof(m) + " → " + strings.Join(out, " ")
}

func attempts(m *admin.Summary) (n int) {
	for _, d := range m.Deliveries {
		n = max(n, d.Attempts)
	}
	return n
}

// hidden says what hides all messages.
func (a *app) hidden(ctx context.Context, hub *admin.Client, f admin.TimelineFilter) error {
	list, err := hub.Hidden(ctx, f)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		_, err = fmt.Fprintln(a.out, "no messages")
		return err
	}
	fmt.Fprintln(a.out, "no messages match the flags")
	for _, h := range list {
		if h.Without.Number > 0 {
			fmt.Fprintf(a.out, "  without --%s: %s\n", h.Member, number(h.Without))
		}
	}
	return nil
}

func number(c admin.Count) string {
	if c.More {
		return fmt.Sprintf("%d+", c.Number)
	}
	return fmt.Sprint(c.Number)
}

func (a *app) messageCounts(ctx context.Context, hub *admin.Client, f admin.TimelineFilter) error {
	f.Before = ""
	c, err := hub.Counts(ctx, f)
	if err != nil {
		return err
	}
	return a.print(c, "all %s, failed %s, refused %s, waiting %s, slow %s\n", number(c.All), number(c.Failed),
		number(c.Refused), number(c.Waiting), number(c.Slow))
}

// messagesFollow writes what changes: one line for each entry, or one batch of JSON.
func (a *app) messagesFollow(ctx context.Context, hub *admin.Client, f admin.TimelineFilter) error {
	f.Before = ""
	started := func() {
		if !a.json {
			fmt.Fprintln(a.errs, "following; interrupt to end")
		}
	}
	for b, err := range hub.Watch(ctx, f, started) {
		switch {
		case ctx.Err() != nil:
			return nil // an interrupt is the normal end
		case err != nil:
			return err
		case a.json:
			if err := a.print(b, ""); err != nil {
				return err
			}
			continue
		}
		slices.Reverse(b.Entries)
		for i := range b.Entries {
			if _, err := fmt.Fprintln(a.out, strings.Join(a.entryRow(&b.Entries[i]), "  ")); err != nil {
				return err
			}
		}
		if b.Missed > 0 {
			fmt.Fprintf(a.errs, "too fast to show: %d missed\n", b.Missed)
		}
	}
	return nil
}

// traceShow writes the conversations that share a trace, and their messages in one table.
func (a *app) traceShow(ctx context.Context, hub *admin.Client, id string, steps bool) error {
	t, err := hub.Trace(ctx, id, "", index.MaxLimit)
	if err != nil {
		return a.hubError(err, conversationsListed)
	}
	for next := t.Next; next != ""; {
		page, err := hub.Trace(ctx, t.Conversation.String(), next, index.MaxLimit)
		if err != nil {
			return err
		}
		t.History = append(t.History, page.History...)
		next = page.Next
	}
	t.Next = ""
	if a.json {
		return a.print(t, "")
	}
	refused, err := hub.RefusalsAround(ctx, t.Conversation.String())
	if err != nil {
		return err
	}
	more := ""
	if t.More {
		more = ", and others"
	}
	line := a.labels(13, 400)
	line("conversation", "%s", t.Conversation)
	var others []string
	for _, c := range t.Conversations {
		if c.ID != t.Conversation {
			others = append(others, a.id(c.ID))
		}
	}
	line("same trace", "%s%s", strings.Join(others, ", "), more)
	line("messages", "%d", len(t.History))
	if len(refused) > 0 {
		line("refused", "%d that claim one of its agents, in its time: `parley messages --refused`", len(refused))
	}
	fmt.Fprintln(a.out)
	return a.timeline(t.History, t.Conversations[0].First, steps)
}
