package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain REF|MESSAGE",
		Short: "Show why a message was refused and how to fix it, or what happened to it",
		Long: `Explain a refusal or a message. REF is the reference that the sender of a refused message
got: the header Parley-Ref, or the ref of an error. The output lists the checks that the
message passed, the one that it failed, and what to do. For the id of a MESSAGE, or the
beginning of it, it shows the sender, the proof of the sender, and for each recipient the
state of the delivery, what the translation into its protocol lost, who refused it or
failed (the hub by a rule or a limit, the other agent, or the network) and what to do.`,
		Example: `  parley explain k5zq4w2xmd7bvchy
  parley explain 018f8fad-5bd9-7b46`,
		Args: cobra.ExactArgs(1),
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, args []string) error {
			r, err := hub.Refusal(ctx, args[0])
			if _, _, no := index.Range(args[0]); err != nil && parley.CodeOf(err) == "not_found" && no == nil {
				return a.explainMessage(ctx, hub, args[0])
			}
			if err != nil {
				return a.hubError(err, "`parley refused` lists them",
					"for a message give its id, or at least the first 8 digits: `parley conversation show` has it")
			}
			if a.json {
				return a.print(r, "")
			}
			a.explain(r)
			return nil
		}),
	}
}

// explainMessage shows a recorded message and its deliveries.
func (a *app) explainMessage(ctx context.Context, hub *admin.Client, id string) error {
	m, err := hub.Message(ctx, id, false)
	if err != nil {
		return a.hubError(err, "`parley conversation` lists the conversations")
	}
	if a.json {
		return a.print(m, "")
	}
	line := a.labels(12, 400)
	line("message", "%s", m.ID)
	line("recorded", "%s", a.when(m.Time))
	line("kind", "%s", kindAndSkill(&m.Summary))
	line("from", "%s (%s)", clean(m.From), proof(&m.Summary))
	line("conversation", "%s", m.Conversation)
	if !m.InReplyTo.IsZero() {
		line("about", "%s", m.InReplyTo)
	}
	for _, d := range m.Deliveries {
		line("to", "%s: %s after %s", clean(d.To), d.State, plural(d.Attempts, "attempt", "attempts"))
		for _, x := range a.attempts(m.Attempts[d.To], m.Omitted[d.To]) {
			line("  attempt", "%s", x)
		}
		for _, l := range d.Losses {
			line("  lost", "%s", l)
		}
		if d.Error != nil {
			line("  reason", "%s: %s", d.Error.Code, d.Error.Text)
			line("  cause", "%s", cause(d.To, problemOf(d.Error), tries(&d)))
			line("  advice", "%s", m.Advice[d.To])
		}
		for _, r := range m.Recipients {
			if r.Name == d.To {
				line("  now", "%s %s", clean(r.Name), a.stateWords(&r.AgentState))
			}
		}
	}
	for _, d := range m.Admissions {
		line("rule", "%s: %s", clean(d.To), d.Text)
	}
	if m.Error != nil {
		agent := m.To
		if m.Kind == parley.Failure {
			agent = m.From
		}
		line("failed", "%s: %s", m.Error.Code, m.Error.Text)
		line("cause", "%s", cause(agent, problemOf(m.Error), ""))
		line("advice", "%s", m.Advice[""])
	}
	return nil
}

func (a *app) explain(r admin.Refusal) {
	line := a.labels(10, 400)
	line("refused", "%s at the check %s", a.when(r.Time), r.Step)
	line("protocol", "%s", r.Protocol)
	line("source", "%s", r.Source)
	proof := "a claim, not proved"
	if r.Assurance > parley.Unsigned {
		proof = "proved: " + r.Assurance.String()
		if r.KeyID != "" {
			proof += " by key " + r.KeyID
		}
	}
	if r.Claim != "" {
		line("from", "%s (%s)", r.Claim, proof)
	}
	if r.Agent != "" && r.Agent != r.To {
		r.To = r.Agent + " (" + r.To + ")"
	}
	line("to", "%s", r.To)
	line("size", "%d bytes", r.Size)
	for _, c := range r.Checks {
		mark := "ok"
		if !c.OK {
			mark = "FAILED"
		}
		line("check", "%s %s %s", mark, c.Name, c.Detail)
	}
	line("told", "%s: %s", r.Code, r.Text)
	line("cause", "%s", r.Cause)
	line("detail", "%s", r.Detail)
	line("advice", "%s", cmp.Or(r.Advice, "there is no advice for this refusal; see the cause above"))
}

// cause says in plain words who refused or failed.
var cause = admin.Cause

// problemOf is a reason of the index as a problem.
func problemOf(r *index.Reason) *admin.Problem {
	return &admin.Problem{Code: r.Code, Text: r.Text, Source: r.Source, Reason: r.Reason, Detail: r.Detail}
}

// brief is a reason in one line of a list: the code, and the detail or else the text.
func brief(r *index.Reason, limit int) string {
	return fmt.Sprintf("%s: %s", r.Code, short(cmp.Or(r.Detail, r.Text), limit))
}

// tries says how often a delivery was tried, and since when: " (3 attempts since 14:02:05)"; "" for one attempt.
func tries(d *index.Delivery) string {
	if d.Attempts < 2 {
		return ""
	}
	since := d.Opened
	for _, s := range d.Steps {
		if s.State == parley.Delivering {
			since = s.Time
			break
		}
	}
	return fmt.Sprintf(" (%d attempts since %s)", d.Attempts, stamp(since))
}
