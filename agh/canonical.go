package agh

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
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
	w := writer{b: make([]byte, 0, 512+len(e.Body)+len(e.Ext)+len(e.Proof)+len(e.Unknown))}
	w.text("protocol", Protocol)
	w.text("id", e.ID)
	w.text("workspace_id", e.WorkspaceID)
	w.text("kind", string(e.Kind))
	w.text("channel", e.Channel)
	w.optional("surface", string(e.Surface))
	w.optional("thread_id", e.ThreadID)
	w.optional("direct_id", e.DirectID)
	w.text("from", e.From)
	if e.To == "" {
		w.name("to").raw(nil)
	} else {
		w.text("to", e.To)
	}
	w.optional("work_id", e.WorkID)
	w.optional("reply_to", e.ReplyTo)
	w.optional("trace_id", e.TraceID)
	w.optional("causation_id", e.CausationID)
	w.name("ts").number(e.TS)
	if e.ExpiresAt != 0 {
		w.name("expires_at").number(e.ExpiresAt)
	}
	w.name("body").value(e.Body, e.madeBody)
	w.name("proof").raw(e.Proof)
	if !emptyObject(e.Ext) {
		w.name("ext").value(e.Ext, e.madeExt)
	}
	if len(e.Unknown) > 0 {
		w.embed(e.Unknown)
	}
	b, err := w.object()
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

// writer writes one JSON object. The first error stays.
type writer struct {
	b   []byte
	err error
}

func (w *writer) name(n string) *writer {
	if len(w.b) == 0 {
		w.b = append(w.b, '{')
	} else {
		w.b = append(w.b, ',')
	}
	w.b = append(append(append(w.b, '"'), n...), '"', ':')
	return w
}

func (w *writer) text(n, v string) { w.name(n).string(v) }

func (w *writer) optional(n, v string) {
	if v != "" {
		w.text(n, v)
	}
}

func (w *writer) string(s string) {
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= ' ' && s[i] < 0x7f && s[i] != '"' && s[i] != '\\'
	}
	if plain { // as nearly all that is written: three times as fast
		w.b = append(append(append(w.b, '"'), s...), '"')
		return
	}
	b, err := jsonx.AppendString(w.b, s)
	if w.err == nil {
		w.err = err
	}
	w.b = b
}

func (w *writer) number(n int64) { w.b = strconv.AppendInt(w.b, n, 10) }

// raw writes a value, compact; null if it is absent.
func (w *writer) raw(v []byte) {
	if len(v) == 0 {
		w.b = append(w.b, "null"...)
		return
	}
	b, err := jsonx.AppendCompact(w.b, v)
	if w.err == nil {
		w.err = err
	}
	w.b = b
}

// value writes v, as it is if it was made here.
func (w *writer) value(v, made json.RawMessage) {
	if same(v, made) {
		w.b = append(w.b, v...)
		return
	}
	w.raw(v)
}

func (w *writer) list(n string, vs []json.RawMessage) {
	if vs == nil {
		return
	}
	w.name(n)
	w.b = append(w.b, '[')
	for i, v := range vs {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.raw(v)
	}
	w.b = append(w.b, ']')
}

// embed writes the members of an object, none of which may be written already.
func (w *writer) embed(members json.RawMessage) {
	var o writer
	o.raw(members)
	switch {
	case o.err != nil && w.err == nil:
		w.err = o.err
	case len(o.b) > 2 && o.b[0] == '{':
		w.b = append(append(w.b, ','), o.b[1:len(o.b)-1]...)
		if w.err == nil {
			w.err = jsonx.Valid(append(slices.Clone(w.b), '}'), 0)
		}
	case o.b[0] != '{' && w.err == nil:
		w.err = errors.New("unknown members must be an object")
	}
}

func (w *writer) object() ([]byte, error) {
	if len(w.b) == 0 {
		w.b = append(w.b, '{')
	}
	return append(w.b, '}'), w.err
}

func emptyObject(b json.RawMessage) bool {
	return len(bytes.Trim(b, "{} \t\r\n")) == 0
}

// Canonicalize gives the RFC 8785 form of b. A number beyond the IEEE 754
// doubles, which has no such form, is refused.
func Canonicalize(b []byte) ([]byte, error) {
	out, err := jsonx.Canonicalize(b)
	if err == nil && bytes.Contains(out, []byte("1.7976931348623157e+308")) && overflows(b) {
		err = strconv.ErrRange
	}
	if err != nil {
		return nil, malformed(StepParse, "", "has no canonical form").because(err)
	}
	return out, nil
}

// overflows reports whether valid JSON holds a number beyond the doubles.
func overflows(b []byte) bool {
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			for i++; i < len(b) && b[i] != '"'; i++ {
				if b[i] == '\\' {
					i++
				}
			}
		case c == '-' || '0' <= c && c <= '9':
			start := i
			for i < len(b) && strings.IndexByte("+-.eE0123456789", b[i]) >= 0 {
				i++
			}
			if _, err := strconv.ParseFloat(string(b[start:i]), 64); err != nil {
				return true
			}
		}
	}
	return false
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
