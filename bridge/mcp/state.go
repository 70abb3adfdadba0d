package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/recorder"
	"github.com/parley-hub/parley/journal"
)

// What is recorded of the inboxes of callers: one row for each message, from its delivery until its reader names it, or
// a message after it, as one that it has. Rows never change, so the state gives them in the order of their deliveries,
// and a row that comes before another in it was there when the other was read.

// Bounds of an inbox.
const (
	inboxTTL      = 7 * 24 * time.Hour
	inboxMessages = 1000
	inboxBytes    = 16 << 20
	inboxWaits    = 32 // calls of one agent that wait at a hub; more of them get what is there
)

// inbox keeps messages for agents that call the hub over MCP, until they have read them by parley_inbox.
type inbox struct {
	b    *Binding
	rows *journal.Table[json.RawMessage] // the JSON of bridge.Arrival, by inboxKey

	messages, bytes int // bounds of each agent's inbox

	mu    sync.Mutex
	boxes map[string]*box // by inboxPrefix
}

// A box is what this hub knows of one agent's inbox.
type box struct {
	kept  map[string]keptMessage // by key
	bytes int
	waits int
	grown chan struct{} // is closed when a message comes
}

type keptMessage struct {
	size     int
	until    time.Time
	revision uint64 // 0: it is being recorded
}

func newInbox(b *Binding) *inbox {
	return &inbox{b: b, rows: journal.NewTable[json.RawMessage](b.c.Journal, "mcp-inbox", 0), messages: inboxMessages,
		bytes: inboxBytes, boxes: map[string]*box{}}
}

// inboxPrefix begins the keys of an agent's messages. Names may have slashes, so it is a digest.
func inboxPrefix(agent string) string {
	sum := sha256.Sum256([]byte("mcp inbox\x00" + agent))
	return hex.EncodeToString(sum[:16]) + "/"
}

func inboxKey(agent string, message parley.ID) string { return inboxPrefix(agent) + message.String() }

// start follows the messages that hubs record.
func (i *inbox) start(ctx context.Context) error {
	stop, err := i.rows.Watch(ctx, "", i.changed)
	if err != nil {
		return fmt.Errorf("follow the messages for MCP callers: %w", err)
	}
	i.b.stops = append(i.b.stops, stop)
	return nil
}

// changed counts a message that any hub recorded or removed.
func (i *inbox) changed(row journal.Row[json.RawMessage]) {
	prefix, _, _ := strings.Cut(row.Key, "/")
	i.mu.Lock()
	defer i.mu.Unlock()
	x := i.boxLocked(prefix + "/")
	x.drop(row.Key)
	if row.Revision != 0 {
		x.add(row.Key, keptMessage{len(row.Value), row.Until, row.Revision})
		close(x.grown)
		x.grown = make(chan struct{})
	}
	i.tidyLocked(prefix + "/")
}

func (i *inbox) boxLocked(prefix string) *box {
	x := i.boxes[prefix]
	if x == nil {
		x = &box{kept: map[string]keptMessage{}, grown: make(chan struct{})}
		i.boxes[prefix] = x
	}
	return x
}

// tidyLocked drops a box that nobody needs.
func (i *inbox) tidyLocked(prefix string) {
	if x := i.boxes[prefix]; x != nil && len(x.kept) == 0 && x.waits == 0 {
		delete(i.boxes, prefix)
	}
}

func (x *box) add(key string, m keptMessage) {
	x.kept[key] = m
	x.bytes += m.size
}

func (x *box) drop(key string) {
	x.bytes -= x.kept[key].size
	delete(x.kept, key)
}

// reserve counts a message that is about to be recorded. The error says that there is no room for it.
func (i *inbox) reserve(agent, key string, m keptMessage) *parley.Error {
	prefix := inboxPrefix(agent)
	i.mu.Lock()
	defer i.mu.Unlock()
	x := i.boxLocked(prefix)
	if _, known := x.kept[key]; known {
		return nil
	}
	full := func() bool { return len(x.kept) >= i.messages || x.bytes+m.size > i.bytes }
	if full() {
		now := i.b.c.Now()
		for key, old := range x.kept { // expiry is not reported
			if !old.until.After(now) {
				x.drop(key)
			}
		}
	}
	if full() {
		i.tidyLocked(prefix)
		return parley.Fail(parley.Unavailable, nil, "the inbox of agent %q is full: %d messages of %d, %d bytes of %d; "+
			"it has to read them by %s", agent, len(x.kept), i.messages, x.bytes, i.bytes, toolInbox).
			With(parley.ByLimit, parley.MailboxFull, "")
	}
	x.add(key, m)
	return nil
}

// release ends reserve for a message that was not recorded.
func (i *inbox) release(agent, key string) {
	prefix := inboxPrefix(agent)
	i.mu.Lock()
	defer i.mu.Unlock()
	if x := i.boxes[prefix]; x != nil && x.kept[key].revision == 0 {
		x.drop(key)
		i.tidyLocked(prefix)
	}
}

// deliver records a message for its recipient. A message that is there already is delivered.
func (i *inbox) deliver(ctx context.Context, o hub.Outbound) hub.Outcome {
	m, agent := o.Message, o.Recipient.Name
	if !bridge.InInbox(m.Kind) {
		return hub.Outcome{Err: parley.Refuse(parley.Unsupported,
			"MCP callers fetch events and answers; the hub does not send them")}
	}
	arrival, err := bridge.ArrivalOf(bridge.MCPClient, m, o.Attempt, i.b.c.Hub.ID())
	if err != nil {
		return hub.Outcome{Err: parley.Refuse(parley.InvalidContent, "the content cannot be said in MCP: %v", err)}
	}
	if int64(len(arrival)) > i.b.c.MaxAnswer {
		return hub.Outcome{Err: parley.Refuse(parley.TooLarge, "the message has %d bytes, the most that an MCP client gets "+
			"is %d", len(arrival), i.b.c.MaxAnswer).With(parley.ByLimit, parley.BodySize, "")}
	}
	row := journal.Row[json.RawMessage]{Key: inboxKey(agent, m.ID), Value: arrival, Until: i.b.c.Now().Add(inboxTTL)}
	if full := i.reserve(agent, row.Key, keptMessage{size: len(arrival), until: row.Until}); full != nil {
		return hub.Outcome{Err: full}
	}
	losses := bridge.Losses(bridge.MCPClient, m, agent)
	recorder.Sent(ctx, "", arrival) // the caller fetches it
	_, err = i.rows.Replace(context.WithoutCancel(ctx), row)
	switch {
	case err == nil, errors.Is(err, journal.ErrConflict):
		return hub.Outcome{Losses: losses}
	case errors.Is(err, journal.ErrTooLarge):
		i.release(agent, row.Key)
		return hub.Outcome{Err: parley.Refuse(parley.TooLarge, "the message is larger than a value of the hub's journal").
			Because(err).With(parley.ByLimit, parley.BodySize, "")}
	}
	i.release(agent, row.Key)
	return hub.Outcome{Err: parley.Fail(parley.Unavailable, err, "the message could not be kept").
		With(parley.ByHub, parley.HubStorage, ""), Wait: time.Second}
}

// A batch is a part of an agent's messages.
type batch struct {
	Messages []json.RawMessage `json:"messages"`
	Cursor   parley.ID         `json:"cursor,omitzero"` // the last one's id
	More     bool              `json:"more"`
}

// unread reads an agent's messages, in order: at most so many, and so many bytes, but one in any case.
func (i *inbox) unread(ctx context.Context, agent string, messages, bytes int) (*batch, error) {
	list := &batch{Messages: []json.RawMessage{}}
	prefix := inboxPrefix(agent)
	for row, err := range i.rows.Range(ctx, prefix) {
		switch {
		case err == nil:
		case row.Revision != 0: // a later cursor removes it
			i.b.c.Logger.Error("a message for an MCP caller cannot be read; it is passed over", "agent", agent,
				"key", row.Key, "error", err)
			continue
		default:
			return nil, inboxUnreadable(err)
		}
		if n := len(list.Messages); n == messages || n > 0 && bytes < len(row.Value) {
			list.More = true
			break
		}
		id, err := parley.ParseID(strings.TrimPrefix(row.Key, prefix))
		if err != nil {
			return nil, inboxUnreadable(err)
		}
		list.Messages, list.Cursor = append(list.Messages, row.Value), id
		bytes -= len(row.Value)
	}
	return list, nil
}

func inboxUnreadable(err error) error {
	return parley.Fail(parley.Unavailable, err, "the inbox cannot be read now; try again").
		With(parley.ByHub, parley.HubStorage, "")
}

// remove removes an agent's messages up to the one that it names. That one goes last: until then the call can be
// repeated, and after it the name removes nothing more.
func (i *inbox) remove(ctx context.Context, agent string, upTo parley.ID) error {
	last, err := i.rows.Get(ctx, inboxKey(agent, upTo))
	if err != nil {
		return inboxUnreadable(err)
	}
	if last.Revision == 0 {
		return nil
	}
	var keys []string
	for row, err := range i.rows.Range(ctx, inboxPrefix(agent)) {
		if err != nil && row.Revision == 0 {
			return inboxUnreadable(err)
		}
		if row.Revision >= last.Revision {
			break
		}
		keys = append(keys, row.Key)
	}
	errs := make([]error, len(keys))
	var all sync.WaitGroup // the journal writes them together
	for n, key := range keys {
		all.Go(func() { errs[n] = i.rows.Delete(ctx, key, 0) })
	}
	all.Wait()
	if err = errors.Join(errs...); err == nil {
		err = i.rows.Delete(ctx, last.Key, 0)
	}
	if err != nil {
		return parley.Fail(parley.Unavailable, err, "the messages that you have could not be removed now; try again").
			With(parley.ByHub, parley.HubStorage, "")
	}
	return nil
}

// enter counts a call that waits for messages; false: there are enough of them.
func (i *inbox) enter(agent string) (ok bool, leave func()) {
	prefix := inboxPrefix(agent)
	i.mu.Lock()
	defer i.mu.Unlock()
	x := i.boxLocked(prefix)
	if x.waits >= inboxWaits {
		return false, func() {}
	}
	x.waits++
	return true, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		x.waits--
		i.tidyLocked(prefix)
	}
}

// next gives a channel that is closed when a message comes, for a call that waits.
func (i *inbox) next(agent string) <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.boxLocked(inboxPrefix(agent)).grown
}

// forget removes messages; see [hub.Forgetter].
func (i *inbox) forget(ctx context.Context, f hub.Forgetting) (int, error) {
	own := ""
	if f.Agent != "" {
		own = inboxPrefix(f.Agent)
	}
	return i.rows.Sweep(ctx, "", func(row *journal.Row[json.RawMessage]) journal.Fate {
		var m bridge.Arrival
		known := json.Unmarshal(row.Value, &m) == nil
		if own != "" && strings.HasPrefix(row.Key, own) || known && (f.Message(m.ID) ||
			f.Agent != "" && m.From == f.Agent || !f.Conversation.IsZero() && m.Conversation == f.Conversation) {
			return journal.Remove
		}
		return journal.Keep
	})
}
