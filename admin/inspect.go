package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/readable"
	"github.com/parley-hub/parley/journal/index"
)

// A Workbench does for operators what needs the protocols, of which this package knows none. Every field may be unset.
type Workbench struct {
	// Inspect explains the pasted Input of an inspection; the time is set. It sends and keeps nothing.
	Inspect func(context.Context, Inspection) (*Inspected, error)
	// Doctor checks the ways to an agent of the directory, on behalf of an operator.
	Doctor func(ctx context.Context, by Actor, agent string) []DoctorStep
	// Losses foretells what a message loses on its way, and what the answers to it lose or cannot say.
	Losses func(Passage) (there, back []ForeseenLoss)
	// Joins says how agents of each protocol join.
	Joins []Join
	// Read completes an agent that is to be added with what it says of itself.
	Read func(context.Context, NewAgent) (AgentReading, error)
	// Paste gives the lines to enter at the side of an agent with these identities.
	Paste func(agent string, identities []Identity) []Paste
}

// An Inspection is a message to explain: pasted, or recorded. Nothing of it is sent or kept.
type Inspection struct {
	// Input is the pasted text: an envelope, an HTTP request, a curl command, an entry of a HAR file; or the id of a
	// message or the reference of a refusal, as ID is. At most MaxInspection bytes.
	Input []byte `json:"input,omitzero"`
	ID    string `json:"id,omitzero"` // of a recorded message, or its beginning; or the reference of a refusal

	At       time.Time `json:"at,omitzero"`       // judges freshness; zero: now, or the recorded time of arrival
	Protocol string    `json:"protocol,omitzero"` // insists on one; "": as recognised
	Self     string    `json:"self,omitzero"`     // identity to which the message should be addressed
	Keys     []string  `json:"keys,omitzero"`     // public keys of the sender, base64, besides those that the hub knows
	Card     []byte    `json:"card,omitzero"`     // the sender's card

	// Vector asks for the message as a test vector, and SignedBytes for the bytes that were signed.
	Vector      bool `json:"vector,omitzero"`
	SignedBytes bool `json:"signedBytes,omitzero"`

	// Recorded is the message that ID names, whose envelope is Input; set by [Admin].
	Recorded *Recorded `json:"-"`
}

// MaxInspection bounds [Inspection.Input] in bytes.
const MaxInspection = 1 << 20

// Inspected explains a message. Secrets in it are masked.
type Inspected struct {
	Protocol string           `json:"protocol"`
	Version  string           `json:"version,omitzero"` // of the protocol, as the message tells it
	Form     string           `json:"form"`             // of the input: "HTTP request", "curl command"
	Fields   []InspectedField `json:"fields"`
	Signed   []InspectedStep  `json:"signed"` // how the signed bytes come about
	Differs  []Difference     `json:"differs,omitzero"`
	Checks   []InspectedCheck `json:"checks"`        // in order
	Verified bool             `json:"verified"`      // every check was made, and none failed
	Sentence string           `json:"sentence"`      // why it fails, or what it proves
	Fix      string           `json:"fix,omitempty"` // what helps
	Curl     string           `json:"curl,omitzero"` // of an HTTP request: the same as a curl command

	// Vector is a file in the form of testdata/vectors, and SignedBytes is what the signature covers, if it covers bytes
	// that were found and that have no secret; only if the inspection asked for them.
	Vector      json.RawMessage `json:"vector,omitzero"`
	SignedBytes []byte          `json:"signedBytes,omitzero"`

	At      time.Time `json:"at,omitzero"`      // for which freshness was judged
	Message *Recorded `json:"message,omitzero"` // the recorded message that the id names
	Refusal *Refusal  `json:"refusal,omitzero"` // the refusal that the reference names
}

// An InspectedField is a field of a message, and its meaning.
type InspectedField struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	Meaning string `json:"meaning"`
}

// An InspectedStep is one step on the way to the signed bytes.
type InspectedStep struct {
	Step string `json:"step"`
	Text string `json:"text"`
}

// A Difference is a part of the signed bytes that is not what was sent: Part "@path", Signed "/agents/weather/…", Sent
// "/x/agents/weather/…".
type Difference struct {
	Part   string `json:"part"`
	Signed string `json:"signed"`
	Sent   string `json:"sent"`
}

// An InspectedCheck is one check of a message.
type InspectedCheck struct {
	Name   string     `json:"name"`
	State  CheckState `json:"state"`
	Detail string     `json:"detail,omitempty"`
}

// CheckState is the outcome of an [InspectedCheck].
type CheckState string

// The outcomes of a check.
const (
	CheckOK      CheckState = "ok"
	CheckFailed  CheckState = "failed"
	CheckSkipped CheckState = "not made" // an input for the check is missing
)

// Inspect explains a message that is pasted, or recorded. An observer sees no content of what is recorded.
func (a *Admin) Inspect(ctx context.Context, by Actor, i Inspection) (Inspected, error) {
	if err := by.may(Observe); err != nil {
		return Inspected{}, err
	}
	if len(i.Input) > MaxInspection {
		return Inspected{}, parley.Refuse(parley.TooLarge, "the message has %d bytes; at most %d are inspected",
			len(i.Input), MaxInspection)
	}
	leave, err := a.enter()
	if err != nil {
		return Inspected{}, err
	}
	defer leave()
	if name := cmp.Or(i.ID, nameIn(i.Input)); name != "" {
		return a.inspectRecorded(ctx, by, name, i)
	}
	if i.At.IsZero() {
		i.At = a.c.Now()
	}
	v, err := a.inspectInput(ctx, i)
	if err != nil {
		return Inspected{}, parley.Refuse(parley.Malformed, "%s", err)
	}
	return *v, nil
}

// nameIn gives the id or the reference that an input consists of; "" for any other input.
func nameIn(input []byte) string {
	s := string(bytes.TrimSpace(input[:min(len(input), 64)]))
	if len(s) < 8 || len(bytes.TrimSpace(input)) != len(s) ||
		strings.Trim(s, "-0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return ""
	}
	return s
}

func (a *Admin) inspectInput(ctx context.Context, i Inspection) (*Inspected, error) {
	if a.c.Workbench.Inspect == nil {
		return nil, parley.Refuse(parley.Unsupported, "this hub explains no messages")
	}
	return a.c.Workbench.Inspect(ctx, i)
}

// inspectRecorded explains a refusal, or else a recorded message, by the findings of the hub on receipt.
func (a *Admin) inspectRecorded(ctx context.Context, by Actor, name string, i Inspection) (Inspected, error) {
	if r, err := a.Refusal(by, name); err == nil {
		if i.Vector {
			return Inspected{}, parley.Refuse(parley.Unsupported, "%s is a refusal, and the hub keeps no refused envelopes: "+
				"paste the message", name)
		}
		return explainRefusal(r), nil
	} else if _, _, no := index.Range(name); no != nil {
		return Inspected{}, parley.Refuse(notFound, "%.40q is neither the reference of a refusal that is kept, nor the id "+
			"of a message; the hub keeps the latest refusals in memory only", name)
	}
	m, err := a.Message(ctx, by, name, true)
	if err != nil {
		return Inspected{}, err
	}
	out := Inspected{Form: "recorded message"}
	if len(m.Raw) > 0 {
		i.ID, i.Input, i.Recorded, i.Protocol, i.At = "", m.Raw, &m, m.Protocol, cmp.Or(i.At, m.Content.Received, m.Time)
		// What cannot be read again is still explained by the checks that were made.
		if v, err := a.inspectInput(ctx, i); err == nil {
			out.Version, out.Fields, out.Signed, out.At = v.Version, v.Fields, v.Signed, v.At
			out.Vector, out.SignedBytes = v.Vector, v.SignedBytes
		} else if i.Vector {
			return Inspected{}, parley.Refuse(parley.Unsupported, "%s", err)
		}
	} else if i.Vector {
		return Inspected{}, parley.Refuse(parley.Unsupported, "the envelope of %s is not kept, or needs the role read", m.ID)
	}
	out.Protocol, out.Message = m.Protocol, &m
	out.Verified = m.Assurance == parley.Signed
	if m.Content != nil {
		out.Checks = checksAsMade(m.Content.Origin.Checks)
	}
	out.Sentence, out.Fix = sentenceOn(&m)
	return out.whole(), nil
}

// whole gives the lists that are empty as [] in JSON.
func (v Inspected) whole() Inspected {
	if v.Fields == nil {
		v.Fields = []InspectedField{}
	}
	if v.Signed == nil {
		v.Signed = []InspectedStep{}
	}
	if v.Checks == nil {
		v.Checks = []InspectedCheck{}
	}
	return v
}

func checksAsMade(list []Check) (out []InspectedCheck) {
	for _, c := range list {
		state := CheckOK
		if !c.OK {
			state = CheckFailed
		}
		out = append(out, InspectedCheck{Name: c.Name, State: state, Detail: c.Detail})
	}
	return out
}

func explainRefusal(r Refusal) Inspected {
	v := Inspected{Protocol: r.Protocol, Form: "refusal", Checks: checksAsMade(r.Checks), Refusal: &r, At: r.Time,
		Fix: r.Advice, Sentence: "It was refused at the check " + r.Step + ": " + string(r.Code)}
	for _, text := range []string{r.Text, r.Cause, r.Detail} {
		if text != "" && !strings.Contains(v.Sentence, text) {
			v.Sentence += ": " + readable.Clean(text)
		}
	}
	v.Sentence += "."
	return v.whole()
}

// sentenceOn describes the result of a recorded message, and the remedy.
func sentenceOn(m *Recorded) (sentence, fix string) {
	about := cmp.Or(m.To, "several agents")
	sentence = fmt.Sprintf("This %s from %s to %s, %s, was recorded", m.Kind, m.From, about, m.Assurance)
	if m.Error != nil {
		agent := m.To
		if m.Kind == parley.Failure {
			agent = m.From
		}
		sentence += "; " + Cause(agent, problemOf(m.Error), "")
		fix = m.Advice[""]
	}
	for _, d := range m.Deliveries {
		sentence += fmt.Sprintf("; to %s: %s after %s", d.To, d.State, readable.Plural(d.Attempts, "attempt", "attempts"))
		if d.Error != nil {
			sentence += ", " + Cause(d.To, problemOf(d.Error), "")
			fix = cmp.Or(fix, m.Advice[d.To])
		}
	}
	return sentence + ".", fix
}

// problemOf is a reason of the index as a problem.
func problemOf(r *index.Reason) *Problem {
	return &Problem{Code: r.Code, Text: r.Text, Source: r.Source, Reason: r.Reason, Detail: r.Detail}
}

// Cause says in plain words who refused or failed at a message to an agent, and why.
// tried says how often it was tried, or is "".
func Cause(agent string, p *Problem, tried string) string {
	agent = readable.Clean(agent)
	text := fmt.Sprintf("%s: %s", p.Code, readable.Clean(cmp.Or(p.Text, "no reason was given")))
	switch p.Source {
	case parley.ByPolicy, parley.ByLimit:
		return "the hub refused: " + withDetail(text, p)
	case parley.ByHub:
		return "the hub failed: " + withDetail(text, p)
	case parley.ByNetwork:
		return agent + " cannot be reached: " + readable.Clean(cmp.Or(p.Detail, p.Text, string(p.Reason))) + tried
	case parley.ByPeer:
		what := " refused: "
		switch p.Reason {
		case parley.PeerFailed, parley.PeerAnswer:
			what = " failed: "
		case parley.PeerCancelled:
			what = " gave it up: "
		case parley.PeerSilent:
			what = " did not answer: "
		}
		return agent + what + withDetail(text, p)
	}
	return agent + " did not answer: " + text
}

// withDetail adds the detail of a problem to its text, unless the text says the same.
func withDetail(text string, p *Problem) string {
	if d := readable.Clean(p.Detail); d != "" && !strings.Contains(text, d) {
		return text + " (" + d + ")"
	}
	return text
}
