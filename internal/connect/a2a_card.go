package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	wire "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"
	"github.com/go-jose/go-jose/v4"

	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/internal/inspect"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/jwks"
	"github.com/parley-hub/parley/internal/netguard"
)

// A2ASigned says what the signatures of a card prove, by the keys that its origin publishes.
func A2ASigned(ctx context.Context, transport http.RoundTripper, base string, raw []byte) string {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	c := &http.Client{Transport: transport, CheckRedirect: noRedirect}
	sets := map[string]jwks.Set{}
	card, err := bridge.VerifyCard(raw, func(s *bridge.CardSignature) []jose.JSONWebKey {
		if _, asked := sets[s.JKU]; !asked && origin(s.JKU) == origin(base) && len(sets) < 2 {
			sets[s.JKU], _ = jwks.Fetch(ctx, c, s.JKU) // keys that cannot be read are not known
		}
		return sets[s.JKU].Find(s.KeyID, jose.SignatureAlgorithm(s.Algorithm))
	})
	switch {
	case err != nil:
		return "its signatures are malformed"
	case len(card.Signatures) == 0:
		return "not signed"
	case card.Valid():
		return "signed by " + inspect.SignersOf(card) + ", as its origin publishes the key"
	case slices.ContainsFunc(card.Signatures, func(s bridge.CardSignature) bool { return s.Known }):
		return "WRONGLY signed: the key of " + inspect.SignersOf(card) + " did not sign what came"
	}
	return "signed by " + inspect.SignersOf(card) + ", which its origin does not publish: `parley keys enroll AGENT " +
		"--protocol a2a --key BASE64` vouches for a key"
}

// A2AVersions lists the versions that a card's interfaces speak.
func A2AVersions(card *wire.AgentCard) (out []string) {
	for _, i := range card.SupportedInterfaces {
		if v := clean(string(i.ProtocolVersion)); !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	if len(out) == 0 {
		return []string{"of no version: it lists no interface"}
	}
	return out
}

// NotACard says that something else than an A2A agent answers at a URL.
type NotACard struct {
	text    string
	Guarded bool // it wants credentials
}

func (e *NotACard) Error() string { return e.text }

const maxA2ACard = 1 << 20

// ReadA2ACard reads the card below a base URL. If there is none, the error says where one is.
func ReadA2ACard(ctx context.Context, transport http.RoundTripper, base, version string) (card *wire.AgentCard,
	raw []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	at := base + bridge.CardPath
	raw, status, err := getA2A(ctx, transport, at, version)
	if err != nil {
		return nil, nil, err
	}
	if status == http.StatusOK {
		card, err := parseA2ACard(raw)
		if err == nil {
			return card, raw, nil
		}
		return nil, raw, &NotACard{text: fmt.Sprintf("what is at %s is not an A2A card: %s\n        "+
			"`curl -s %s | parley inspect -` explains a card member by member", at, short(err.Error(), 200), at)}
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, nil, err
	}
	text := fmt.Sprintf("no A2A card at %s: HTTP %d", at, status)
	guarded := status == http.StatusUnauthorized || status == http.StatusForbidden
	switch root := u.Scheme + "://" + u.Host; {
	case guarded:
		text += "\n        the card itself wants credentials, which A2A clients do not have before they read it"
	case status >= 500:
		text += "\n        the server there fails now: look at its log, and try again"
	case root != base && isA2ACard(ctx, transport, root+bridge.CardPath):
		text += "\n        the card is at the root of its host: give the URL " + root
	case isSAMVADCard(ctx, transport, base+"/.well-known/agent.json"):
		text += "\n        a SAMVAD agent answers there, which is no A2A agent: give that URL to --samvad, or to " +
			"--protocol samvad"
	case isA2ACard(ctx, transport, base+"/.well-known/agent.json"):
		text += "\n        a card of a version before 0.3 is at " + base + "/.well-known/agent.json: the agent needs a " +
			"newer SDK"
	case status >= 300 && status < 400:
		text += "\n        a redirect to another host is not followed: give the URL to which it leads, without " +
			bridge.CardPath
	default:
		text += "\n        give the URL to which " + bridge.CardPath + " is added, not that of an interface"
		if strings.Contains(u.Path, bridge.Base) {
			text += "\n        at a Parley hub no agent has that name, or it is not exposed: parley agents expose NAME a2a, " +
				"and its other protocols"
		}
	}
	return nil, nil, &NotACard{text, guarded}
}

func isA2ACard(ctx context.Context, transport http.RoundTripper, at string) bool {
	raw, status, err := getA2A(ctx, transport, at, "")
	if err != nil || status != http.StatusOK {
		return false
	}
	_, err = parseA2ACard(raw)
	return err == nil
}

func isSAMVADCard(ctx context.Context, transport http.RoundTripper, at string) bool {
	raw, status, err := getA2A(ctx, transport, at, "")
	s := &inspect.Sample{Body: raw}
	return err == nil && status == http.StatusOK && s.Has("id", "publicKeys", "skills")
}

// parseA2ACard parses a card of 1.0 or 0.3. Names of members count exactly.
func parseA2ACard(raw []byte) (*wire.AgentCard, error) {
	var members map[string]jsonx.Value
	if err := jsonx.Decode(raw, &members); err != nil {
		return nil, err
	}
	if members["name"].Kind() != '"' || members["skills"].Kind() != '[' ||
		members["supportedInterfaces"] == nil && members["url"] == nil {
		return nil, errors.New("it lacks name, skills, or supportedInterfaces (0.3: url)")
	}
	card, err := a2av0.NewAgentCardParser()(raw)
	if err != nil {
		return nil, err
	}
	if members["supportedInterfaces"] == nil && inspect.Decoded(members["preferredTransport"]) == "" {
		// 0.3: JSON-RPC then
		card.SupportedInterfaces = append(card.SupportedInterfaces, &wire.AgentInterface{
			URL: inspect.Decoded(members["url"]), ProtocolBinding: wire.TransportProtocolJSONRPC,
			ProtocolVersion: wire.ProtocolVersion(cmp.Or(inspect.Decoded(members["protocolVersion"]), bridge.V03))})
	}
	card.SupportedInterfaces = slices.DeleteFunc(card.SupportedInterfaces, func(i *wire.AgentInterface) bool {
		return i == nil
	})
	for _, i := range card.SupportedInterfaces {
		i.ProtocolVersion = wire.ProtocolVersion(inspect.A2ARelease(string(i.ProtocolVersion)))
	}
	return card, nil
}

// getA2A reads a document. As the hub does, it follows redirects within one origin alone.
func getA2A(ctx context.Context, transport http.RoundTripper, at, version string) (body []byte, status int, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, 0, err
	}
	r.Header.Set("Accept", "application/json")
	if version != "" {
		r.Header.Set(wire.SvcParamVersion, version)
	}
	c := &http.Client{Transport: transport, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if len(via) > netguard.DefaultMaxRedirects || origin(r.URL.String()) != origin(at) {
			return http.ErrUseLastResponse
		}
		return nil
	}}
	resp, err := c.Do(r)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	body, err = netguard.ReadAll(resp.Body, maxA2ACard)
	return body, resp.StatusCode, err
}
