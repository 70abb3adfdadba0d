package agh

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Encode writes e as one compact JSON object in the order of the envelope
// page: to and proof always (null when unset), other unset members never,
// members of Unknown last. It writes the fields, not Raw: to pass on a
// received message, pass on its Raw bytes. The result is checked as [Decode]
// would check it, with handles and unknown members allowed.
func (e *Envelope) Encode() ([]byte, error) {
	b, err := e.marshal()
	if err != nil {
		return nil, err
	}
	if _, err := (&Decoder{Lenient: true, Handles: true}).Decode(b); err != nil {
		return nil, err
	}
	return b, nil
}

// marshal writes member by member: an encoder that works by reflection takes
// several times as long, and a hub writes three of these for each it reads.
func (e *Envelope) marshal() ([]byte, error) {
	w := newWriter(512 + len(e.Body) + len(e.Ext) + len(e.Proof) + len(e.Unknown))
	w.String("protocol", Protocol)
	w.String("id", e.ID)
	w.String("workspace_id", e.WorkspaceID)
	w.String("kind", string(e.Kind))
	w.String("channel", e.Channel)
	w.Optional("surface", string(e.Surface))
	w.Optional("thread_id", e.ThreadID)
	w.Optional("direct_id", e.DirectID)
	w.String("from", e.From)
	if e.To == "" {
		w.Raw("to", nil)
	} else {
		w.String("to", e.To)
	}
	w.Optional("work_id", e.WorkID)
	w.Optional("reply_to", e.ReplyTo)
	w.Optional("trace_id", e.TraceID)
	w.Optional("causation_id", e.CausationID)
	w.Int("ts", e.TS)
	if e.ExpiresAt != 0 {
		w.Int("expires_at", e.ExpiresAt)
	}
	w.value("body", e.Body, e.madeBody)
	w.Raw("proof", e.Proof)
	if !emptyObject(e.Ext) {
		w.value("ext", e.Ext, e.madeExt)
	}
	b, err := w.End()
	if err == nil && len(e.Unknown) > 0 {
		b, err = embed(b, e.Unknown)
	}
	if err != nil {
		return nil, malformed(StepParse, "", "cannot be written as JSON").because(err)
	}
	return b, nil
}

// same reports whether a value is the very one that was made here, and
// therefore sound JSON.
func same(v, made json.RawMessage) bool {
	return len(v) > 0 && len(v) == len(made) && &v[0] == &made[0]
}

// writer writes one JSON object.
type writer struct{ jsonx.Object }

func newWriter(size int) writer { return writer{jsonx.AppendObject(make([]byte, 0, size))} }

// value writes v, as it is if it was made here.
func (w *writer) value(name string, v, made json.RawMessage) {
	if same(v, made) {
		w.Append(name, func(b []byte) ([]byte, error) { return append(b, v...), nil })
		return
	}
	w.Raw(name, v)
}

// list writes an array of values; nothing for nil.
func (w *writer) list(name string, vs []json.RawMessage) {
	if vs == nil {
		return
	}
	w.Append(name, func(b []byte) (_ []byte, err error) {
		b = append(b, '[')
		for i, v := range vs {
			if i > 0 {
				b = append(b, ',')
			}
			if len(v) == 0 {
				v = json.RawMessage("null")
			}
			if b, err = jsonx.AppendCompact(b, v); err != nil {
				return nil, err
			}
		}
		return append(b, ']'), nil
	})
}

// embed adds members to an object that was written, which has none of them.
func embed(object []byte, members json.RawMessage) ([]byte, error) {
	more, err := jsonx.AppendCompact(nil, members)
	switch {
	case err != nil:
		return nil, err
	case more[0] != '{':
		return nil, errors.New("unknown members must be an object")
	case len(more) == len("{}"):
		return object, nil
	}
	object = append(append(object[:len(object)-1], ','), more[1:]...)
	return object, jsonx.Valid(object, 0)
}

func emptyObject(b json.RawMessage) bool {
	return len(bytes.Trim(b, "{} \t\r\n")) == 0
}

// Canonicalize gives the RFC 8785 form of b. A number beyond the IEEE 754
// doubles, which has no such form, is refused.
func Canonicalize(b []byte) ([]byte, error) {
	out, err := jsonx.Canonicalize(b)
	if err != nil {
		return nil, malformed(StepParse, "", "has no canonical form").because(err)
	}
	return out, nil
}

// DirectID derives the id of the direct room of two peers, as AGH does: 32
// hex digits of SHA-256 over the domain agh-network/direct-room/v0, the
// workspace, the channel and the two peers in byte order, with zero bytes
// between. Padding of the arguments and the order of the peers do not count;
// the peers must differ and be plain Peer IDs.
func DirectID(workspaceID, channel, peerA, peerB string) (string, error) {
	return directID(strings.TrimSpace(workspaceID), strings.TrimSpace(channel), strings.TrimSpace(peerA), strings.TrimSpace(peerB), ValidPeerID)
}

// VerifiedDirectID is [DirectID] for peers that may be verified handles, by
// the same derivation.
func VerifiedDirectID(workspaceID, channel, peerA, peerB string) (string, error) {
	return directID(workspaceID, channel, peerA, peerB, (&Decoder{Handles: true}).validPeer)
}

func directID(workspaceID, channel, peerA, peerB string, valid func(string) bool) (string, error) {
	low, high := min(peerA, peerB), max(peerA, peerB)
	switch {
	case !ValidWorkspaceID(workspaceID):
		return "", malformed(StepFields, "workspace_id", "must be a subject-safe id")
	case !ValidChannel(channel):
		return "", malformed(StepFields, "channel", "must match [a-z0-9][a-z0-9_-]{0,63}")
	case !valid(low) || !valid(high):
		return "", malformed(StepFields, "peer_id", "must be a peer id")
	case low == high:
		return "", malformed(StepFields, "peer_id", "a direct room has two peers")
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{"agh-network/direct-room/v0", workspaceID, channel, low, high}, "\x00")))
	return "direct_" + hex.EncodeToString(sum[:16]), nil
}

// InRoom reports whether e, of surface direct, is in the room that its sender
// shares with peer.
func (e *Envelope) InRoom(peer string) bool {
	id, err := VerifiedDirectID(e.WorkspaceID, e.Channel, e.From, peer)
	return err == nil && id == e.DirectID
}

// SubjectPrefix begins every subject of the network.
const SubjectPrefix = "agh.network.v0"

// RouteToken gives the token of a plain Peer ID in its subject: 32 hex digits
// of its SHA-256.
func RouteToken(peerID string) (string, error) {
	peerID = strings.TrimSpace(peerID)
	if !ValidPeerID(peerID) {
		return "", malformed(StepFields, "peer_id", "must be a peer id")
	}
	sum := sha256.Sum256([]byte(peerID))
	return hex.EncodeToString(sum[:16]), nil
}

// VerifiedRouteToken is [RouteToken], but of a verified handle it gives the
// fingerprint (RFC 004 §3).
func VerifiedRouteToken(peerID string) (string, error) {
	if _, fingerprint, ok := SplitHandle(peerID); ok {
		return fingerprint, nil
	}
	return RouteToken(peerID)
}

// BroadcastSubject gives agh.network.v0.<workspace_id>.<channel>.broadcast.
func BroadcastSubject(workspaceID, channel string) (string, error) {
	s, err := channelSubject(workspaceID, channel)
	if err != nil {
		return "", err
	}
	return string(append(s, "broadcast"...)), nil
}

// PeerSubject gives agh.network.v0.<workspace_id>.<channel>.peer.<route token>
// of a plain Peer ID.
func PeerSubject(workspaceID, channel, peerID string) (string, error) {
	return peerSubject(workspaceID, channel, peerID, RouteToken)
}

// VerifiedPeerSubject is [PeerSubject] with [VerifiedRouteToken].
func VerifiedPeerSubject(workspaceID, channel, peerID string) (string, error) {
	return peerSubject(workspaceID, channel, peerID, VerifiedRouteToken)
}

func peerSubject(workspaceID, channel, peerID string, token func(string) (string, error)) (string, error) {
	s, err := channelSubject(workspaceID, channel)
	if err != nil {
		return "", err
	}
	t, err := token(peerID)
	if err != nil {
		return "", err
	}
	return string(append(append(s, "peer."...), t...)), nil
}

func channelSubject(workspaceID, channel string) ([]byte, error) {
	workspaceID, channel = strings.TrimSpace(workspaceID), strings.TrimSpace(channel)
	if !ValidWorkspaceID(workspaceID) {
		return nil, malformed(StepFields, "workspace_id", "must be a subject-safe id")
	}
	if !ValidChannel(channel) {
		return nil, malformed(StepFields, "channel", "must match [a-z0-9][a-z0-9_-]{0,63}")
	}
	b := make([]byte, 0, 128)
	b = append(append(b, SubjectPrefix+"."...), workspaceID...)
	return append(append(append(b, '.'), channel...), '.'), nil
}

// Subject gives the subject that e belongs on: the broadcast subject without
// to, the subject of to with it.
func (e *Envelope) Subject() (string, error) {
	if e.To == "" {
		return BroadcastSubject(e.WorkspaceID, e.Channel)
	}
	return VerifiedPeerSubject(e.WorkspaceID, e.Channel, e.To)
}

// CheckSubject refuses an envelope that arrived on another subject than its
// own with [ErrSubject].
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
