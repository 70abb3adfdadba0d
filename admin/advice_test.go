package admin_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge"
)

// names matches what an advice must name: a command, a table or a key of the
// configuration, a variable, or a tool of the operating system.
var names = regexp.MustCompile("`parley [a-z]|\\[\\[?[a-z]+\\]|[a-z]+\\.[a-z_]+|PARLEY_TOKEN|NTP")

// TestAdviceForEveryCause looks at every pair of a cause and a protocol.
func TestAdviceForEveryCause(t *testing.T) {
	source := map[parley.Reason]parley.Source{}
	for _, r := range parley.Reasons() {
		source[r] = parley.ByPeer
	}
	for s, list := range map[parley.Source][]parley.Reason{
		parley.ByPolicy: {parley.NoSuchAgent, parley.NotExposed, parley.AssuranceLow, parley.NotAllowed, parley.RoleLow},
		parley.ByLimit: {parley.BodySize, parley.PartsNumber, parley.SenderRate, parley.UnknownRate, parley.PairRate,
			parley.GuestBudget, parley.MailboxFull, parley.OpenRequests, parley.PeerAnswerLarge},
		parley.ByHub: {parley.HubStops, parley.HubStorage, parley.HubKey},
		parley.ByNetwork: {parley.HostUnknown, parley.AddressGuard, parley.ConnectionRefused, parley.ConnectionLost,
			parley.NoRoute, parley.NoAnswer, parley.CertificateUnknown, parley.CertificateName, parley.CertificateExpired,
			parley.CertificateBad, parley.NotConnected, parley.NoAddress}} {
		for _, r := range list {
			source[r] = s
		}
	}
	for _, protocol := range append(slices.Clone(bridge.Protocols), "api", "") {
		seen := map[string]parley.Reason{}
		for _, r := range parley.Reasons() {
			at := admin.At{Protocol: protocol, Agent: "weather", Sender: "crew/scout"}
			text := admin.Advise(admin.Problem{Code: parley.Unavailable, Source: source[r], Reason: r}, at)
			switch other, taken := seen[text]; {
			case text == "":
				t.Errorf("%s in %q: no advice", r, protocol)
			case strings.ContainsAny(text, "{}"):
				t.Errorf("%s in %q: a name is missing: %s", r, protocol, text)
			case !names.MatchString(text):
				t.Errorf("%s in %q names no command and no setting: %s", r, protocol, text)
			case taken:
				t.Errorf("%s and %s in %q have the same advice: %s", r, other, protocol, text)
			}
			seen[text] = r
		}
	}
}

// TestAdvice reads single pieces of advice that differ by protocol or source.
func TestAdvice(t *testing.T) {
	for _, c := range []struct {
		name string
		p    admin.Problem
		at   admin.At
		want string
	}{
		{"the hub's own key", admin.Problem{Reason: parley.KeyUnknown, Source: parley.ByPeer},
			admin.At{Protocol: "samvad", Agent: "weather"}, "`parley keys export-public hub --protocol samvad`"},
		{"the stand-in's key", admin.Problem{Reason: parley.KeyUnknown, Source: parley.ByPeer},
			admin.At{Protocol: "asp", Agent: "weather", Sender: "scout"},
			"`parley keys export-public scout --protocol asp`"},
		{"a token in place of a key", admin.Problem{Reason: parley.KeyUnknown, Source: parley.ByPeer},
			admin.At{Protocol: "a2e", Agent: "weather"}, "agents.weather.a2e.token_file"},
		{"the other side's rate", admin.Problem{Code: parley.RateLimited, Reason: parley.PeerRate, Source: parley.ByPeer},
			admin.At{Protocol: "samvad", Agent: "weather"}, "this is weather's own rate limit"},
		{"the hub's rate", admin.Problem{Code: parley.RateLimited, Reason: parley.SenderRate, Source: parley.ByLimit},
			admin.At{Protocol: "samvad"}, "limits.sender_rate"},
		{"the pair's rate", admin.Problem{Code: parley.RateLimited, Reason: parley.PairRate, Source: parley.ByLimit},
			admin.At{Agent: "weather", Sender: "scout"}, "[[limit]] rule for scout and weather"},
		{"a role", admin.Problem{Reason: parley.PeerRole, Source: parley.ByPeer}, admin.At{Protocol: "asp"},
			"the role or trust score of SENDER's stand-in is too weak"},
		{"the way", admin.Problem{Reason: parley.ConnectionRefused, Source: parley.ByNetwork},
			admin.At{Agent: "weather"}, "`parley doctor weather` checks the way"},
		{"the guard", admin.Problem{Reason: parley.AddressGuard, Source: parley.ByNetwork}, admin.At{}, "network.allow"},
		{"a failed check", admin.Problem{Code: parley.Unauthenticated}, admin.At{Protocol: "samvad", Step: "verify",
			Checks: []admin.Check{{Name: "digest", OK: true}, {Name: "key"}}}, "`parley keys enroll AGENT --key BASE64`"},
		{"an A2A caller", admin.Problem{Code: parley.Unauthenticated}, admin.At{Protocol: "a2a", Step: "verify"},
			"`parley tokens add NAME --agent AGENT`"},
		{"an MCP client", admin.Problem{Code: parley.Unauthenticated}, admin.At{Protocol: "mcp", Step: "verify"},
			"agents.NAME.mcp.guests"},
		{"an MCP server that is not attached", admin.Problem{Reason: parley.NotConnected, Source: parley.ByNetwork},
			admin.At{Protocol: "mcp", Agent: "files"}, "`parley mcp attach files -- COMMAND`"},
		{"a code alone", admin.Problem{Code: parley.Loop}, admin.At{Protocol: "agh"}, "two hubs route to each other"},
		{"a name that a guest claims", admin.Problem{Reason: parley.NotAllowed, Source: parley.ByPolicy},
			admin.At{Agent: "weather", Sender: "x`; rm -r /"}, "lets SENDER call weather"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := admin.Advise(c.p, c.at); !strings.Contains(got, c.want) {
				t.Errorf("%q, want %q in it", got, c.want)
			}
		})
	}
}

// TestOutcomeUnknownIsLookedAt: a dead letter does not go on when the hub runs again, whatever stopped its attempt.
func TestOutcomeUnknownIsLookedAt(t *testing.T) {
	p := admin.Problem{Code: parley.OutcomeUnknown, Source: parley.ByHub, Reason: parley.HubStops}
	if text := admin.Advise(p, admin.At{Agent: "weather"}); !strings.Contains(text, "check there before you retry") {
		t.Error(text)
	}
	p.Code = parley.Unavailable
	if text := admin.Advise(p, admin.At{Agent: "weather"}); !strings.Contains(text, "the hub goes on") {
		t.Error(text)
	}
}
