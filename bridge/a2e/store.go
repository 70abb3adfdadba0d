package a2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	protocol "github.com/parley-hub/parley/a2e"

	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
)

// store keeps sessions in the journal's state, one value each: who the session
// belongs to and the frames that its agent has not had. The revision of the
// value is the fence: a node that takes a session over changes it, after which
// every write of the node before is a conflict, and that node lets go.
//
// A frame is recorded at once while no transport is attached. While one is, it
// is recorded when it could not be written within linger: what an agent reads
// at once costs no write. Who must know that a frame is safe waits for that
// with settle.
type store struct {
	s        journal.State
	now      func() time.Time
	log      *slog.Logger
	node     string
	linger   time.Duration
	attached func(sessionID string) bool                                           // asked without locks held
	known    func(agent string) bool                                               // whether the directory still has it
	owe      func(ctx context.Context, agent string, owed []json.RawMessage) error // takes what a session that ended still owed of its inbox

	mu       sync.Mutex
	sessions map[string]*kept
	closed   bool
	work     sync.WaitGroup
}

// keepFor is how long a session that nobody touches can be resumed.
const keepFor = 24 * time.Hour

// kept is a session that this node holds.
type kept struct {
	key string

	mu       sync.Mutex
	rec      saved
	revision uint64
	count    int    // frames in the recorded value
	upTo     uint64 // the last of them
	last     uint64 // of the frames appended
	done     uint64 // of the frames delivered
	lost     error
	timer    *time.Timer
	changed  chan struct{} // closed when upTo, done or lost changed; nil when nobody waits
}

// saved is the recorded form. The session's id is a secret; only its hash is
// recorded, as the key.
type saved struct {
	Agent    string          `json:"agent"`
	AgentID  string          `json:"agent_id,omitempty"`
	Accepted []string        `json:"accepted,omitempty"`
	Opened   time.Time       `json:"opened"`
	Node     string          `json:"node"`
	Epoch    uint64          `json:"epoch"` // grows with every take-over
	LastSeq  uint64          `json:"last_seq"`
	Frames   []savedFrame    `json:"frames,omitempty"`
	Inbox    map[string]bool `json:"inbox,omitempty"` // requests that are inbox calls; true: their messages went out as events
}

type savedFrame struct {
	Seq  uint64 `json:"seq"`
	Line string `json:"line"` // pure ASCII
}

var errMoved = errors.New("the session is held by another node now")

func newStore(s journal.State, now func() time.Time, log *slog.Logger, node string) *store {
	return &store{s: s, now: now, log: log, node: node, linger: 100 * time.Millisecond, sessions: map[string]*kept{}}
}

func sessionKey(id string) string {
	sum := sha256.Sum256([]byte("a2e session\x00" + id))
	return hex.EncodeToString(sum[:16])
}

// renameSession gives a frame that names a session by its id with the key in place
// of the id, or the other way round. Others stay.
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

func (t *store) find(id string) *kept {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[id]
}

// Open implements a2e.Store.
func (t *store) Open(ctx context.Context, r protocol.SessionRecord) error {
	t.mu.Lock()
	k := t.sessions[r.ID]
	if k == nil {
		k = &kept{key: sessionKey(r.ID)}
		t.sessions[r.ID] = k
	}
	t.mu.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rec.Agent, k.rec.AgentID, k.rec.Accepted, k.rec.Opened = r.Identity.Name, r.AgentID, r.Accepted, r.Opened.Round(0).UTC()
	if k.rec.Epoch == 0 {
		k.rec.Epoch = 1
	}
	return t.save(ctx, k)
}

// save records k, which is locked.
func (t *store) save(ctx context.Context, k *kept) error {
	if k.lost != nil {
		return k.lost
	}
	k.rec.Node, k.rec.LastSeq = t.node, k.last
	if len(k.rec.Frames) == 0 {
		k.rec.Inbox = nil
	}
	b, err := json.Marshal(k.rec)
	if err != nil {
		return err
	}
	until := t.now().Add(keepFor)
	var revision uint64
	if k.revision == 0 {
		revision, err = t.s.Create(ctx, k.key, b, until)
	} else {
		revision, err = t.s.Update(ctx, k.key, b, until, k.revision)
	}
	if errors.Is(err, journal.ErrConflict) || errors.Is(err, journal.ErrExists) || errors.Is(err, journal.ErrNotFound) {
		k.lost = fmt.Errorf("%w: %w", errMoved, err)
		k.wake()
		return k.lost
	}
	if err != nil {
		return err
	}
	k.revision, k.count = revision, len(k.rec.Frames)
	if k.count > 0 {
		k.upTo = k.rec.Frames[k.count-1].Seq
	}
	k.wake()
	return nil
}

func (k *kept) wake() {
	if k.changed != nil {
		close(k.changed)
		k.changed = nil
	}
}

// Append implements a2e.Store.
func (t *store) Append(ctx context.Context, id string, seq uint64, frame []byte) error {
	k := t.find(id)
	if k == nil {
		return errMoved
	}
	attached := t.attached(id)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return k.lost
	}
	k.rec.Frames = append(k.rec.Frames, savedFrame{seq, string(renameSession(frame, id, k.key))})
	k.last = seq
	if !attached {
		err := t.save(context.WithoutCancel(ctx), k)
		if err != nil {
			k.rec.Frames = k.rec.Frames[:len(k.rec.Frames)-1]
			k.last = seq - 1
		}
		return err
	}
	t.later(k)
	return nil
}

// later sees to it that what waits is recorded soon; k is locked.
func (t *store) later(k *kept) {
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
		if err := t.save(ctx, k); err != nil && !errors.Is(err, errMoved) {
			t.log.Warn("cannot record what an A2E agent has not read", "agent", k.rec.Agent, "error", err)
			t.later(k)
		}
	})
}

// Delivered implements a2e.Store.
func (t *store) Delivered(ctx context.Context, id string, seq uint64) error {
	k := t.find(id)
	if k == nil {
		return errMoved
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return k.lost
	}
	k.done = max(k.done, seq)
	recorded := k.count > 0 && len(k.rec.Frames) > 0 && k.rec.Frames[0].Seq <= min(seq, k.upTo)
	n := 0
	for n < len(k.rec.Frames) && k.rec.Frames[n].Seq <= seq {
		k.rec.Frames[n] = savedFrame{}
		n++
	}
	if k.rec.Frames = k.rec.Frames[n:]; len(k.rec.Frames) == 0 {
		k.rec.Frames = nil
	}
	k.wake()
	if recorded {
		return t.save(context.WithoutCancel(ctx), k)
	}
	return nil
}

// Load implements a2e.Store: it takes the session over.
func (t *store) Load(ctx context.Context, id string) (protocol.SessionRecord, bool, error) {
	key := sessionKey(id)
	for range 8 {
		v, err := t.s.Get(ctx, key)
		if errors.Is(err, journal.ErrNotFound) {
			return protocol.SessionRecord{}, false, nil
		}
		if err != nil {
			return protocol.SessionRecord{}, false, err
		}
		k := &kept{key: key, revision: v.Revision}
		if err := json.Unmarshal(v.Data, &k.rec); err != nil {
			return protocol.SessionRecord{}, false, fmt.Errorf("a session is recorded in a form that this program does not know: %w", err)
		}
		if !t.known(k.rec.Agent) {
			return protocol.SessionRecord{}, false, nil
		}
		k.rec.Epoch++
		k.last = k.rec.LastSeq
		if owed := k.owed(); len(owed) > 0 {
			// The agent may have given the call up meanwhile, and would pass over what
			// comes for it: its next one has them.
			if err := t.owe(ctx, k.rec.Agent, owed); err != nil {
				return protocol.SessionRecord{}, false, err
			}
			k.take()
		}
		if err := t.save(ctx, k); errors.Is(err, errMoved) {
			continue // another node was faster; it may have left again
		} else if err != nil {
			return protocol.SessionRecord{}, false, err
		}
		out := protocol.SessionRecord{ID: id, Identity: protocol.Identity{Name: k.rec.Agent}, AgentID: k.rec.AgentID,
			Accepted: k.rec.Accepted, Opened: k.rec.Opened, LastSeq: k.last}
		for _, f := range k.rec.Frames {
			line := renameSession([]byte(f.Line), key, id)
			out.Undelivered = append(out.Undelivered, protocol.StoredFrame{Seq: f.Seq, Line: line})
		}
		t.mu.Lock()
		t.sessions[id] = k
		t.mu.Unlock()
		return out, true, nil
	}
	return protocol.SessionRecord{}, false, errMoved
}

// inherit keeps, for the next inbox call of each agent, what the sessions had not
// brought that this node held when it ended: an agent that was started again too
// does not come back to its session.
func (t *store) inherit(ctx context.Context) error {
	var all []journal.Value
	for v, err := range t.s.Range(ctx, "") {
		if err != nil {
			return err
		}
		all = append(all, v)
	}
	for _, v := range all {
		k := &kept{key: v.Key, revision: v.Revision}
		if json.Unmarshal(v.Data, &k.rec) != nil || k.rec.Node != t.node || !t.known(k.rec.Agent) {
			continue // what cannot be read is told to who asks for it
		}
		owed := k.owed()
		if len(owed) == 0 {
			continue
		}
		if err := t.owe(ctx, k.rec.Agent, owed); err != nil {
			return err
		}
		k.take()
		k.last = k.rec.LastSeq
		if err := t.save(ctx, k); err != nil && !errors.Is(err, errMoved) {
			return err
		}
	}
	return nil
}

// Close implements a2e.Store. Messages of the inbox that the agent has not had
// are kept for its next inbox call.
func (t *store) Close(ctx context.Context, id string) error {
	t.mu.Lock()
	k := t.sessions[id]
	delete(t.sessions, id)
	t.mu.Unlock()
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost != nil {
		return nil // it lives elsewhere
	}
	if k.timer != nil && k.timer.Stop() {
		t.work.Done()
	}
	k.timer = nil
	var errs []error
	if owed := k.owed(); len(owed) > 0 {
		errs = append(errs, t.owe(ctx, k.rec.Agent, owed))
	}
	k.done = k.last
	k.lost = errMoved
	k.wake()
	if err := t.s.Delete(ctx, k.key, k.revision); err != nil && !errors.Is(err, journal.ErrConflict) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// take removes what owed finds: events of inbox calls go, and an answer that is
// among the frames says that there is more; k is locked or not shared yet.
func (k *kept) take() {
	var left []savedFrame
	for _, f := range k.rec.Frames {
		var line map[string]json.RawMessage
		var request, kind string
		if json.Unmarshal([]byte(f.Line), &line) != nil || json.Unmarshal(line["req_id"], &request) != nil || json.Unmarshal(line["type"], &kind) != nil {
			left = append(left, f)
			continue
		}
		_, inbox := k.rec.Inbox[request]
		if inbox && kind == "tool/event" {
			continue
		}
		if inbox && kind == "tool/call/resp" {
			var data map[string]json.RawMessage
			if json.Unmarshal(line["data"], &data) == nil && data["data"] != nil {
				data["data"] = json.RawMessage(`{"messages":[],"more":true}`)
				if b, err := json.Marshal(data); err == nil {
					line["data"] = b
				}
				if b, err := json.Marshal(line); err == nil {
					f.Line = string(b) + f.Line[len(strings.TrimRight(f.Line, "\n")):]
				}
			}
		}
		left = append(left, f)
	}
	k.rec.Frames = left
}

// owed finds the messages of the inbox among the frames that were not
// delivered; k is locked.
func (k *kept) owed() []json.RawMessage {
	var out []json.RawMessage
	for _, f := range k.rec.Frames {
		var v struct {
			Type  string          `json:"type"`
			ReqID string          `json:"req_id"`
			Data  json.RawMessage `json:"data"`
		}
		if jsonx.Decode([]byte(f.Line), &v) != nil {
			continue
		}
		streamed, inbox := k.rec.Inbox[v.ReqID]
		switch {
		case !inbox:
		case streamed && v.Type == "tool/event":
			out = append(out, v.Data)
		case !streamed && v.Type == "tool/call/resp":
			var r struct {
				Data struct {
					Messages []json.RawMessage `json:"messages"`
				} `json:"data"`
			}
			if json.Unmarshal(v.Data, &r) == nil {
				out = append(out, r.Data.Messages...)
			}
		}
	}
	return out
}

// inbox notes that a request is an inbox call.
func (t *store) inbox(id, request string, streamed bool) {
	k := t.find(id)
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.rec.Inbox == nil {
		k.rec.Inbox = map[string]bool{}
	}
	k.rec.Inbox[request] = streamed
	if len(k.rec.Inbox) > 1024 { // calls whose frames have long been read
		for r := range k.rec.Inbox {
			if !slices.ContainsFunc(k.rec.Frames, func(f savedFrame) bool { return jsonMember(f.Line, r) }) && r != request {
				delete(k.rec.Inbox, r)
			}
		}
	}
}

func jsonMember(line, request string) bool {
	var v struct {
		ReqID string `json:"req_id"`
	}
	return json.Unmarshal([]byte(line), &v) == nil && v.ReqID == request
}

// settle waits until every frame that was appended to a session has been
// delivered or is recorded. An error says that they are lost to this node.
func (t *store) settle(ctx context.Context, id string) error {
	k := t.find(id)
	if k == nil {
		return errMoved
	}
	k.mu.Lock()
	last := k.last
	for {
		if k.done >= last || k.upTo >= last {
			k.mu.Unlock()
			return nil
		}
		if k.lost != nil {
			defer k.mu.Unlock()
			return k.lost
		}
		if k.changed == nil {
			k.changed = make(chan struct{})
		}
		changed := k.changed
		k.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		k.mu.Lock()
	}
}

// refresh keeps the sessions of this node from being forgotten.
func (t *store) refresh(ctx context.Context) {
	t.mu.Lock()
	all := make([]*kept, 0, len(t.sessions))
	for _, k := range t.sessions {
		all = append(all, k)
	}
	t.mu.Unlock()
	for _, k := range all {
		k.mu.Lock()
		if err := t.save(ctx, k); err != nil && !errors.Is(err, errMoved) {
			t.log.Warn("cannot keep an A2E session", "agent", k.rec.Agent, "error", err)
		}
		k.mu.Unlock()
	}
}

// shut records what is not recorded yet, at the end of this node.
func (t *store) shut(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	all := make([]*kept, 0, len(t.sessions))
	for _, k := range t.sessions {
		all = append(all, k)
	}
	t.mu.Unlock()
	for _, k := range all {
		k.mu.Lock()
		if k.timer != nil && k.timer.Stop() {
			t.work.Done()
		}
		k.timer = nil
		if len(k.rec.Frames) > 0 && k.upTo < k.last {
			if err := t.save(ctx, k); err != nil && !errors.Is(err, errMoved) {
				t.log.Warn("cannot record what an A2E agent has not read", "agent", k.rec.Agent, "error", err)
			}
		}
		k.mu.Unlock()
	}
	t.work.Wait()
}

// owedPrefix begins the keys of the messages that wait for the next inbox call
// of an agent.
func owedPrefix(agent string) string {
	sum := sha256.Sum256([]byte(agent))
	return "owed/" + hex.EncodeToString(sum[:16]) + "/"
}
