package a2a

import (
	"context"
	"errors"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
)

// way says how messages get to an agent elsewhere: it reads the agent's card.
func (b *Binding) way(ctx context.Context, e *directory.Entry, id parley.Identity) hub.Way {
	w := hub.Way{How: "the hub calls it"}
	p, err := b.peerOf(e.Name, id.URL)
	if err != nil {
		w.How = "it calls the hub; the hub cannot call it"
		return w
	}
	w.Addresses = []string{id.URL}
	card, err := b.fetchCard(ctx, p, b.connectionOf(p), nil)
	switch {
	case err != nil:
		fault := noCard(e.Name, err)
		detail := fault.Detail
		if detail == "" {
			detail = err.Error()
		}
		w.Fail("card", inspecting(strings.TrimSuffix(id.URL, "/")+CardPath), "%s", detail)
		p.mu.Lock()
		card = p.card
		p.mu.Unlock()
		if card == nil {
			return w
		}
	case card.Unproved != nil:
		w.Fail("card", inspecting(card.URL), "%s; the card is not used: %s", card.URL, card.Unproved)
	case card.Signed:
		w.OK("card", "%s, signed", card.URL)
	default:
		w.OK("card", "%s, not signed by a key that the hub knows", card.URL)
	}
	w.Addresses = []string{card.Interface.URL}
	streams := "without streams"
	if card.Card.Capabilities.Streaming {
		streams = "with streams"
	}
	w.OK("interface", "%s in version %s, %s", card.Interface.ProtocolBinding, card.Version, streams)
	if _, unknown := card.extension(); unknown != "" {
		w.Fail("extension", "", "the agent requires the extension %s, which the hub does not know", unknown)
	}
	b.credentialsWay(&w, p, card)
	p.mu.Lock()
	called, failed := p.called, p.failed
	p.mu.Unlock()
	switch {
	case failed != nil:
		_, detail := bridge.NetworkFault(failed)
		if detail == "" {
			detail = failed.Error()
		}
		w.Warn("calls", "", "the last call failed: %s", detail)
	case called.IsZero():
		w.Skip("calls", "none since the hub started")
	default:
		w.OK("calls", "it answered the last one at %s", hub.Stamp(called))
	}
	b.outMu.Lock()
	tasks := p.tasks
	b.outMu.Unlock()
	if tasks >= maxTasks {
		w.Warn("tasks", "", "it works on %d requests of this hub, the most at once; further ones wait", tasks)
	} else {
		w.OK("tasks", "it works on %d requests of this hub, of at most %d", tasks, maxTasks)
	}
	return w
}

// inspecting gives the command that explains the card at a URL.
func inspecting(at string) string { return "curl -s " + at + " | parley inspect -" }

// credentialsWay says what the hub shows to an agent, and whether its card asks for more.
func (b *Binding) credentialsWay(w *hub.Way, p *peer, card *RemoteCard) {
	const fix = "set token_file, or other credentials, for the agent"
	c := b.credentialsOf(p.name)
	u, err := p.url.Parse(card.Interface.URL)
	elsewhere := err == nil && netguard.Origin(u) != netguard.Origin(p.url)
	needs := len(card.Card.SecurityRequirements) > 0
	switch {
	case c.Empty() && needs:
		w.Warn("credentials", fix, "its card asks for some, and the hub has none")
	case c.Empty():
		w.OK("credentials", "none; its card asks for none")
	case elsewhere:
		w.Warn("credentials", "add the agent with the URL of "+netguard.Origin(u),
			"its interface has another origin than %s: the hub shows its %s to that one alone", netguard.Origin(p.url), c.Kinds())
	default:
		w.OK("credentials", "%s", c.Kinds())
	}
	var token *peerauth.TokenError
	p.mu.Lock()
	failed := p.failed
	p.mu.Unlock()
	if errors.As(failed, &token) {
		w.Fail("token", "check the token endpoint, client ID and secret", "%s", clipped(token.Error(), maxErrorText))
	}
}
