package uagents

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// An Endpoint is a URL at which an agent takes envelopes. Endpoints are chosen at
// random by weight. The reference divides by the sum of the weights, so that every
// weight sent is at least 1.
type Endpoint struct {
	URL    string
	Weight int64
}

// An Attestation is a signed statement to the Almanac: either a registration
// or, when Active is not nil, a status update (registration.py). The
// signature covers an absent timestamp or metadata as null; empty metadata differ from
// absent ones.
type Attestation struct {
	Identifier string // agent_identifier: agent://agent1…
	Signature  string // sig1…; empty: none
	Timestamp  Int    // Unix seconds, or null
	Protocols  []string
	Endpoints  []Endpoint
	Active     *bool // status update

	metadata *node
}

// Metadata is the registration's metadata as JSON: an object of texts, lists
// of texts and objects of texts; nil for none.
func (a *Attestation) Metadata() json.RawMessage {
	if a.metadata == nil {
		return nil
	}
	b, err := pyCompact.write(nil, a.metadata)
	if err != nil {
		return nil
	}
	return b
}

// SetMetadata takes metadata as JSON. The error is ErrAttestation.
func (a *Attestation) SetMetadata(v json.RawMessage) error {
	if jsonx.IsNull(jsonx.Value(v)) {
		a.metadata = nil
		return nil
	}
	n, err := parse(v)
	if err != nil || !isMetadata(n) {
		return ErrAttestation.Because(errors.New("metadata is not an object of texts"))
	}
	a.metadata = n
	return nil
}

func isMetadata(n *node) bool {
	noText := func(n *node) bool { return n.kind != '"' }
	return n.kind == '{' && !slices.ContainsFunc(n.vals, func(v *node) bool {
		return noText(v) && (v.kind != '[' && v.kind != '{' || slices.ContainsFunc(v.vals, noText))
	})
}

// NewRegistration is an unsigned registration of id's endpoints and protocols.
func NewRegistration(id *Identity, testnet bool, endpoints []Endpoint, protocols []string) *Attestation {
	return &Attestation{
		Identifier: id.Identifier(testnet), Protocols: protocols, Endpoints: endpoints,
		metadata: &node{kind: '{'},
	}
}

// NewStatus is an unsigned status update of id.
func NewStatus(id *Identity, testnet, active bool) *Attestation {
	return &Attestation{Identifier: id.Identifier(testnet), Active: &active}
}

// decodeAttestation reads the JSON of a status update or of a registration:
// agent_identifier (or its alias agent_address), protocols and endpoints
// required, weights whole numbers, unknown members ignored. The error is
// ErrAttestation.
func decodeAttestation(b []byte, status bool) (*Attestation, error) {
	n, err := parse(b)
	if err != nil {
		return nil, ErrAttestation.Because(err)
	}
	return attestationOf(n, status)
}

func attestationOf(n *node, status bool) (*Attestation, error) {
	fail := func(text string) (*Attestation, error) { return nil, ErrAttestation.Because(errors.New(text)) }
	if n.kind != '{' {
		return fail("not an object")
	}
	a := &Attestation{}
	name := cmp.Or(n.get("agent_identifier"), n.get("agent_address"))
	if name == nil || name.kind != '"' {
		return fail("agent_identifier is missing")
	}
	a.Identifier = name.text
	if sig := n.get("signature"); sig != nil && sig.kind != 'n' {
		if sig.kind != '"' {
			return fail("signature is not a text")
		}
		a.Signature = sig.text
	}
	var err error
	if a.Timestamp, err = intOf(orNull(n.get("timestamp"))); err != nil {
		return fail("timestamp is not a whole number")
	}
	if status {
		active, ok := asBool(orNull(n.get("is_active")))
		if !ok {
			return fail("is_active is missing")
		}
		a.Active = &active
		return a, nil
	}
	protocols, endpoints := n.get("protocols"), n.get("endpoints")
	if protocols == nil || protocols.kind != '[' || endpoints == nil || endpoints.kind != '[' {
		return fail("protocols and endpoints are required")
	}
	for _, p := range protocols.vals {
		if p.kind != '"' {
			return fail("a protocol is a text")
		}
		a.Protocols = append(a.Protocols, p.text)
	}
	for _, e := range endpoints.vals {
		url, weight := e.get("url"), e.get("weight")
		if url == nil || url.kind != '"' || weight == nil || weight.kind == 'n' {
			return fail("an endpoint has url and weight")
		}
		w, err := intOf(weight)
		if err != nil {
			return fail("a weight is a whole number")
		}
		i, err := strconv.ParseInt(string(w), 10, 64)
		if err != nil {
			return fail("a weight is a whole number of 64 bits")
		}
		a.Endpoints = append(a.Endpoints, Endpoint{url.text, i})
	}
	if m := n.get("metadata"); m != nil && m.kind != 'n' {
		if !isMetadata(m) {
			return fail("metadata is not an object of texts")
		}
		a.metadata = m
	}
	return a, nil
}

// intOf is [parseInt] of a node.
func intOf(n *node) (Int, error) {
	b, err := pyCompact.write(nil, n)
	if err != nil {
		return "", err
	}
	return parseInt(b)
}

// signedNode is the signed document: the sent one without its signature.
func (a *Attestation) signedNode() *node {
	n := object("agent_identifier", a.Identifier)
	if a.Timestamp.IsNull() {
		n.set("timestamp", null())
	} else {
		n.set("timestamp", &node{kind: '0', text: string(a.Timestamp)})
	}
	if a.Active != nil {
		n.set("is_active", boolean(*a.Active))
		return n
	}
	endpoints := list()
	for _, e := range a.Endpoints {
		endpoints.vals = append(endpoints.vals, endpointNode(e))
	}
	n.set("protocols", texts(a.Protocols))
	n.set("endpoints", endpoints)
	n.set("metadata", orNull(a.metadata))
	return n
}

func endpointNode(e Endpoint) *node {
	n := object("url", e.URL)
	n.set("weight", number(e.Weight))
	return n
}

// SignedText is the text that the signature covers: all members but the
// signature, sorted, compact, non-ASCII escaped.
func (a *Attestation) SignedText() ([]byte, error) { return pySigned.write(nil, a.signedNode()) }

// Sign stamps the attestation with the time and signs it.
func (a *Attestation) Sign(id *Identity, now time.Time) error {
	if id == nil {
		return ErrNoIdentity
	}
	a.Timestamp = Uint(uint64(max(0, now.Unix())))
	b, err := a.SignedText()
	if err != nil {
		return err
	}
	a.Signature, err = id.SignDigest(sha256.Sum256(b))
	return err
}

// VerifySignature checks that the agent named by the identifier signed the
// attestation. The registry judges freshness. The error is
// ErrUnsigned or one of [VerifyDigest].
func (a *Attestation) VerifySignature() error {
	if a.Signature == "" {
		return ErrUnsigned
	}
	id, err := resolveAddress(a.Identifier)
	if err != nil {
		return err
	}
	b, err := a.SignedText()
	if err != nil {
		return ErrAttestation.Because(err)
	}
	return VerifyDigest(id.Address, sha256.Sum256(b), a.Signature)
}

// Encode writes the attestation as JSON.
func (a *Attestation) Encode() ([]byte, error) {
	n := a.signedNode()
	n.set("signature", optional(a.Signature))
	return pyCompact.write(nil, n)
}
