package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/journal/index"
)

func (a *app) conversationCommand() *cobra.Command {
	var f conversationFlags
	list := &cobra.Command{
		Use: "list", Short: "List conversations, the one with the newest message first",
		Example: `  parley conversation list --agent weather --since 2h
  parley conversation list --failed`,
		PreRunE: func(*cobra.Command, []string) error { return f.parse() },
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			return a.conversationList(ctx, hub, f.ConversationFilter, f.limit)
		}),
	}
	f.register(list)
	var steps, trace bool
	show := &cobra.Command{
		Use: "show ID", Short: "Show the messages of a conversation and their deliveries", Args: cobra.ExactArgs(1),
		Long: "Show the messages of a conversation and their deliveries, the oldest first. ID is its id,\n" +
			"or the beginning of it: at least 8 digits, as many as no other conversation has.",
		Example: `  parley conversation show 01a2b3c4
  parley conversation show 01a2b3c4 --steps
  parley conversation show 01a2b3c4 --trace`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			return checkID(args[0], "a conversation", conversationsListed)
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			if trace {
				return a.traceShow(ctx, hub, args[0], steps)
			}
			return a.conversationShow(ctx, hub, args[0], steps)
		}),
	}
	show.Flags().BoolVar(&steps, "steps", false, "show every step of every delivery")
	show.Flags().BoolVar(&trace, "trace", false, "show all conversations that share a trace with this one, by time")
	return group("conversation", "List, show, export and verify conversations",
		`  parley conversation
  parley conversation show 01a2b3c4
  parley conversation export 01a2b3c4 --out deal.jsonl
  parley conversation verify deal.jsonl`,
		list.RunE, list, show, a.exportCommand(), a.verifyExportCommand())
}

const conversationsListed = "`parley conversation` lists them"

// checkID refuses what is no id, nor the beginning of one, before the hub is called.
func checkID(s, what, listed string) error {
	if _, _, err := index.Range(s); err != nil {
		return usage("%q: want the id of %s, or at least its first 8 digits; %s", s, what, listed)
	}
	return nil
}

// conversationFlags choose conversations.
type conversationFlags struct {
	index.ConversationFilter
	sinceText, untilText string
	limit                int
}

func (f *conversationFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.Agent, "agent", "", "only conversations of this agent")
	c.Flags().StringVar(&f.sinceText, "since", "", "only those with a message since this time; or a duration back from "+
		"now (2h)")
	c.Flags().StringVar(&f.untilText, "until", "", "only those whose last message is older than this time; or a "+
		"duration back from now (2h)")
	c.Flags().BoolVar(&f.Open, "open", false, "only those with an open delivery")
	c.Flags().BoolVar(&f.Failed, "failed", false, "only those with a message that failed")
	c.Flags().IntVar(&f.limit, "limit", 50, "at most this many; 0 means all")
}

// parse completes the filter.
func (f *conversationFlags) parse() (err error) {
	if f.limit < 0 {
		return usage("--limit %d: want 0 (all) or more", f.limit)
	}
	if f.Since, err = moment("--since", f.sinceText); err != nil {
		return err
	}
	f.Until, err = moment("--until", f.untilText)
	return err
}

func (a *app) conversationList(ctx context.Context, hub *admin.Client, filter index.ConversationFilter,
	limit int) error {
	none := "no conversations"
	if filter != (index.ConversationFilter{}) {
		none = "no conversations match the flags"
	}
	if limit == 0 {
		limit = math.MaxInt
	}
	list := []admin.ConversationInfo{}
	for {
		filter.Limit = min(1000, limit-len(list))
		page, err := hub.Conversations(ctx, filter)
		if err != nil {
			return err
		}
		list = append(list, page.Conversations...)
		filter.Cursor = page.Next
		if page.Next == "" || len(list) >= limit {
			break
		}
	}
	titles := []string{"LAST", "CONVERSATION", "AGENTS", "MESSAGES", "OPEN", "FAILED", "LAST SAID"}
	err := printList(a, list, none, titles, func(c *admin.ConversationInfo) []string {
		return []string{a.when(c.Last), a.id(c.ID), short(strings.Join(c.Agents, ", "), 40), strconv.Itoa(c.Messages),
			strconv.Itoa(c.Open), strconv.Itoa(c.Failed), short(c.Preview, 60)}
	})
	if err == nil && filter.Cursor != "" && !a.json {
		fmt.Fprintf(a.errs, "there are more conversations: --limit 0 shows all\n")
	}
	return err
}

func (a *app) conversationShow(ctx context.Context, hub *admin.Client, id string, steps bool) error {
	v, err := hub.Conversation(ctx, id, "", 1000)
	if err != nil {
		return a.hubError(err, conversationsListed)
	}
	if a.json {
		for next := v.Next; next != ""; {
			page, err := hub.Conversation(ctx, v.ID.String(), next, 1000)
			if err != nil {
				return err
			}
			v.History = append(v.History, page.History...)
			next = page.Next
		}
		v.Next = ""
		return a.print(v, "")
	}
	line := a.labels(12, 400)
	line("conversation", "%s", v.ID)
	line("agents", "%s", strings.Join(v.Agents, ", "))
	line("time", "%s to %s", a.when(v.First), a.when(v.Last))
	line("messages", "%d, %d failed; %s not settled", v.Messages, v.Failed, plural(v.Open, "delivery", "deliveries"))
	fmt.Fprintln(a.out)
	begin := v.First
	for {
		if err := a.timeline(v.History, begin, steps); err != nil {
			return err
		}
		if v.Next == "" {
			return nil
		}
		if v, err = hub.Conversation(ctx, v.ID.String(), v.Next, 1000); err != nil {
			return err
		}
	}
}

// timeline writes a table with one row for each message, and its remarks below.
func (a *app) timeline(list []admin.HistoryEntry, begin time.Time, steps bool) error {
	var rows [][]string
	for i := range list {
		m := &list[i]
		rows = append(rows, []string{a.after(begin, m.Time), a.id(m.ID), parties(&m.Summary), kindAndSkill(&m.Summary),
			proof(&m.Summary), deliveryState(&m.Summary), short(m.Preview, 60)})
	}
	return a.table([]string{"TIME", "MESSAGE", "FROM → TO", "KIND", "PROOF", "STATE", "CONTENT"}, rows,
		func(row int) []string { return a.remarks(&list[row], begin, steps) })
}

func parties(m *admin.Summary) string {
	to := m.To
	if to == "" {
		switch len(m.Deliveries) {
		case 0:
			to = "-"
		case 1:
			to = m.Deliveries[0].To
		default:
			to = fmt.Sprintf("%d agents", len(m.Deliveries))
		}
	}
	return shortName(m.From, 40) + " → " + shortName(to, 40)
}

func kindAndSkill(m *admin.Summary) string {
	s := m.Kind.String()
	if m.Kind == parley.Event || m.Kind == parley.Input {
		s += " " + strconv.Itoa(m.Number)
		if m.State != parley.NoState {
			s += " " + m.State.String()
		}
	}
	if m.Skill != "" {
		s += " " + short(m.Skill, 30)
	}
	if m.Act != "" {
		s += " (" + short(m.Act, 20) + ")"
	}
	return s
}

func proof(m *admin.Summary) string {
	return m.Assurance.String() + ", " + short(m.Protocol, 12)
}

// deliveryState summarises the deliveries of a message.
func deliveryState(m *admin.Summary) string {
	if m.Refused {
		return "refused"
	}
	counts := map[parley.DeliveryState]int{}
	for _, d := range m.Deliveries {
		counts[d.State]++
	}
	var out []string
	for s := parley.Waiting; s <= parley.Abandoned; s++ {
		switch n := counts[s]; {
		case n == 0:
		case len(m.Deliveries) == 1:
			out = append(out, s.String())
		default:
			out = append(out, fmt.Sprintf("%d %s", n, s))
		}
	}
	if len(out) == 0 {
		return "recorded"
	}
	return strings.Join(out, ", ")
}

// remarks are the lines below a message: failures, losses, attempts if there were several or one failed,
// next attempts and, if asked for, every step.
func (a *app) remarks(m *admin.HistoryEntry, begin time.Time, steps bool) []string {
	var out []string
	if m.Error != nil {
		out = append(out, brief(m.Error, 200))
	}
	for _, d := range m.Deliveries {
		to := shortName(d.To, 40)
		if d.Error != nil && d.State != parley.Answered {
			out = append(out, fmt.Sprintf("to %s: %s after %s: %s", to, d.State,
				plural(d.Attempts, "attempt", "attempts"), brief(d.Error, 200)))
		}
		if list := m.Attempts[d.To]; len(list) > 1 || steps || len(list) == 1 && list[0].Error != nil {
			for _, line := range a.attempts(list, m.Omitted[d.To]) {
				out = append(out, fmt.Sprintf("to %s, attempt %s", to, line))
			}
		}
		if d.State == parley.Waiting && !d.Next.IsZero() {
			out = append(out, fmt.Sprintf("to %s: next attempt not before %s", to, a.when(d.Next)))
		}
		for _, l := range d.Losses {
			out = append(out, fmt.Sprintf("to %s, lost: %s", to, short(l, 200)))
		}
		if !steps {
			continue
		}
		for _, s := range d.Steps {
			line := fmt.Sprintf("%s to %s: %s", a.after(begin, s.Time), to, s.State)
			if s.Attempt > 0 {
				line += fmt.Sprintf(" (attempt %d)", s.Attempt)
			}
			if s.Code != "" {
				line += ": " + string(s.Code)
			}
			out = append(out, line)
		}
	}
	return out
}

func (a *app) exportCommand() *cobra.Command {
	var out, format string
	var digests bool
	c := &cobra.Command{
		Use: "export ID", Short: "Write a conversation to a file that proves itself", Args: cobra.ExactArgs(1),
		Long: `Write a conversation to a file. ` + "`parley conversation verify`" + ` finds every later change
of the file, without a hub.

The format hub has all that the journal holds of the conversation: one JSON object a
line, each with the hash of the line before; the hub signs the last one. The format
asp is the transcript of the conversation's ASP session: each message as its agent
signed and linked it, the agents' cards, and the hub's signature over all. Without
--format a conversation of ASP agents is written as asp, all others as hub.`,
		Example: `  parley conversation export 01a2b3c4 --out deal.jsonl
  parley conversation export 01a2b3c4 --digests > deal.jsonl
  parley conversation export 01a2b3c4 --format asp --out session.json`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			switch err := checkID(args[0], "a conversation", conversationsListed); {
			case err != nil:
				return err
			case format == "asp" && digests:
				return usage("--digests is for --format hub: a transcript is whole")
			case format != "" && format != "hub" && format != "asp":
				return usage("--format %q: want hub or asp", format)
			}
			return nil
		},
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			if format == "" && !digests {
				v, err := hub.Conversation(ctx, args[0], "", 1)
				if err != nil {
					return a.hubError(err, conversationsListed)
				}
				if len(v.History) > 0 && v.History[0].Protocol == "asp" {
					format = "asp"
				}
			}
			write := func(w io.Writer) error {
				if format == "asp" {
					return a.hubError(hub.Transcript(ctx, args[0], format, w), conversationsListed)
				}
				return a.hubError(hub.Export(ctx, args[0], !digests, w), conversationsListed)
			}
			if out == "" {
				return write(a.out)
			}
			return a.exportTo(ctx, out, write)
		}),
	}
	c.Flags().StringVar(&out, "out", "", "file to write (default: the standard output)")
	c.Flags().StringVar(&format, "format", "", "hub, or asp for the transcript of an ASP session (default: asp if "+
		"the conversation is one, else hub)")
	c.Flags().BoolVar(&digests, "digests", false, "write digests in place of the content")
	return c
}

// exportTo writes a complete file that verifies, or none.
func (a *app) exportTo(ctx context.Context, out string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(out), ".parley-export-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			// An incomplete file is of no use.
			_ = os.Remove(f.Name())
		}
	}()
	if err = write(f); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	told, text, err := describeExport(ctx, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), out); err != nil {
		return err
	}
	told["file"] = out
	return a.print(told, "%s holds %s\n", out, text)
}

// describeExport verifies the file that a hub sent, and describes it.
func describeExport(ctx context.Context, f io.Reader) (told map[string]any, text string, err error) {
	in, ok := isASPTranscript(f)
	if ok {
		report, err := asp.TranscriptVerifier{}.Verify(ctx, in)
		if err != nil {
			return nil, "", fmt.Errorf("the hub sent no complete transcript: %w\n        export it again", err)
		}
		text := fmt.Sprintf("ASP session %s: %s in %s", report.SessionID,
			plural(int(report.Messages), "message", "messages"), plural(int(report.Records), "record", "records"))
		if report.Erased > 0 {
			text += fmt.Sprintf(", the content of %d erased", report.Erased)
		}
		return map[string]any{"format": "asp", "sessionId": report.SessionID, "records": report.Records,
			"messages": report.Messages, "erased": report.Erased}, text, nil
	}
	report, err := admin.VerifyExport(in, nil)
	if err != nil {
		return nil, "", err
	}
	if !report.OK() {
		return nil, "", fmt.Errorf("the hub sent no complete export: %s\n        export it again",
			strings.Join(report.Problems, "; "))
	}
	return map[string]any{"format": "hub", "conversation": report.Header.Conversation, "records": report.Records,
			"messages": report.Messages},
		fmt.Sprintf("conversation %s: %s in %s", report.Header.Conversation,
			plural(report.Messages, "message", "messages"), plural(report.Records, "record", "records")), nil
}

// verification is the result of `conversation verify`.
type verification struct {
	File         string           `json:"file"`
	OK           bool             `json:"ok"`
	Hub          string           `json:"hub,omitempty"`
	Conversation string           `json:"conversation,omitempty"`
	Exported     *time.Time       `json:"exported,omitempty"`
	KeyID        string           `json:"keyId,omitempty"`
	Key          string           `json:"key,omitempty"` // base64
	KeyGiven     bool             `json:"keyGiven"`      // it is the key of --key
	Records      int              `json:"records"`
	Messages     int              `json:"messages"`
	Verified     int              `json:"verified"`           // messages whose own signature was verified again
	Attested     int              `json:"attested"`           // messages whose signature holds, with a replaced token
	Unverified   []unverifiedKind `json:"unverified"`         // messages without a verified signature, by reason
	Problems     []string         `json:"problems,omitempty"` // none: the file is as the hub wrote it
}

type unverifiedKind struct {
	Reason   string `json:"reason"`
	Messages int    `json:"messages"`
}

func (a *app) verifyExportCommand() *cobra.Command {
	var key string
	var paths []string
	c := &cobra.Command{
		Use: "verify FILE|-", Short: "Verify an exported conversation, without a hub", Args: cobra.ExactArgs(1),
		Long: `Verify an export: its chain of hashes, the hub's signature, all content against its
digests, and the messages' own signatures. SAMVAD and ASP messages are verified with the
keys and cards that the hub knew, uAgents and AGH messages with the key in the sender's
address. The output names every line that was changed, removed, moved or inserted. The
transcript of an ASP session is verified message by message: hash, link, signature and
proof. The exit code is 0 if nothing was changed, else 1.

A SAMVAD message that came with a bearer token is "attested", not "verified": the
sender's signature over method, path and body digest is verified, but the file has a
keyed digest in place of the token, so the digest of the body cannot be computed again.
For the rest of the body only the hub vouches.

The file cannot prove that the key in it is the hub's: give the hub's key with --key
(` + "`parley keys list`" + ` at the hub shows it).`,
		Example: `  parley conversation verify deal.jsonl --key BASE64
  parley conversation verify - < deal.jsonl`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, transcript, finish, err := a.exported(args[0])
			if err != nil {
				return err
			}
			defer finish()
			if transcript {
				return a.verifyASP(cmd.Context(), in, finish, args[0], key)
			}
			return a.verifyExport(cmd.Context(), in, finish, args[0], key, paths)
		},
	}
	c.Flags().StringVar(&key, "key", "", "the hub's public key, base64: the file must be signed with it")
	c.Flags().StringArrayVar(&paths, "path", nil, "the path to which SAMVAD messages were sent, if a proxy changed "+
		"it; may be repeated")
	return c
}

// exported opens an export: a file, or - for the standard input. finish, which may be
// called twice, ends its progress and closes it.
func (a *app) exported(name string) (in io.Reader, transcript bool, finish func(), err error) {
	in, finish = a.in, func() {}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, false, nil, &exitError{exitUsage, err}
		}
		var size int64
		if i, err := f.Stat(); err == nil {
			size = i.Size()
		}
		var shown func()
		in, shown = a.bar(f, size)
		finish = sync.OnceFunc(func() {
			shown()
			_ = f.Close() // it was only read
		})
	}
	in, transcript = isASPTranscript(in)
	return in, transcript, finish, nil
}

func (a *app) verifyExport(ctx context.Context, in io.Reader, finish func(), name, key string, paths []string) error {
	v := verification{File: name}
	again := signatureChecks{paths: paths}
	report, err := admin.VerifyExport(in, func(h *admin.ExportHeader, line int, r *admin.ExportRecord) {
		if r.Message == nil {
			return
		}
		if err := r.Message.Check(); err != nil {
			again.problems = append(again.problems, fmt.Sprintf("line %d, message %s: %v", line, r.Message.ID, err))
			return
		}
		base := ""
		if h != nil {
			base = h.Base
		}
		again.message(ctx, line, r, base)
	})
	finish()
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	v.Problems = append(report.Problems, again.problems...)
	v.Records, v.Messages = report.Records, report.Messages
	v.Verified, v.Attested, v.Unverified = again.verified, again.attested, again.list()
	if h := report.Header; h != nil {
		v.Hub, v.Conversation, v.Exported = h.Hub, h.Conversation.String(), &h.Exported
		v.KeyID, v.Key = h.KeyID, base64.StdEncoding.EncodeToString(h.Key)
		if v.KeyGiven = key != ""; v.KeyGiven && !sameKey(key, h) {
			v.Problems = append(v.Problems, "the file is signed by the key "+v.Key+", not by the one of --key")
			v.KeyGiven = false
		}
	}
	v.OK = report.Signed && len(v.Problems) == 0
	return a.verdict(v.OK, v, func() error { return a.showVerification(&v) })
}

// sameKey compares the given key with the key in the file.
func sameKey(given string, h *admin.ExportHeader) bool {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.NewReplacer("-", "+", "_",
		"/").Replace(given), "="))
	return err == nil && bytes.Equal(b, h.Key)
}

// bar shows on a terminal how much of a large file has been read.
func (a *app) bar(in io.Reader, size int64) (io.Reader, func()) {
	f := a.terminal()
	if f == nil || size < 16<<20 {
		return in, func() {}
	}
	bar := progressbar.NewOptions64(size, progressbar.OptionSetWriter(f), progressbar.OptionSetDescription("verifying"),
		progressbar.OptionShowBytes(true), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond))
	r := progressbar.NewReader(in, bar)
	return &r, func() {
		// A bar that cannot be drawn harms nothing.
		_ = bar.Finish()
	}
}

// shownProblems is how many problems are written for people.
const shownProblems = 20

func (a *app) showVerification(v *verification) error {
	line := a.labels(13, 400)
	if v.Exported != nil {
		line("conversation", "%s", v.Conversation)
		line("exported", "%s by hub %s", stamp(*v.Exported), short(v.Hub, 100))
		line("signed by", "%s %s", short(v.KeyID, 60), v.Key)
	}
	line("holds", "%s in %s", plural(v.Messages, "message", "messages"), plural(v.Records, "record", "records"))
	line("verified", "the own signatures of %s", plural(v.Verified, "message", "messages"))
	if v.Attested > 0 {
		line("attested", "%s: the sender's signature over path and body digest holds, but the token in the body was "+
			"replaced: only the hub attests the body", plural(v.Attested, "message", "messages"))
	}
	for _, u := range v.Unverified {
		line("not again", "%s: %s", plural(u.Messages, "message", "messages"), u.Reason)
	}
	for _, p := range v.Problems[:min(len(v.Problems), shownProblems)] {
		line("PROBLEM", "%s", p)
	}
	if n := len(v.Problems) - shownProblems; n > 0 {
		line("PROBLEM", "and %d more: --json lists all", n)
	}
	last := "The file is NOT as the hub wrote it."
	switch {
	case v.OK && v.KeyGiven:
		last = "The file is as the hub wrote it."
	case v.OK:
		last = "The file is as the holder of that key wrote it. Compare the key with the hub's, or give the " +
			"hub's with --key."
	}
	_, err := fmt.Fprintf(a.out, "\n%s\n", last)
	return err
}

// signatureChecks verifies the messages' own signatures again.
type signatureChecks struct {
	paths    []string
	verified int
	attested int
	reasons  map[string]int
	problems []string
}

func (v *signatureChecks) not(reason string) {
	if v.reasons == nil {
		v.reasons = map[string]int{}
	}
	v.reasons[reason]++
}

func (v *signatureChecks) list() []unverifiedKind {
	out := []unverifiedKind{}
	for _, r := range slices.Sorted(maps.Keys(v.reasons)) {
		out = append(out, unverifiedKind{r, v.reasons[r]})
	}
	return out
}

func (v *signatureChecks) message(ctx context.Context, line int, r *admin.ExportRecord, base string) {
	m := r.Message
	o := &m.Origin
	switch {
	case r.Erased != nil:
		v.not("their content was " + clean(r.Erased.String()))
		return
	case o.Assurance != parley.Signed:
		v.not(fmt.Sprintf("they were not signed (%s, by %s)", o.Assurance, clean(o.Protocol)))
		return
	case o.Raw == nil:
		v.not("the envelope is not in the file, only its digest")
		return
	}
	p := protocolNamed(o.Protocol)
	if p == nil || p.verifyExported == nil {
		v.not(fmt.Sprintf("messages of %s have no signature of their own", clean(o.Protocol)))
		return
	}
	switch reason, err := p.verifyExported(v, ctx, m, base); {
	case err != nil:
		v.problems = append(v.problems, fmt.Sprintf("line %d, message %s: its own signature does not verify: %v", line,
			m.ID, err))
	case reason != "":
		v.not(reason)
	case p.attested != nil && p.attested(m):
		v.attested++
	default:
		v.verified++
	}
}
