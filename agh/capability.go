package agh

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Capability is one capability document. Digest covers exactly these fields.
type Capability struct {
	ID                string
	Summary           string
	Outcome           string
	Version           string
	ContextNeeded     []string
	ArtifactsExpected []string
	ExecutionOutline  []string
	Constraints       []string
	Examples          []string
	Requirements      []string
}

// capabilityWire is the JSON shape, in the order of the digest's members. Only a
// document has Digest.
type capabilityWire struct {
	ID                string   `json:"id"`
	Summary           string   `json:"summary"`
	Outcome           string   `json:"outcome"`
	Version           *string  `json:"version,omitzero"`
	Digest            *string  `json:"digest,omitzero"`
	ContextNeeded     []string `json:"context_needed,omitempty"`
	ArtifactsExpected []string `json:"artifacts_expected,omitempty"`
	ExecutionOutline  []string `json:"execution_outline,omitempty"`
	Constraints       []string `json:"constraints,omitempty"`
	Examples          []string `json:"examples,omitempty"`
	Requirements      []string `json:"requirements,omitempty"`
}

// DecodeCapability reads one capability document. A digest in it must match.
func DecodeCapability(b []byte) (*Capability, error) {
	c, claimed, err := decodeCapability(b)
	if err != nil {
		return nil, err
	}
	digest, err := c.Digest()
	if err != nil {
		return nil, err
	}
	if claimed != "" && claimed != digest {
		return nil, refuse(ErrDigest, StepBody, "digest", "does not match the capability")
	}
	return c, nil
}

func decodeCapability(b []byte) (c *Capability, digest string, err error) {
	var w capabilityWire
	if err := jsonx.Decode(b, &w); err != nil {
		return nil, "", malformed(StepBody, "capability", "has not the shape of a capability").because(err)
	}
	return &Capability{ID: w.ID, Summary: w.Summary, Outcome: w.Outcome, Version: deref(w.Version),
		ContextNeeded: w.ContextNeeded, ArtifactsExpected: w.ArtifactsExpected, ExecutionOutline: w.ExecutionOutline,
		Constraints: w.Constraints, Examples: w.Examples, Requirements: w.Requirements,
	}, strings.TrimSpace(deref(w.Digest)), nil
}

// wire gives the JSON shape of c without its digest: trimmed, and without blank
// list entries. It refuses an invalid capability.
func (c *Capability) wire() (w capabilityWire, err error) {
	w = capabilityWire{ID: strings.TrimSpace(c.ID), Summary: strings.TrimSpace(c.Summary),
		Outcome: strings.TrimSpace(c.Outcome), Version: ref(strings.TrimSpace(c.Version)),
		ContextNeeded: trimmed(c.ContextNeeded), ArtifactsExpected: trimmed(c.ArtifactsExpected),
		ExecutionOutline: trimmed(c.ExecutionOutline), Constraints: trimmed(c.Constraints),
		Examples: trimmed(c.Examples), Requirements: trimmed(c.Requirements)}
	for name, s := range map[string]string{"id": w.ID, "summary": w.Summary, "outcome": w.Outcome} {
		if s == "" {
			return w, malformed(StepBody, "capability."+name, "must not be blank")
		}
	}
	if len(w.Requirements) != len(c.Requirements) {
		return w, malformed(StepBody, "capability.requirements", "must not be blank")
	}
	sorted := slices.Sorted(slices.Values(w.Requirements))
	if len(slices.Compact(sorted)) != len(w.Requirements) {
		return w, malformed(StepBody, "capability.requirements", "must be unique")
	}
	return w, nil
}

func (c *Capability) encode() (jsonx.Value, error) {
	w, err := c.wire()
	if err != nil {
		return nil, err
	}
	digest, err := c.Digest()
	if err != nil {
		return nil, err
	}
	w.Digest = &digest
	b, err := jsonx.Encode(w)
	if err != nil {
		return nil, malformed(StepBody, "capability", "is not valid text").because(err)
	}
	return b, nil
}

// Encode gives the document of c, with its digest.
func (c *Capability) Encode() ([]byte, error) {
	v, err := c.encode()
	return []byte(v), err
}

// Digest returns sha256: and the hex SHA-256 of a compact JSON object that has the
// members in the order of [Capability], without empty ones, and requirements
// sorted by bytes.
func (c *Capability) Digest() (string, error) {
	pre, err := c.preimage()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(pre)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// preimage gives the text that the digest covers. It is not RFC 8785 but the form
// of encoding/json: quotes, backslashes, controls, < > & and U+2028/9 are escaped,
// nothing else is.
func (c *Capability) preimage() ([]byte, error) {
	w, err := c.wire()
	if err != nil {
		return nil, err
	}
	slices.Sort(w.Requirements)
	return json.Marshal(w)
}
