package agh

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// SubjectPrefix begins every subject of the network.
const SubjectPrefix = "agh.network.v0"

// routeToken gives the token of a plain Peer ID in its subject: 32 hex digits
// of its SHA-256.
func routeToken(peerID string) (string, error) {
	peerID = strings.TrimSpace(peerID)
	if !ValidPeerID(peerID) {
		return "", badPeer(peerID)
	}
	sum := sha256.Sum256([]byte(peerID))
	return hex.EncodeToString(sum[:16]), nil
}

// BroadcastSubject gives agh.network.v0.<workspace_id>.<channel>.broadcast.
func BroadcastSubject(workspaceID, channel string) (string, error) {
	s, err := channelSubject(workspaceID, channel)
	if err != nil {
		return "", err
	}
	return s + "broadcast", nil
}

// PeerSubject gives agh.network.v0.<workspace_id>.<channel>.peer.<route token>
// of a plain Peer ID.
func PeerSubject(workspaceID, channel, peerID string) (string, error) {
	if _, err := routeToken(peerID); err != nil {
		return "", err
	}
	return VerifiedPeerSubject(workspaceID, channel, peerID)
}

// VerifiedPeerSubject is [PeerSubject], but of a verified handle the token is the
// fingerprint (RFC 004 §3).
func VerifiedPeerSubject(workspaceID, channel, peerID string) (string, error) {
	s, err := channelSubject(workspaceID, channel)
	if err != nil {
		return "", err
	}
	_, token, verified := SplitHandle(peerID)
	if !verified {
		token, err = routeToken(peerID)
		if err != nil {
			return "", err
		}
	}
	return s + "peer." + token, nil
}

// channelSubject gives the common prefix of a channel's subjects.
func channelSubject(workspaceID, channel string) (string, error) {
	workspaceID, channel = strings.TrimSpace(workspaceID), strings.TrimSpace(channel)
	if !ValidWorkspaceID(workspaceID) {
		return "", badWorkspace(workspaceID)
	}
	if !ValidChannel(channel) {
		return "", badChannel(channel)
	}
	return SubjectPrefix + "." + workspaceID + "." + channel + ".", nil
}

// Subject gives the subject that e belongs on: the subject of to, or the
// broadcast subject if to is empty.
func (e *Envelope) Subject() (string, error) {
	if e.To == "" {
		return BroadcastSubject(e.WorkspaceID, e.Channel)
	}
	return VerifiedPeerSubject(e.WorkspaceID, e.Channel, e.To)
}

// CheckSubject refuses with [ErrSubject] an envelope that arrived on a subject
// other than [Envelope.Subject].
func (e *Envelope) CheckSubject(subject string) error {
	want, err := e.Subject()
	if err != nil {
		return err
	}
	if subject != want {
		return refuse(ErrSubject, StepRouting, "to", "arrived on a subject that is not its own")
	}
	return nil
}

// DirectID derives the id of the direct room of two peers, as AGH does: 32
// hex digits of SHA-256 over the domain agh-network/direct-room/v0, the
// workspace, the channel and the two peers in byte order, with zero bytes
// between. Padding of the arguments and the order of the peers do not count;
// the peers must differ and be plain Peer IDs.
func DirectID(workspaceID, channel, peerA, peerB string) (string, error) {
	peerA, peerB = strings.TrimSpace(peerA), strings.TrimSpace(peerB)
	for _, id := range []string{peerA, peerB} {
		if !ValidPeerID(id) {
			return "", badPeer(id)
		}
	}
	return VerifiedDirectID(strings.TrimSpace(workspaceID), strings.TrimSpace(channel), peerA, peerB)
}

// VerifiedDirectID is [DirectID] for peers that may be verified handles, by
// the same derivation.
func VerifiedDirectID(workspaceID, channel, peerA, peerB string) (string, error) {
	valid := (&Decoder{Handles: true}).validPeer
	low, high := min(peerA, peerB), max(peerA, peerB)
	switch {
	case !ValidWorkspaceID(workspaceID):
		return "", badWorkspace(workspaceID)
	case !ValidChannel(channel):
		return "", badChannel(channel)
	case !valid(low):
		return "", badPeer(low)
	case !valid(high):
		return "", badPeer(high)
	case low == high:
		return "", malformed(StepFields, "peer_id", "a direct room has two peers")
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{"agh-network/direct-room/v0", workspaceID, channel, low, high},
		"\x00")))
	return "direct_" + hex.EncodeToString(sum[:16]), nil
}

// InRoom reports whether e, of surface direct, is in the room that its sender
// shares with peer.
func (e *Envelope) InRoom(peer string) bool {
	id, err := VerifiedDirectID(e.WorkspaceID, e.Channel, e.From, peer)
	return err == nil && id == e.DirectID
}
