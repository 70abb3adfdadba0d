package hub

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/directory"
	"github.com/parley-hub/parley/journal"
)

// A Binding connects one protocol to the hub. Its methods are called from many
// goroutines.
type Binding interface {
	// Protocol is the protocol's short name: "samvad", "uagents", …
	Protocol() string
	// Capabilities says what the protocol can do. The hub asks once, in Bind.
	Capabilities() Capabilities
	// Deliver sends a message to a recipient. It returns when the recipient has
	// it, or has answered, or the attempt failed, or ctx ended.
	Deliver(ctx context.Context, o Outbound) Outcome
}

// A Service is a Binding that runs in the background. Start is called before the
// hub delivers anything, Close after the listeners are closed.
type Service interface {
	Binding
	Start(ctx context.Context) error
	Close() error
}

// An HTTPBinding has endpoints on the hub's HTTP listener. The first binding whose
// Serves reports true gets the request. Its path is below that of the public URL.
type HTTPBinding interface {
	Binding
	Serves(r *http.Request) bool
	http.Handler
}

// An Outbound is a message for a binding to deliver.
type Outbound struct {
	Message   *parley.Message
	Request   *parley.Message // the request that Message is about; else nil
	Scope     string          // of the record of Message, and of the keys of its replies
	Recipient *directory.Entry
	Identity  parley.Identity // the recipient's, in the binding's protocol
	Callback  string          // the name of the callback that gets the message, see [Capabilities.CallsBack]
	Attempt   int
	Waits     bool // the requester waits on an open connection
	Streams   bool // the requester gets events as they come
	// Event records an event about the request and sends it on. It may be called
	// until Deliver returns. A failed attempt with an event is Unknown.
	Event func(state parley.State, parts ...parley.Part) error
}

// An Outcome is the result of Deliver. The zero value: the recipient has the
// message, and a reply, if one is due, comes later.
type Outcome struct {
	Answered bool          // the recipient answered with Parts or Failure
	Parts    []parley.Part // of a Response
	Failure  *parley.Error // the recipient's own refusal or failure: its answer
	// further members of the reply: Act, Schema, Origin, Extensions, Trace; may be nil
	Reply *parley.Message

	Err     *parley.Error // the attempt failed
	Wait    time.Duration // with Err: try again after this; it is not counted as a try
	Unknown bool          // with Err: the recipient may have received it
	Losses  []parley.Loss
}

// Capabilities say what a protocol can do, so that the hub does the rest: for a
// recipient that does not deduplicate, for example, the hub makes no second attempt
// when it cannot know whether the first one arrived. A function field answers per
// agent or per message. The zero value is valid: each field documents its zero.
// Functions are called from many goroutines.
type Capabilities struct {
	// Deduplicates: recipients ignore a message that they received before.
	Deduplicates bool
	// DeduplicatesFor answers for one agent, in place of Deduplicates. nil: all
	// agents are alike.
	DeduplicatesFor func(e *directory.Entry, id parley.Identity) bool
	// Resumes reports whether the binding remembers how it sent a message, so that
	// the next attempt finds out the outcome of the previous one and repeats nothing.
	// nil: never.
	Resumes func(message parley.ID) bool

	// CarriesReplies: events and the reply of a request that came in through the
	// binding go out through Deliver. false: senders fetch them, like SAMVAD tasks.
	CarriesReplies bool
	// CarriesEvent reports whether Deliver takes an event; other events are recorded
	// but not delivered. nil: every event, if CarriesReplies.
	CarriesEvent func(event *parley.Message) bool
	// Streams reports whether the sender of a request gets its events as they come
	// although CarriesReplies is false: an A2A client may have a stream open. nil: never.
	Streams func(request *parley.Message) bool
	// CallsBack names the callbacks to which an event or the terminal reply of a request
	// is delivered although CarriesReplies is false: a SAMVAD sender may ask for one, "",
	// an A2A client for several. Each has the attempts, pauses and dead letters of any other
	// recipient. nil: none.
	CallsBack func(request, reply *parley.Message) []string
	// ReplyLosses gives the losses of an event or a reply without a delivery: the
	// requester reads it in the response to its call, fetches it, or never sees it.
	// The hub adds them to the delivery of the request. nil: none.
	ReplyLosses func(reply, request *parley.Message) []parley.Loss

	// Reaches reports whether an agent can be called by this identity: one that only calls the
	// hub has no address. nil: by each.
	Reaches func(id parley.Identity) bool
	// Holds reports whether an agent can take nothing just now: its messages wait,
	// without an attempt, until [Hub.Kick]. nil: never.
	Holds func(e *directory.Entry, id parley.Identity) bool
	// Members gives the directory names of a group's members: a notice to the group
	// is for each of them too. It returns nil for an agent that is no group.
	// nil: there are no groups.
	Members func(e *directory.Entry, id parley.Identity) []string

	// Address gives an agent's address as the protocol writes it, "" if it has none.
	// nil: the binding hosts no agents.
	Address func(e *directory.Entry) string
	// Profile gives the profile that an agent's owner published; nil if there is
	// none. The caller must not change it. nil: there are no profiles.
	Profile func(e *directory.Entry) *Profile

	// Way says how messages get to an agent, and what the binding sees of that now. It may ask the agent, but starts
	// no work there. nil: the binding knows nothing.
	Way func(ctx context.Context, e *directory.Entry, id parley.Identity) Way

	// Connection says what the binding knows of an agent's connection. It is called for lists, so it asks nobody and
	// reads no storage. nil: it knows nothing.
	Connection func(e *directory.Entry, id parley.Identity) Connection
	// StandInAddress gives the address that an agent's stand-in has, also before there is one. nil: Address says it, or
	// it is not known before.
	StandInAddress func(agent string) string

	// Erasing is called before records lose their content, to copy elsewhere the
	// parts that must outlive it. An error keeps the content. nil: nothing must
	// outlive it.
	Erasing func(ctx context.Context, records []*journal.Record) error
	// ForgetRecent drops messages that the binding caches to save reads of the
	// journal. nil: it caches none.
	ForgetRecent func()
}

// bound is a binding with its capabilities.
type bound struct {
	Binding
	can Capabilities
}

// A Profile describes an agent for people. Its owner published it: the hub proved the
// owner, not the content.
type Profile struct {
	Account     string          `json:"account"` // the owner's
	Name        string          `json:"name"`
	Handle      string          `json:"handle,omitzero"`
	Description string          `json:"description,omitzero"`
	Readme      string          `json:"readme,omitzero"` // Markdown
	Prompts     []string        `json:"prompts,omitzero"`
	Avatar      string          `json:"avatar,omitzero"` // URL of an image, as are banners
	Banner      string          `json:"banner,omitzero"`
	Metadata    json.RawMessage `json:"metadata,omitzero"` // JSON object
	Updated     time.Time       `json:"updated"`
}
