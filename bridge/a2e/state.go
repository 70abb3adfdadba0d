package a2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley"
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// sessionStore keeps sessions in the journal's state, one row each: the session's agent
// and its undelivered frames. The revision of the row is the fence: a node that takes a
// session over changes it, so that every later write of the previous node is a
// conflict. The previous node then relays its frames (relay.go).
//
// A frame is recorded at once while no transport is attached. With a transport, it is
// recorded if it could not be written within linger: a frame that the agent reads at
// once costs no write.
type sessionStore struct {
	rows   *journal.Table[recordedSession]
	now    func() time.Time
	log    *slog.Logger
	node   string
	linger time.Duration
	known  func(agent string) bool // whether the directory has the agent
	// session gives a session of this node's host. It is called without locks held.
	session func(sessionID string) (*protocol.Session, bool)
	// aliveElsewhere reports whether another node with the name is alive.
	aliveElsewhere func(node string) bool
	// inboxIDs gives the messages for the agent's next inbox call.
	inboxIDs func(ctx context.Context, agent string) (map[parley.ID]bool, error)

	relays journal.State // messages passed on between nodes, by session
	life   context.Context
	stop   context.CancelFunc

	order    ordered
	mu       sync.Mutex
	sessions map[string]*ownSession
	ids      map[string]string // of sessions, by key
	closed   bool
	work     sync.WaitGroup
}

// sessionTTL is how long an idle session can be resumed.
const sessionTTL = 24 * time.Hour

// ownSession is a session that this node holds.
type ownSession struct {
	key string

	mu        sync.Mutex
	rec       recordedSession
	revision  uint64
	count     int    // frames in the recorded value
	upTo      uint64 // number of the last frame in the recorded value
	last      uint64 // number of the last frame appended
	lost      error
	timer     *time.Timer
	receiving bool   // relayed data is being taken
	more      bool   // relayed data arrived meanwhile
	known     uint64 // number of the last frame in the recorded value, which the next node loads
}

// recordedSession is the recorded form of a session. Its id is a secret; only the hash
// is recorded, as the key.
type recordedSession struct {
	Agent    string          `json:"agent"`
	AgentID  string          `json:"agent_id,omitempty"`
	Accepted []string        `json:"accepted,omitempty"`
	Allowed  []string        `json:"allowed,omitzero"` // the identity's capabilities; nil: all
	Opened   time.Time       `json:"opened"`
	Node     string          `json:"node"`
	Epoch    uint64          `json:"epoch"` // grows with every take-over
	LastSeq  uint64          `json:"last_seq"`
	Frames   []recordedFrame `json:"frames,omitempty"`
	Inbox    map[string]bool `json:"inbox,omitempty"` // requests that are inbox calls
}

func (r *recordedSession) identity() protocol.Identity {
	return protocol.Identity{Name: r.Agent, Capabilities: r.Allowed}
}

type recordedFrame struct {
	Seq  uint64 `json:"seq"`
	Line string `json:"line"` // pure ASCII
}

func newSessionStore(j *journal.Journal, now func() time.Time, log *slog.Logger) *sessionStore {
	t := &sessionStore{rows: journal.NewTable[recordedSession](j, "a2e.sessions", 0), relays: j.State("a2e.relay"),
		now: now, log: log, node: j.Node(),
		linger: 100 * time.Millisecond, sessions: map[string]*ownSession{}, ids: map[string]string{},
		aliveElsewhere: func(node string) bool { return j.LivesElsewhere(node, now()) }}
	t.life, t.stop = context.WithCancel(context.Background())
	return t
}

func sessionKey(id string) string { return shortHash("a2e session\x00" + id) }

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:16])
}

// ordered makes keys of rows that sort in the order in which a node made them. Keys of
// other nodes may sort between them.
type ordered struct{ n atomic.Uint64 }

func (o *ordered) key(now time.Time) string {
	return fmt.Sprintf("%020d-%06d-%s", now.UnixNano(), o.n.Add(1)%1e6, rand.Text()[:12])
}

// renameSession replaces from by to in a frame that names a session, by its id or by
// its key. Other frames stay unchanged.
func renameSession(frame []byte, from, to string) []byte {
	if !bytes.Contains(frame, []byte(from)) {
		return frame
	}
	out, _ := jsonx.Replace(frame, func(name string) string {
		if name == from {
			return to
		}
		return name
	}, sessionMember)
	return out
}

func (t *sessionStore) own(id string) *ownSession {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[id]
}

// Open implements a2e.Store.
func (t *sessionStore) Open(ctx context.Context, r protocol.SessionRecord) error {
	t.mu.Lock()
	k := t.sessions[r.ID]
	if k == nil {
		k = &ownSession{key: sessionKey(r.ID)}
		t.sessions[r.ID], t.ids[k.key] = k, r.ID
	}
	t.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rec.Agent, k.rec.AgentID, k.rec.Accepted, k.rec.Opened = r.Identity.Name, r.AgentID, r.Accepted,
		r.Opened.Round(0).UTC()
	k.rec.Allowed = r.Identity.Capabilities
	if k.rec.Epoch == 0 {
		k.rec.Epoch = 1
	}
	return t.save(ctx, k)
}

// save records k, which is locked.
func (t *sessionStore) save(ctx context.Context, k *ownSession) error {
	if k.lost != nil {
		return k.lost
	}
	k.rec.Node, k.rec.LastSeq = t.node, k.last
	if len(k.rec.Frames) == 0 {
		k.rec.Inbox = nil
	}
	row, err := t.rows.Replace(ctx, journal.Row[recordedSession]{Key: k.key, Value: k.rec, Revision: k.revision,
		Until: t.now().Add(sessionTTL)})
	if errors.Is(err, journal.ErrConflict) {
		k.lost = fmt.Errorf("%w: %w", protocol.ErrMoved, err)
		return k.lost
	}
	if err != nil {
		return err
	}
	k.revision, k.count, k.known = row.Revision, len(k.rec.Frames), k.rec.LastSeq
	if k.count > 0 {
		k.upTo = k.rec.Frames[k.count-1].Seq
	}
	return nil
}

// Append implements a2e.Store.
func (t *sessionStore) Append(ctx context.Context, id string, seq uint64, frame []byte) error {
	k := t.own(id)
	if k == nil {
		return protocol.ErrMoved
	}
	attached := false
	if s, ok := t.session(id); ok {
		_, attached = s.State()
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return k.lost
	}
	k.rec.Frames = append(k.rec.Frames, recordedFrame{seq, string(renameSession(frame, id, k.key))})
	k.last = seq
	if !attached {
		err := t.save(context.WithoutCancel(ctx), k)
		if err != nil {
			k.rec.Frames = k.rec.Frames[:len(k.rec.Frames)-1]
			k.last = seq - 1
		}
		return err
	}
	t.saveLater(k)
	return nil
}

// saveLater records the frames that are still unread after linger; k is locked.
func (t *sessionStore) saveLater(k *ownSession) {
	if k.timer != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.work.Add(1)
	k.timer = time.AfterFunc(t.linger, func() {
		defer t.work.Done()
		k.mu.Lock()
		defer k.mu.Unlock()
		k.timer = nil
		if len(k.rec.Frames) == 0 || k.lost != nil || k.last == k.upTo {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := t.save(ctx, k); err != nil && !errors.Is(err, protocol.ErrMoved) {
			t.log.Warn("cannot record what an A2E agent has not read", "agent", k.rec.Agent, "error", err)
			t.saveLater(k)
		}
	})
}

// stopTimer ends saveLater; k is locked.
func (t *sessionStore) stopTimer(k *ownSession) {
	if k.timer != nil && k.timer.Stop() {
		t.work.Done()
	}
	k.timer = nil
}

// Delivered implements a2e.Store.
func (t *sessionStore) Delivered(ctx context.Context, id string, seq uint64) error {
	k := t.own(id)
	if k == nil {
		return protocol.ErrMoved
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return k.lost
	}
	recorded := k.count > 0 && len(k.rec.Frames) > 0 && k.rec.Frames[0].Seq <= min(seq, k.upTo)
	n := 0
	for n < len(k.rec.Frames) && k.rec.Frames[n].Seq <= seq {
		k.rec.Frames[n] = recordedFrame{}
		n++
	}
	if k.rec.Frames = k.rec.Frames[n:]; len(k.rec.Frames) == 0 {
		k.rec.Frames = nil
	}
	if recorded {
		return t.save(context.WithoutCancel(ctx), k)
	}
	return nil
}

// Load implements a2e.Store. It takes the session over.
func (t *sessionStore) Load(ctx context.Context, id string) (protocol.SessionRecord, bool, error) {
	key := sessionKey(id)
	for range 8 {
		row, err := t.rows.Get(ctx, key)
		if err != nil || row.Revision == 0 || !t.known(row.Value.Agent) {
			return protocol.SessionRecord{}, false, err
		}
		k := &ownSession{key: key, revision: row.Revision, rec: row.Value}
		before := k.rec.Node
		k.rec.Epoch++
		k.last = k.rec.LastSeq
		if len(k.rec.Inbox) > 0 {
			// The agent may have given its call up, and would ignore the answer. Its
			// next call gets the messages.
			next, err := t.inboxIDs(ctx, k.rec.Agent)
			if err != nil {
				return protocol.SessionRecord{}, false, err
			}
			k.leaveToNextCall(next)
		}
		if err := t.save(ctx, k); errors.Is(err, protocol.ErrMoved) {
			continue // another node was faster, and may already have lost the session
		} else if err != nil {
			return protocol.SessionRecord{}, false, err
		}
		out := protocol.SessionRecord{ID: id, Identity: k.rec.identity(), AgentID: k.rec.AgentID,
			Accepted: k.rec.Accepted, Opened: k.rec.Opened, LastSeq: k.last}
		for _, f := range k.rec.Frames {
			line := renameSession([]byte(f.Line), key, id)
			out.Undelivered = append(out.Undelivered, protocol.StoredFrame{Seq: f.Seq, Line: line})
		}
		t.mu.Lock()
		t.sessions[id], t.ids[key] = k, id
		t.mu.Unlock()
		if t.aliveElsewhere(before) {
			t.announceMove(ctx, key)
		}
		return out, true, nil
	}
	return protocol.SessionRecord{}, false, protocol.ErrMoved
}

// Close implements a2e.Store.
func (t *sessionStore) Close(ctx context.Context, id string) error {
	k := t.own(id)
	if k == nil {
		return nil
	}
	t.drop(id, k)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return nil // another node has the session
	}
	t.stopTimer(k)
	k.lost = protocol.ErrMoved
	if err := t.rows.Delete(ctx, k.key, k.revision); err != nil && !errors.Is(err, journal.ErrConflict) {
		return err
	}
	return nil
}

// leaveToNextCall removes from the frames the events of inbox calls, and from their
// answers the messages in next, which the agent's next call gets; such an answer says
// that there is more. k is locked or not shared yet.
func (k *ownSession) leaveToNextCall(next map[parley.ID]bool) {
	var left []recordedFrame
	for _, f := range k.rec.Frames {
		var line map[string]json.RawMessage
		var request, kind string
		if json.Unmarshal([]byte(f.Line), &line) != nil || json.Unmarshal(line["req_id"], &request) != nil ||
			json.Unmarshal(line["type"], &kind) != nil {
			left = append(left, f)
			continue
		}
		_, inbox := k.rec.Inbox[request]
		if inbox && kind == "tool/event" {
			continue
		}
		if inbox && kind == "tool/call/resp" {
			if data, changed := withoutMessages(line["data"], next); changed {
				line["data"] = data
				if b, err := json.Marshal(line); err == nil {
					f.Line = string(b)
				}
			}
		}
		left = append(left, f)
	}
	k.rec.Frames = left
}

// withoutMessages gives the result of an inbox call without the messages of next.
func withoutMessages(result json.RawMessage, next map[parley.ID]bool) (json.RawMessage, bool) {
	var all map[string]json.RawMessage
	var data struct {
		Messages []json.RawMessage `json:"messages"`
		More     bool              `json:"more"`
	}
	if json.Unmarshal(result, &all) != nil || json.Unmarshal(all["data"], &data) != nil {
		return nil, false
	}
	n := len(data.Messages)
	data.Messages = slices.DeleteFunc(data.Messages, func(m json.RawMessage) bool {
		var a bridge.Arrival
		return json.Unmarshal(m, &a) == nil && next[a.ID]
	})
	if len(data.Messages) == n {
		return nil, false
	}
	data.More = true
	b, err := json.Marshal(data)
	if err == nil {
		all["data"] = b
		b, err = json.Marshal(all)
	}
	return b, err == nil
}

// inbox marks a request as an inbox call.
func (t *sessionStore) inbox(id, request string) {
	k := t.own(id)
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rec.Inbox == nil {
		k.rec.Inbox = map[string]bool{}
	}
	k.rec.Inbox[request] = true
	if len(k.rec.Inbox) > 1024 { // frames of old calls have long been read
		for r := range k.rec.Inbox {
			if !slices.ContainsFunc(k.rec.Frames, func(f recordedFrame) bool { return answers(f.Line, r) }) &&
				r != request {
				delete(k.rec.Inbox, r)
			}
		}
	}
}

func answers(line, request string) bool {
	var v struct {
		ReqID string `json:"req_id"`
	}
	return json.Unmarshal([]byte(line), &v) == nil && v.ReqID == request
}

func (t *sessionStore) all() []*ownSession {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.sessions))
}

// refresh extends the lifetime of this node's sessions.
func (t *sessionStore) refresh(ctx context.Context) {
	for _, k := range t.all() {
		k.mu.Lock()
		if err := t.save(ctx, k); err != nil && !errors.Is(err, protocol.ErrMoved) {
			t.log.Warn("cannot keep an A2E session", "agent", k.rec.Agent, "error", err)
		}
		k.mu.Unlock()
	}
}

// shut records all unread frames, when this node ends.
func (t *sessionStore) shut(ctx context.Context) {
	t.stop()
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	for _, k := range t.all() {
		k.mu.Lock()
		t.stopTimer(k)
		if len(k.rec.Frames) > 0 && k.upTo < k.last {
			if err := t.save(ctx, k); err != nil && !errors.Is(err, protocol.ErrMoved) {
				t.log.Warn("cannot record what an A2E agent has not read", "agent", k.rec.Agent, "error", err)
			}
		}
		k.mu.Unlock()
	}
	t.work.Wait()
}

// inboxPrefix begins the keys of an agent's inbox. "owed" is in recorded keys.
func inboxPrefix(agent string) string { return "owed/" + ownerPrefix(agent) }

// ownerPrefix begins the keys of an agent's subagents.
func ownerPrefix(agent string) string { return shortHash(agent) + "/" }
