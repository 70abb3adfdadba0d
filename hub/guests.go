package hub

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/policy"
)

// isGuest reports whether the sender of a message is a guest: in the directory by its own
// registration, or not there and under the name of a guest. One with another name has a
// token or certificate of the operator.
func (h *Hub) isGuest(s *Submission) bool {
	if p := s.Message.Origin.Protocol; s.Vouched || p == "go" || p == "api" || p == "" {
		return false
	}
	from := s.Message.From
	if _, ok := h.c.Directory.Agent(from); !ok && !strings.HasPrefix(from, "guest/") {
		return false
	}
	return h.Guest(from)
}

// Guest reports whether a sender of that name is a guest.
func (h *Hub) Guest(name string) bool {
	e, ok := h.c.Directory.Agent(name)
	return !ok || e.Source == directory.FromGuest
}

// recordBytes is the disk space of a message beside its content: its record, those of
// its delivery, and its rows in the index.
const recordBytes = 2 << 10

// recordCost estimates the bytes written for a message. Its content is in the journal,
// and in the index as text and by words; large content also in the index's WAL until
// that is copied.
func recordCost(m *parley.Message) int {
	n := max(len(m.Origin.Raw), m.ContentSize())
	return recordBytes + 2*n + 2*max(0, n-4<<10)
}

// charge charges the record of a guest's message to the guests' budget, and vouches for
// any other sender. A refused message of a guest is recorded without its content.
func (h *Hub) charge(ctx context.Context, s *Submission, refused bool) *parley.Error {
	if !h.isGuest(s) {
		if !s.inside {
			policy.Vouch(ctx)
		}
		return nil
	}
	if refused {
		strip(s.Message)
	}
	return h.c.Guests.Write(policy.SourceOf(ctx), recordCost(s.Message))
}

// strip replaces the content of a message by its digest and size.
func strip(m *parley.Message) {
	size, sum := m.ContentSize(), sha256.New()
	if m.Origin.Raw != nil {
		size = len(m.Origin.Raw)
		sum.Write(m.Origin.Raw)
	} else {
		for _, p := range m.Parts {
			sum.Write(p.Data)
		}
	}
	digest := base64.StdEncoding.EncodeToString(sum.Sum(nil))
	m.Extensions = map[string]json.RawMessage{
		"parley": json.RawMessage(fmt.Sprintf(`{"digest":"sha-256=:%s:","size":%d}`, digest, size))}
	m.Parts, m.Origin.Raw, m.Origin.Header = nil, nil, nil
}
