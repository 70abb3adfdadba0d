package uagents

import (
	"context"
	"time"
)

// A Record is the entry of an agent in the Almanac.
type Record struct {
	Network    string // agent or test-agent
	Address    string
	Endpoints  []Endpoint
	Protocols  []string
	Metadata   []byte // JSON object, or nil
	Active     bool
	Expires    time.Time
	Registered uint64 // timestamp of the last registration, Unix seconds
	Updated    uint64 // timestamp of the last status update
	Signed     []byte // SHA-256 of the signed text of the last registration
}

// A Domain is a name that stands for agents.
type Domain struct {
	Name    string
	Status  string // Registered, Pending, Checking, Updating, Deleting or Failed
	Expires time.Time
	Agents  []DomainAgent
}

// A DomainAgent is one agent of a name, chosen by weight.
type DomainAgent struct {
	Address string
	Weight  float64
}

// An AlmanacStore keeps the registry.
type AlmanacStore interface {
	// Get gives a record, or nil.
	Get(ctx context.Context, network, address string) (*Record, error)
	// Update changes a record atomically: change gets the present record (nil for
	// none) and gives the new one, or an error, which Update returns without a
	// change. The error is ErrFull when there is no room for a new record.
	Update(ctx context.Context, network, address string, change func(old *Record) (*Record, error)) error
	// ByProtocol gives up to limit records that name a protocol digest.
	ByProtocol(ctx context.Context, digest string, limit int) ([]*Record, error)
	// Domain gives a name's entry, or nil. The operator gives the names.
	Domain(ctx context.Context, network, name string) (*Domain, error)
	// PutManifest keeps a manifest under its digest. The manifest holds only members
	// that the digest binds, see [Manifest.Bound].
	PutManifest(ctx context.Context, m *Manifest) error
	// Manifest gives a manifest, or nil.
	Manifest(ctx context.Context, digest string) (*Manifest, error)
}
