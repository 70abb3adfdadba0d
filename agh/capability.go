package agh

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

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

// capabilityWire is the JSON shape in the order of the digest, but that a
// document carries its digest after version.
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
		ContextNeeded:     w.ContextNeeded,
		ArtifactsExpected: w.ArtifactsExpected, ExecutionOutline: w.ExecutionOutline, Constraints: w.Constraints,
		Examples: w.Examples, Requirements: w.Requirements}, strings.TrimSpace(deref(w.Digest)), nil
}

// normal trims everything and drops blank list entries; it refuses what no
// capability may be.
func (c *Capability) normal() (*Capability, error) {
	n := &Capability{ID: strings.TrimSpace(c.ID), Summary: strings.TrimSpace(c.Summary),
		Outcome: strings.TrimSpace(c.Outcome),
		Version: strings.TrimSpace(c.Version), ContextNeeded: trimmed(c.ContextNeeded),
		ArtifactsExpected: trimmed(c.ArtifactsExpected),
		ExecutionOutline:  trimmed(c.ExecutionOutline), Constraints: trimmed(c.Constraints),
		Examples:     trimmed(c.Examples),
		Requirements: trimmed(c.Requirements)}
	for name, s := range map[string]string{"id": n.ID, "summary": n.Summary, "outcome": n.Outcome} {
		if s == "" {
			return nil, malformed(StepBody, "capability."+name, "must not be blank")
		}
	}
	if len(n.Requirements) != len(c.Requirements) {
		return nil, malformed(StepBody, "capability.requirements", "must not be blank")
	}
	sorted := slices.Clone(n.Requirements)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(n.Requirements) {
		return nil, malformed(StepBody, "capability.requirements", "must be unique")
	}
	return n, nil
}

func (c *Capability) encode() (jsonx.Value, error) {
	n, err := c.normal()
	if err != nil {
		return nil, err
	}
	digest, err := n.Digest()
	if err != nil {
		return nil, err
	}
	b, err := jsonx.Encode(capabilityWire{ID: n.ID, Summary: n.Summary, Outcome: n.Outcome, Version: ref(n.Version),
		Digest:        &digest,
		ContextNeeded: n.ContextNeeded, ArtifactsExpected: n.ArtifactsExpected, ExecutionOutline: n.ExecutionOutline,
		Constraints: n.Constraints, Examples: n.Examples, Requirements: n.Requirements})
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

// preimage gives the text that the digest is taken of: a compact JSON object
// with its members in the order of [Capability], empty ones left out, and
// requirements sorted by bytes. It is not RFC 8785; quotes, backslashes,
// controls, < > & and U+2028/9 are escaped, nothing else is.
func (c *Capability) preimage() ([]byte, error) {
	n, err := c.normal()
	if err != nil {
		return nil, err
	}
	slices.Sort(n.Requirements)
	b := []byte("{")
	str := func(name, s string) {
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, '"')
		b = append(b, name...)
		b = append(b, `":`...)
		b = appendEscaped(b, s)
	}
	str("id", n.ID)
	str("summary", n.Summary)
	str("outcome", n.Outcome)
	if n.Version != "" {
		str("version", n.Version)
	}
	for _, l := range []struct {
		name string
		list []string
	}{{"context_needed", n.ContextNeeded}, {"artifacts_expected", n.ArtifactsExpected}, {"execution_outline",
		n.ExecutionOutline},
		{"constraints", n.Constraints}, {"examples", n.Examples}, {"requirements", n.Requirements}} {
		if len(l.list) == 0 {
			continue
		}
		b = append(b, `,"`...)
		b = append(b, l.name...)
		b = append(b, `":[`...)
		for i, s := range l.list {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendEscaped(b, s)
		}
		b = append(b, ']')
	}
	return append(b, '}'), nil
}

func appendEscaped(b []byte, s string) []byte {
	b = append(b, '"')
	for _, r := range s {
		switch r {
		case '"', '\\':
			b = append(b, '\\', byte(r))
		case '\b':
			b = append(b, `\b`...)
		case '\f':
			b = append(b, `\f`...)
		case '\n':
			b = append(b, `\n`...)
		case '\r':
			b = append(b, `\r`...)
		case '\t':
			b = append(b, `\t`...)
		case '<', '>', '&', 0x2028, 0x2029:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			if r < ' ' {
				b = fmt.Appendf(b, `\u%04x`, r)
			} else {
				b = utf8.AppendRune(b, r)
			}
		}
	}
	return append(b, '"')
}
