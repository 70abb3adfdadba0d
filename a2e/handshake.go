package a2e

import (
	"errors"
	"slices"
	"time"
)

// handshake is A2E §8.1.
func (s *Session) handshake(m *Envelope) (resumed *Session, greeting []byte) {
	if s.h.Auth == nil {
		s.denied(m, "auth_failed", ErrUnknownKey)
		return nil, nil
	}
	who, err := s.h.Auth.Authenticate(s.ctx, Credentials{AgentID: m.Str("agent_id"), Token: m.Str("auth_token")})
	if err != nil {
		s.denied(m, "auth_failed", ErrUnknownKey.Because(err))
		return nil, nil
	}
	s.mu.Lock()
	state, was := s.state, s.identity.Name
	s.mu.Unlock()
	switch {
	case state >= StateDraining:
		s.denied(m, "server_error", ErrShuttingDown)
		return nil, nil
	case state == StateActive && was != who.Name:
		s.denied(m, "auth_failed", ErrUnknownKey)
		return nil, nil
	}
	caps := s.negotiate(m.Strings("agent_caps"), who)
	// A new connection may resume the session of a broken one: an extension, which
	// hosts and agents without it ignore.
	if id := m.Str("session_id"); id != "" && id != s.id && state == StateConnected && s.kind == transportConn {
		old, err := s.h.find(s.ctx, id, transportConn)
		if errors.Is(err, ErrNotLoaded) {
			s.close() // the agent retries; a new session would lose the frames and requests of the old one
			return nil, nil
		}
		if err == nil && old.resumable(who) {
			if greeting := old.accept(m, who, caps); greeting != nil {
				return old, greeting
			}
		}
	}
	if answer := s.accept(m, who, caps); answer != nil {
		_ = s.send(answer)
	}
	return nil, nil
}

func (s *Session) resumable(who Identity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state == StateActive && s.kind == transportConn && s.identity.Name == who.Name
}

// negotiate gives the requested capabilities that the host offers, in the order of the
// request, once each (A2E §8.1). Names beyond the enumeration would make the reference
// agent drop the frame, and are left out.
func (s *Session) negotiate(asked []string, who Identity) []string {
	caps := []string{}
	for _, c := range asked {
		if s.h.Capabilities[c] != nil && who.may(c) && !slices.Contains(caps, c) &&
			slices.Contains(capabilityNames, c) {
			caps = append(caps, c)
		}
	}
	return caps
}

// capabilityNames is the enumeration A2ECapability (A2E §6.15).
var capabilityNames = []string{"skill", "tools", "toolkits", "env", "proc", "memory", "learning", "chains",
	"multi_agent", "planning", "mcp", "test"}

// accept makes the session active and gives its answer; nil if the store refused the
// session.
func (s *Session) accept(m *Envelope, who Identity, caps []string) []byte {
	s.mu.Lock()
	if s.state == StateClosed { // evicted meanwhile
		s.mu.Unlock()
		return nil
	}
	if s.state == StateConnected {
		s.state = StateActive
	}
	s.identity, s.agentID, s.accepted = who, m.Str("agent_id"), caps
	s.failures = 0
	st := s.out.stream
	rec := SessionRecord{ID: s.id, Identity: who, AgentID: s.agentID, Accepted: caps, Opened: s.started}
	s.mu.Unlock()
	s.h.settled(s)
	if st != nil {
		s.proved(st.ctx)
	}
	if s.h.Store != nil {
		s.storeMu.Lock()
		rec.LastSeq = s.seq
		err := s.h.Store.Open(s.ctx, rec)
		s.storeMu.Unlock()
		if err != nil {
			s.lost(err)
			return nil
		}
	}
	return s.handshakeResp(m, caps, "")
}

// denied answers ok:false; too many denials end the session.
func (s *Session) denied(m *Envelope, reason string, e *Error) {
	s.h.refused(s, m, len(m.raw), e, false)
	_ = s.send(s.handshakeResp(m, nil, reason))
	s.mu.Lock()
	s.failures++
	over := s.state == StateConnected && s.failures >= s.h.limits.HandshakeTries
	s.mu.Unlock()
	if over {
		s.drain(s.h.limits.Hangup, false)
	}
}

func (s *Session) handshakeResp(m *Envelope, caps []string, reason string) []byte {
	f := appendHead(nil, "handshake/resp", NewID(), s.h.Now()).text("req_id", m.ID).text("session_id", s.id)
	f = append(f.name("accepted_caps"), '[')
	for i, c := range caps {
		if i > 0 {
			f = append(f, ',')
		}
		f = append(f, '{').text("capability", c).flag("enabled", true)
		f = append(s.h.appendMetadata(f.name("metadata"), c), '}')
	}
	f = append(f, ']').number("max_parallel", int64(s.h.limits.Parallel)).flag("ok", reason == "")
	return append(f.text("reason", reason), '}')
}

// appendMetadata adds this host's extensions to the one member that may hold any (A2E
// §8.1): ids are remembered, and sessions can be resumed. A provider may add its own
// members.
func (h *Host) appendMetadata(f encoder, capability string) encoder {
	f = append(f, '{').number("dedup_seconds", int64(h.limits.SeenFor/time.Second)).flag("resume", true)
	if d, ok := h.Capabilities[capability].(Describer); ok {
		if own, err := bodyOf(d.Describe()); err == nil {
			f = appendMembers(f, own, func(name string) bool { return name != "dedup_seconds" && name != "resume" })
		}
	}
	return append(f, '}')
}
