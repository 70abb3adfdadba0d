package a2a

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal"
)

// The events about a task before its end: each status and each part once, in
// order, also after a reconnect or a restart.
func sizeOf(parts protocol.ContentParts) (n int64) {
	for _, p := range parts {
		if p == nil {
			continue
		}
		n += 64
		switch c := p.Content.(type) {
		case protocol.Text:
			n += int64(len(c))
		case protocol.Raw:
			n += int64(len(c))
		case protocol.URL:
			n += int64(len(c))
		}
	}
	return n
}

// tellParts tells a requester that reads events about the parts of an artifact that it
// does not know, one by one: so each has the same place after a reconnect.
func (f *taskFollower) tellParts(ctx context.Context, a *protocol.Artifact) (over bool) {
	if !f.w.Streams {
		return false
	}
	id := string(a.ID)
	f.mu.Lock()
	told, known := f.w.Artifacts[id]
	room := known || len(f.w.Artifacts) < maxTold
	f.mu.Unlock()
	if !room {
		return false // the answer has it
	}
	if told.Parts > len(a.Parts) { // the agent replaced it while nobody looked
		told = toldParts{Round: told.Round + 1}
	}
	for ; told.Parts < len(a.Parts); told.Parts++ {
		part := a.Parts[told.Parts]
		if part == nil {
			continue
		}
		key := fmt.Sprintf("artifact %d %d %s", told.Round, told.Parts, id)
		if f.tell(ctx, fromChunk(a, part), key) {
			return true
		}
	}
	f.mu.Lock()
	if f.w.Artifacts == nil {
		f.w.Artifacts = map[string]toldParts{}
	}
	f.w.Artifacts[id] = told
	flush := f.w.Events%flushEvery == 0
	f.mu.Unlock()
	if flush {
		f.rekeep(ctx)
	}
	return false
}

// flushEvery is after how many events the row is written again.
const flushEvery = 64

// tellStatus tells about a status that is new.
func (f *taskFollower) tellStatus(ctx context.Context, s *protocol.TaskStatus) (over bool) {
	e := fromStatus(s, f.declares())
	if e == nil {
		return false
	}
	f.mu.Lock()
	key := statusKey(s, f.w.Inputs)
	known := slices.Contains(f.w.Told, key)
	f.mu.Unlock()
	if known {
		return false
	}
	if f.tell(ctx, e, "status "+key) {
		return true
	}
	f.mu.Lock()
	f.w.Told = append(slices.Clip(f.w.Told[max(0, len(f.w.Told)-maxTold+1):]), key)
	f.mu.Unlock()
	f.rekeep(ctx)
	return false
}

// statusKey names a status: by its message, else, if it asks for something, by its time, else by
// the inputs before it: an agent that works on tells a new time with each poll.
func statusKey(s *protocol.TaskStatus, inputs int) string {
	var sum [32]byte
	switch {
	case s.Message != nil && s.Message.ID != "":
		sum = sha256.Sum256([]byte("message\n" + s.Message.ID))
	case s.Message != nil:
		sum = sha256.Sum256(append([]byte(s.State+"\n"), marshal(s.Message)...))
	case s.Timestamp != nil && interrupted(s.State):
		sum = sha256.Sum256([]byte(string(s.State) + "\n" + s.Timestamp.UTC().Format(time.RFC3339Nano)))
	default:
		sum = sha256.Sum256([]byte(string(s.State) + "\n" + strconv.Itoa(inputs)))
	}
	return hex.EncodeToString(sum[:12])
}

// tell records an event of the agent about the request, once.
func (f *taskFollower) tell(ctx context.Context, e *parley.Message, key string) (over bool) {
	f.mu.Lock()
	full := f.w.Events >= maxEvents && e.State != parley.NeedsInput
	f.w.Events++
	f.mu.Unlock()
	if full {
		return false
	}
	id := f.id.String() // other requests of the scope may have the same artifacts
	return f.submit(ctx, e, journal.Key{ID: "a2a told " + id + " " + key, Sender: f.w.To + "\n" + id, Until: f.w.Until})
}
