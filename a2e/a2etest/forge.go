package a2etest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/parley-hub/parley/a2e"
)

// A Forgery is the lines that an agent sends, and what a host must answer to the last.
type Forgery struct {
	Name  string // what is wrong with it
	Lines []string
	Err   error // that an [a2e.Host] answers, for errors.Is; nil: it does as asked
}

// Forgeries gives the lines of agents, for a host with the capability "tools". The first
// are genuine: those of the agent with the secret token.
func Forgeries(token string) []Forgery {
	hello := Handshake(token)
	line := func(members string) string { return `{"type":"tool/list/req","id":"2"` + members + `}` }
	return []Forgery{
		{"genuine", []string{hello, line("")}, nil},
		{"before the handshake", []string{line("")}, a2e.ErrNoHandshake},
		{"with another token", []string{Handshake(token + "x")}, a2e.ErrUnknownKey},
		{"without a token", []string{Handshake("")}, a2e.ErrUnknownKey},
		{"cut off", []string{hello, `{"type":"tool/list/req"`}, a2e.ErrParse},
		{"that are no object", []string{hello, `["tool/list/req"]`}, a2e.ErrParse},
		{"not in UTF-8", []string{hello, line(",\"query\":\"\xff\"")}, a2e.ErrParse},
		{"of another version", []string{hello, line(`,"version":"2.0"`)}, a2e.ErrVersion},
		{"of two versions", []string{hello, line(`,"a2e":"1.0","version":"1.1"`)}, a2e.ErrVersion},
		{"of an unknown type", []string{hello, `{"type":"tool/steal/req","id":"2"}`}, a2e.ErrUnknownType},
		{"with a member of another kind", []string{hello, line(`,"filter_tags":"all"`)}, a2e.ErrSchema},
		{"without a required member", []string{hello, `{"type":"tool/call/req","id":"2","tool_name":"x"}`}, a2e.ErrSchema},
		{"for a tool that there is not", []string{hello,
			`{"type":"tool/call/req","id":"2","tool_name":"no-such-tool","arguments":{}}`}, a2e.ErrUnknownTool},
	}
}

// Handshake is the first line of an agent.
func Handshake(token string) string {
	b, _ := json.Marshal(token) // every string can be encoded
	return fmt.Sprintf(`{"type":"handshake/req","id":"1","agent_caps":["tools"],"auth_token":%s}`, b)
}

// Exchange sends lines to a host as one agent would, and gives its frames. The error is
// what the host answered to the last line: an [*a2e.Error], or nil.
func Exchange(ctx context.Context, h *a2e.Host, lines ...string) ([]*a2e.Envelope, error) {
	var out strings.Builder
	if err := h.ServeStdio(ctx, strings.NewReader(strings.Join(lines, "\n")+"\n"), &out); err != nil {
		return nil, err
	}
	var frames []*a2e.Envelope
	for line := range strings.Lines(out.String()) {
		m, err := a2e.Decode([]byte(strings.TrimSpace(line)))
		if err != nil {
			return nil, fmt.Errorf("a2etest: the host said %q: %w", line, err)
		}
		if m.Class == a2e.ClassResponse {
			frames = append(frames, m)
		}
	}
	if len(frames) == 0 {
		return nil, errors.New("a2etest: the host answered nothing")
	}
	last := frames[len(frames)-1]
	return frames, refusal(last)
}

// refusal gives the error that a frame reports.
func refusal(m *a2e.Envelope) error {
	var detail struct{ Reason string }
	switch m.Type {
	case "error":
		_ = json.Unmarshal(m.Get("detail"), &detail) // it may have none
		return &a2e.Error{Code: a2e.Code(m.Str("code")), Text: m.Str("message"), Reason: detail.Reason}
	case "handshake/resp":
		if !m.Bool("ok") {
			return &a2e.Error{Code: a2e.Unauthorized, Reason: m.Str("reason")}
		}
	}
	return nil
}
