package uagents

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Protocol groups models: the messages that may be sent, and their answers.
type Protocol struct {
	Name         string
	Version      string // default 0.1.0
	Interactions []Interaction
	// Roles names the requests that each role handles. Each role has its own
	// manifest, and so its own digest.
	Roles map[string][]*Model
}

// An Interaction is a request and its possible answers.
type Interaction struct {
	Request   *Model
	Responses []*Model
}

// Manifest describes the protocol, or the part of it that a role handles; an
// empty role means the whole. The error is ErrManifest.
func (p *Protocol) Manifest(role string) (*Manifest, error) {
	fail := func(format string, args ...any) (*Manifest, error) {
		return nil, ErrManifest.Because(fmt.Errorf(format, args...))
	}
	var only []*Model
	if role != "" {
		models, ok := p.Roles[role]
		if !ok {
			return fail("no role %q", role)
		}
		only = models
	}
	models, interactions := list(), list()
	known := map[string]bool{}
	add := func(m *Model) error {
		if m == nil {
			return errors.New("nil model")
		}
		if m.err != nil {
			return m.err
		}
		if !known[m.digest] {
			known[m.digest] = true
			n := object("digest", m.digest)
			n.set("schema", m.schema)
			models.vals = append(models.vals, n)
		}
		return nil
	}
	for _, i := range p.Interactions {
		if role != "" && !slices.ContainsFunc(only, func(m *Model) bool { return m.digest == i.Request.digest }) {
			continue
		}
		if err := add(i.Request); err != nil {
			return fail("request: %w", err)
		}
		var digests []string
		for _, m := range i.Responses {
			if err := add(m); err != nil {
				return fail("response: %w", err)
			}
			digests = append(digests, m.digest)
		}
		slices.Sort(digests)
		n := object("type", "normal")
		n.set("request", str(i.Request.digest))
		n.set("responses", texts(slices.Compact(digests)))
		interactions.vals = append(interactions.vals, n)
	}
	n := object("version", "1.0")
	metadata := object("name", p.Name)
	metadata.set("version", str(cmp.Or(p.Version, "0.1.0")))
	n.set("metadata", metadata)
	n.set("models", models)
	n.set("interactions", interactions)
	m, err := manifestOfNode(n)
	if err != nil {
		return nil, err
	}
	metadata.set("digest", str(m.digest))
	return m, nil
}

// A Manifest is the published description of a protocol.
type Manifest struct {
	root   *node
	digest string
	models []*Model
}

// ParseManifest reads a manifest's JSON. Its digest is computed;
// [Manifest.Verify] compares it with the claimed one. The error is ErrManifest.
func ParseManifest(b []byte) (*Manifest, error) {
	n, err := parse(b)
	if err != nil {
		return nil, ErrManifest.Because(err)
	}
	return manifestOfNode(n)
}

func manifestOfNode(n *node) (*Manifest, error) {
	fail := func(text string) (*Manifest, error) { return nil, ErrManifest.Because(errors.New(text)) }
	version, models, interactions := n.get("version"), n.get("models"), n.get("interactions")
	if version == nil || models == nil || models.kind != '[' || interactions == nil || interactions.kind != '[' {
		return fail("version, models and interactions are required")
	}
	m := &Manifest{root: n}
	for _, one := range models.vals {
		if one.get("digest").str() == "" {
			return fail("a model has no digest")
		}
		schema := one.get("schema")
		if schema == nil {
			return fail("a model has no schema")
		}
		model, err := modelOfNode(schema)
		if err != nil {
			return nil, ErrManifest.Because(err)
		}
		m.models = append(m.models, model)
	}
	for _, one := range interactions.vals {
		responses := one.get("responses")
		if one.get("request").str() == "" || responses == nil || responses.kind != '[' {
			return fail("an interaction needs a request and responses")
		}
		for _, r := range responses.vals {
			if r.kind != '"' {
				return fail("a response is the digest of a model")
			}
		}
	}
	clean := &node{kind: '{'}
	clean.set("version", version)
	clean.set("metadata", &node{kind: '{'})
	clean.set("models", sortedBy(models, "digest"))
	clean.set("interactions", sortedBy(interactions, "request"))
	var err error
	if m.digest, err = digestOf("proto:", clean); err != nil {
		return nil, ErrManifest.Because(err)
	}
	return m, nil
}

func sortedBy(n *node, member string) *node {
	out := list(slices.Clone(n.vals)...)
	slices.SortStableFunc(out.vals, func(x, y *node) int {
		return strings.Compare(x.get(member).str(), y.get(member).str())
	})
	return out
}

// Digest is proto: and the SHA-256 of the manifest without its metadata. The order of
// responses matters, that of models and interactions does not.
func (m *Manifest) Digest() string { return m.digest }

// Bound is the manifest with only the members that its digest binds: the models and
// interactions. The digest does not prove name and version, so Bound empties them.
func (m *Manifest) Bound() *Manifest {
	metadata := object("name", "")
	metadata.set("version", str(""))
	metadata.set("digest", str(m.digest))
	n := &node{kind: '{'}
	n.set("version", m.root.get("version"))
	n.set("metadata", metadata)
	n.set("models", m.root.get("models"))
	n.set("interactions", m.root.get("interactions"))
	return &Manifest{root: n, digest: m.digest, models: m.models}
}

// Name is the protocol's name as the manifest claims it.
func (m *Manifest) Name() string { return m.root.get("metadata").get("name").str() }

// Version is the protocol's version as the manifest claims it.
func (m *Manifest) Version() string { return m.root.get("metadata").get("version").str() }

// Models gives the models, with digests computed from their schemas.
func (m *Manifest) Models() []*Model { return slices.Clone(m.models) }

// Model is the model of a digest, or nil.
func (m *Manifest) Model(digest string) *Model {
	for _, one := range m.models {
		if one.digest == digest {
			return one
		}
	}
	return nil
}

// Requests maps the digest of each message that starts an interaction to the digests
// of its answers.
func (m *Manifest) Requests() map[string][]string {
	out := map[string][]string{}
	for _, one := range m.root.get("interactions").vals {
		responses := []string{}
		for _, r := range one.get("responses").vals {
			responses = append(responses, r.str())
		}
		out[one.get("request").str()] = responses
	}
	return out
}

// Verify checks the manifest's own claims: each model's digest is that of its schema,
// every interaction names models of the manifest, and the digest in its metadata, if
// any, is the computed one. UAG-062. The error is
// ErrManifest.
func (m *Manifest) Verify() error {
	fail := func(format string, args ...any) error {
		return ErrManifest.Because(fmt.Errorf(format, args...))
	}
	for i, one := range m.root.get("models").vals {
		if claimed := one.get("digest").str(); claimed != m.models[i].digest {
			return fail("model %s claims digest %s, its schema has %s", m.models[i].name, claimed, m.models[i].digest)
		}
	}
	for request, responses := range m.Requests() {
		for _, d := range append(responses, request) {
			if m.Model(d) == nil {
				return fail("no model %s", d)
			}
		}
	}
	if claimed := m.root.get("metadata").get("digest"); claimed != nil && claimed.str() != m.digest {
		return fail("manifest claims digest %s, it has %s", claimed.str(), m.digest)
	}
	return nil
}

// JSON is the published form of the manifest.
func (m *Manifest) JSON() ([]byte, error) { return pyDefault.write(nil, m.root) }

// isLooseProtocolDigest is the reference's own test: 70 characters that begin with
// proto:. [IsProtocolDigest] is the strict one.
func isLooseProtocolDigest(s string) bool {
	return len([]rune(s)) == 70 && s[:6] == "proto:"
}
