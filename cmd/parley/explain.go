package main

import (
	"cmp"
	"context"

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
state of the delivery and what the translation into its protocol lost.`,
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
				return a.print(struct {
					admin.Refusal
					Advice string `json:"advice"`
				}{r, advice(r)}, "")
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
	for _, d := range m.Deliveries {
		line("to", "%s: %s after %s", clean(d.To), d.State, plural(d.Attempts, "attempt", "attempts"))
		for _, l := range d.Losses {
			line("  lost", "%s", l)
		}
		if d.Error != nil {
			line("  reason", "%s: %s", d.Error.Code, d.Error.Text)
		}
		for _, r := range m.Recipients {
			if r.Name == d.To {
				line("  now", "%s %s", clean(r.Name), stateWords(&r.AgentState))
			}
		}
	}
	if m.Error != nil {
		line("failed", "%s: %s", m.Error.Code, m.Error.Text)
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
	line("advice", "%s", advice(r))
}

// apiAdvice is the advice for the failed checks of the admin API.
var apiAdvice = map[string]string{
	"token": "send Authorization: Bearer with the secret of one of the hub's tokens: `parley tokens` lists them, " +
		"`parley tokens add NAME` issues one",
	"origin": "call the admin API by its IP address or localhost, and not from a web page of another origin",
}

// adviceFor is the advice for an error code.
var adviceFor = map[parley.Code]string{
	parley.Malformed:       "`parley inspect` shows the error in the message",
	parley.TooLarge:        "send less, or raise limits.body",
	parley.Unauthenticated: "the agent needs more proof than the message has: sign it, or lower policy.assurance",
	parley.Stale:           "set the sender's clock (NTP), and sign each message when it is sent",
	parley.Replayed:        "the hub has this message already; send a new one with a new nonce or id",
	parley.Forbidden:       "let an [[allow]] rule of the configuration permit this sender to call this agent",
	parley.UnknownAgent: "`parley agents` lists the agents; an agent in the list may not be exposed in the " +
		"sender's protocol: `parley agents expose NAME PROTOCOL`",
	parley.UnknownSkill:   "`parley agents show NAME` lists the agent's skills",
	parley.InvalidContent: "make the content fit the skill's schema, which the error shows",
	parley.Unsupported:    "the recipient's protocol cannot carry this; send it in another form",
	parley.RateLimited:    "send more slowly, or raise limits.sender_rate",
	parley.Loop:           "two hubs route to each other: remove one of the routes",
	parley.Conflict:       "another message or action changed the state first; look at it and try again",
	parley.Unavailable:    "try again; `parley agents show NAME` shows whether the agent is paused or has no address",
	parley.NoSpace:        "free space on the disk of the data directory; the hub then continues by itself",
	parley.TimedOut:       "wait longer (--wait); `parley doctor NAME` checks whether the agent can be reached",
	parley.Cancelled:      "the sender cancelled it",
	parley.Rejected:       "the recipient refused it: its text has the reason",
	parley.HandlerFailed:  "the recipient failed while working on it: its own log has the cause",
	parley.OutcomeUnknown: "the recipient may have received it; check there before you retry: `parley dead`",
	parley.Internal:       "the hub's log has the cause; if it is a fault of Parley, report it with this output",
}

// advice is one sentence on how to fix a refusal.
func advice(r admin.Refusal) string {
	steps := apiAdvice
	if p := protocolNamed(r.Protocol); p != nil {
		steps = p.advice
	} else if r.Protocol != "api" {
		steps = nil
	}
	return cmp.Or(steps[r.Step], steps[firstFailed(r)], adviceFor[r.Code],
		"there is no advice for this refusal; see the cause above")
}

func firstFailed(r admin.Refusal) string {
	for _, c := range r.Checks {
		if !c.OK {
			return c.Name
		}
	}
	return ""
}
