package a2a

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2acompat/a2av0"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/source"
)

// The cards of the hub's agents (A2A 1.0, section 8). They are public and signed, in two
// forms: pure has the members of 1.0, hybrid those of 0.3 beside them.

const (
	// cardAge is how long others may use a card without asking again.
	cardAge = 5 * time.Minute
	// maxMadeCards bounds the cards in memory. Others are made anew for each request.
	maxMadeCards = 1024
)

// cardState is what the binding keeps about cards of both sides.
type cardState struct {
	mu   sync.Mutex
	made map[string]madeCard // by agent

	trust cardTrust
}

// A madeCard is an agent's card, and of what it was made.
type madeCard struct {
	entry   *directory.Entry // immutable, so the same entry gives the same card
	keys    string
	guests  bool
	schemes []bridge.CallerScheme

	pure, hybrid document
}

// fits reports whether the card would be made again as it is.
func (c *madeCard) fits(o *madeCard) bool {
	return c.entry == o.entry && c.keys == o.keys && c.guests == o.guests && slices.Equal(c.schemes, o.schemes)
}

// A document is bytes to serve, with their entity tag.
type document struct {
	body []byte
	tag  string
}

func newDocument(body []byte) document {
	sum := sha256.Sum256(body)
	return document{body, `"` + hex.EncodeToString(sum[:12]) + `"`}
}

// serveCard serves the public card of an agent (rules A2A-003 to A2A-007).
func (b *Binding) serveCard(w http.ResponseWriter, r *http.Request, agent string) {
	e, ok := b.c.Hub.Directory().Agent(agent)
	if !ok || !b.exposes(e) {
		http.NotFound(w, r)
		return
	}
	card, err := b.publicCard(e)
	if err != nil {
		b.c.Logger.Error("cannot make an agent's card", "agent", agent, "error", err)
		ref := b.c.Hub.Refuse(hub.Refusal{Protocol: Protocol, Source: source.Host(r.RemoteAddr), To: agent, Step: "card",
			Code: parley.Internal, Text: "internal error", Cause: err.Error()})
		w.Header().Set("Parley-Ref", ref)
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	d := card.hybrid
	if b.wantsPure(r) {
		d = card.pure
	}
	w.Header().Set("Vary", "A2A-Version")
	d.serve(w, r)
}

// wantsPure reports whether a client gets the pure form (rule A2A-005). A client that names
// no version, or one that nobody speaks yet, gets the form that all can read.
func (b *Binding) wantsPure(r *http.Request) bool {
	if b.c.CardForm != Negotiated {
		return b.c.CardForm == Pure
	}
	version := cmp.Or(r.Header.Get("A2A-Version"), r.URL.Query().Get("A2A-Version"))
	return version == V1 || strings.HasPrefix(version, V1+".") // a patch version says nothing (rule A2A-002)
}

// serve answers a request for a public document.
func (d document) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		h.Set("Access-Control-Allow-Methods", "GET, HEAD")
		h.Set("Access-Control-Allow-Headers", "A2A-Version, A2A-Extensions, If-None-Match")
		h.Set("Access-Control-Max-Age", "86400")
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		h.Set("Allow", "GET, HEAD, OPTIONS")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", fmt.Sprintf("public, max-age=%d", int(cardAge.Seconds())))
	h.Set("ETag", d.tag)
	h.Set("Access-Control-Expose-Headers", "ETag")
	if matches(r.Header.Values("If-None-Match"), d.tag) {
		h.Del("Content-Type")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", fmt.Sprint(len(d.body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(d.body) // on an error the client is gone
	}
}

// matches compares entity tags weakly (RFC 9110, section 13.1.2).
func matches(headers []string, tag string) bool {
	for _, list := range headers {
		for one := range strings.SplitSeq(list, ",") {
			if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
				return true
			}
		}
	}
	return false
}

// publicCard gives the signed card that everyone sees, from memory if nothing has changed.
func (b *Binding) publicCard(e *directory.Entry) (*madeCard, error) {
	if err := b.ensureCardKey(); err != nil {
		return nil, err
	}
	now := &madeCard{entry: e, keys: b.cardKeys(), guests: b.opensToGuests(e.Name), schemes: b.schemes()}
	b.cards.mu.Lock()
	made, ok := b.cards.made[e.Name]
	b.cards.mu.Unlock()
	if ok && made.fits(now) {
		return &made, nil
	}
	card := b.card(e, publicSkills(e))
	var err error
	if now.pure, now.hybrid, err = b.signedForms(card); err != nil {
		return nil, err
	}
	b.cards.mu.Lock()
	defer b.cards.mu.Unlock()
	if b.cards.made == nil {
		b.cards.made = map[string]madeCard{}
	}
	if _, ok := b.cards.made[e.Name]; !ok && len(b.cards.made) >= maxMadeCards {
		for name := range b.cards.made { // any one: it is made again when it is asked for
			delete(b.cards.made, name)
			break
		}
	}
	b.cards.made[e.Name] = *now
	return now, nil
}

func publicSkills(e *directory.Entry) []parley.SkillSpec {
	return slices.DeleteFunc(slices.Clone(e.Skills), func(s parley.SkillSpec) bool {
		return s.Access != "" && s.Access != parley.Public
	})
}

func (b *Binding) schemes() []bridge.CallerScheme {
	if b.c.Callers == nil {
		return nil
	}
	return b.c.Callers.Schemes()
}

// card makes the card of an agent with some of its skills. No required member is empty
// (rule A2A-006), and nothing else that readers leave out of what is signed, as far as A2A
// allows.
func (b *Binding) card(e *directory.Entry, skills []parley.SkillSpec) *protocol.AgentCard {
	at := b.AgentURL(e.Name)
	schemes := b.schemes()
	c := &protocol.AgentCard{
		Name: cmp.Or(e.Title, e.Name), Description: cmp.Or(e.Description, e.Title, e.Name), Version: cmp.Or(e.Version, "1"),
		SupportedInterfaces: []*protocol.AgentInterface{
			{URL: at, ProtocolBinding: protocol.TransportProtocolJSONRPC, ProtocolVersion: V1},
			{URL: at, ProtocolBinding: protocol.TransportProtocolHTTPJSON, ProtocolVersion: V1},
			{URL: at, ProtocolBinding: protocol.TransportProtocolJSONRPC, ProtocolVersion: V03},
		},
		Capabilities: protocol.AgentCapabilities{Streaming: true, PushNotifications: true,
			ExtendedAgentCard: len(schemes) > 0},
		DefaultInputModes: []string{mediaText, mediaJSON}, DefaultOutputModes: []string{mediaText, mediaJSON},
	}
	if b.c.GRPC != "" {
		c.SupportedInterfaces = append(c.SupportedInterfaces, &protocol.AgentInterface{URL: b.c.GRPC,
			ProtocolBinding: protocol.TransportProtocolGRPC, ProtocolVersion: V1, Tenant: e.Name})
	}
	ours := protocol.AgentExtension{URI: ExtensionURI,
		Description: "Skill, sender, assurance and more of a message in its metadata; the schemas of the skills are here."}
	schemas := map[string]any{}
	for _, s := range skills {
		c.Skills = append(c.Skills, cardSkill(s))
		if one := schemasOf(s); len(one) > 0 {
			schemas[s.ID] = one
		}
	}
	if len(c.Skills) == 0 {
		c.Skills = []protocol.AgentSkill{noSkill(len(e.Skills) > 0)}
	}
	if len(schemas) > 0 {
		ours.Params = map[string]any{"skills": schemas}
	}
	c.Capabilities.Extensions = []protocol.AgentExtension{ours}
	b.secure(c, schemes, b.opensToGuests(e.Name))
	return c
}

// secure says how callers prove who they are: by one of the schemes, or for an agent that
// is open to guests by none.
func (b *Binding) secure(c *protocol.AgentCard, schemes []bridge.CallerScheme, guests bool) {
	for _, s := range schemes {
		name := protocol.SecuritySchemeName(s.Name)
		var scheme protocol.SecurityScheme
		switch {
		case s.OpenID != "":
			scheme = protocol.OpenIDConnectSecurityScheme{OpenIDConnectURL: s.OpenID}
		case s.MTLS:
			// An object without members would be left out by some readers of what is signed.
			scheme = protocol.MutualTLSSecurityScheme{Description: "a certificate that the operator of the hub knows"}
		default:
			scheme = protocol.HTTPAuthSecurityScheme{Scheme: "Bearer"}
		}
		if c.SecuritySchemes == nil {
			c.SecuritySchemes = protocol.NamedSecuritySchemes{}
		}
		c.SecuritySchemes[name] = scheme
		if !guests {
			c.SecurityRequirements = append(c.SecurityRequirements,
				protocol.SecurityRequirements{name: protocol.SecuritySchemeScopes{}})
		}
	}
}

const (
	mediaText = "text/plain"
	mediaJSON = "application/json"
)

func cardSkill(s parley.SkillSpec) protocol.AgentSkill {
	return protocol.AgentSkill{ID: s.ID, Name: cmp.Or(s.Name, s.ID), Description: cmp.Or(s.Description, s.Name, s.ID),
		Tags: []string{s.ID}, InputModes: modesOf(s.Input), OutputModes: modesOf(s.Output)}
}

// noSkill stands on a card for an agent whose skills are unknown, or all hidden: a card
// must have a skill.
func noSkill(hidden bool) protocol.AgentSkill {
	if hidden {
		return protocol.AgentSkill{ID: "extended-card", Name: "More for known callers", Tags: []string{"extended-card"},
			Description: "The extended card lists the skills that a caller may use."}
	}
	return protocol.AgentSkill{ID: "message", Name: "Any message", Tags: []string{"message"},
		Description: "The agent declares no skills: it takes any message."}
}

// modesOf gives the media types of a schema: text where the hub's content rule turns text
// into it, or there is no schema.
func modesOf(schema json.RawMessage) []string {
	var s struct {
		Type       any      `json:"type"`
		Required   []string `json:"required"`
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	switch err := json.Unmarshal(schema, &s); {
	case len(schema) == 0, err != nil: // a schema may be a boolean
	case s.Type == "string":
	case len(s.Required) == 1 && s.Properties[s.Required[0]].Type == "string":
	default:
		return []string{mediaJSON}
	}
	return []string{mediaText, mediaJSON}
}

// schemasOf gives the schemas of a skill as JSON trees, which all transports can carry.
func schemasOf(s parley.SkillSpec) map[string]any {
	out := map[string]any{}
	for name, raw := range map[string]json.RawMessage{"input": s.Input, "output": s.Output} {
		var tree any
		if len(raw) > 0 && json.Unmarshal(raw, &tree) == nil {
			out[name] = tree
		}
	}
	return out
}

// hybridForm gives a card in the form that clients of 0.3 read too.
func hybridForm(c *protocol.AgentCard) ([]byte, error) {
	producer, ok := a2av0.NewStaticAgentCardProducer(c).(interface {
		CardJSON(context.Context) ([]byte, error)
	})
	if !ok {
		return nil, fmt.Errorf("the SDK's producer of cards makes no JSON")
	}
	raw, err := producer.CardJSON(context.Background())
	if err != nil || len(c.SecuritySchemes) == 0 {
		return raw, err
	}
	return withBothSchemes(raw, c.SecuritySchemes)
}

// nestedSchemes are members in which the SDK's producer repeats a scheme. No version has them.
var nestedSchemes = []string{"apiKey", "http", "mutualTLS", "openIdConnect", "oauth2"}

// withBothSchemes gives each security scheme of a hybrid card its member of 1.0 beside those of
// 0.3: clients of 1.0 that name no version read them there.
func withBothSchemes(card []byte, schemes protocol.NamedSecuritySchemes) ([]byte, error) {
	pure, err := json.Marshal(schemes)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	var mixed, now map[string]map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(card, &members), json.Unmarshal(pure, &now)); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(members["securitySchemes"], &mixed); err != nil {
		return nil, err
	}
	for name, scheme := range mixed {
		for _, member := range nestedSchemes {
			delete(scheme, member)
		}
		maps.Copy(scheme, now[name])
	}
	if members["securitySchemes"], err = json.Marshal(mixed); err != nil {
		return nil, err
	}
	return json.Marshal(members)
}

// GetExtendedAgentCard implements a2asrv.RequestHandler: the card with what policy lets the
// caller use (rule A2A-100).
func (s service) GetExtendedAgentCard(ctx context.Context, r *protocol.GetExtendedAgentCardRequest) (
	*protocol.AgentCard, error) {
	c := callOf(ctx)
	if len(s.b.schemes()) == 0 {
		return nil, protocol.ErrUnsupportedOperation // the card does not declare it
	}
	if c.caller.Guest {
		return nil, parley.Refuse(parley.Unauthenticated, "the extended card is for callers that the hub knows")
	}
	e, ok := s.b.c.Hub.Directory().Agent(c.agent)
	if !ok || !s.b.exposes(e) {
		return nil, parley.Refuse(parley.UnknownAgent, "there is no such agent")
	}
	skills := slices.DeleteFunc(slices.Clone(e.Skills), func(k parley.SkillSpec) bool {
		return k.Access == parley.TrustedPeers && !slices.Contains(k.Peers, c.caller.Peer) ||
			!s.b.c.Hub.Visible(Protocol, c.caller.Name, e, k.ID)
	})
	return s.b.signedCard(s.b.card(e, skills), c.version)
}
