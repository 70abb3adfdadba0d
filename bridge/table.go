package bridge

import "github.com/parley-hub/parley"

// Protocols are all of them, in the order of the documentation.
var Protocols = []string{"samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp"}

// A Way is a form in which a protocol carries a message to its recipient.
type Way string

// The ways. uAgents, A2E and MCP have two.
const (
	SAMVAD    Way = "samvad"
	Chat      Way = "uagents-chat"  // a chat message
	Model     Way = "uagents-model" // a message of a model that the agent declares
	Inbox     Way = "a2e-inbox"     // an event of parley_inbox
	Call      Way = "a2e-call"      // a tool call to a host, or the result of an agent's own call
	AGH       Way = "agh"
	ASP       Way = "asp"
	A2A       Way = "a2a"
	MCPClient Way = "mcp-client" // what comes of a client's call, or a message of parley_inbox: see [InInbox]
	MCPServer Way = "mcp-server" // a call of a tool of an attached server
)

// Ways are all of them, and the protocol of each.
var Ways = []struct {
	Way      Way
	Protocol string
	Title    string
}{
	{SAMVAD, "samvad", "SAMVAD"},
	{Chat, "uagents", "uAgents chat"},
	{Model, "uagents", "uAgents model"},
	{Inbox, "a2e", "A2E inbox"},
	{Call, "a2e", "A2E call or result"},
	{AGH, "agh", "AGH"},
	{ASP, "asp", "ASP"},
	{A2A, "a2a", "A2A"},
	{MCPClient, "mcp", "MCP client"},
	{MCPServer, "mcp", "MCP server"},
}

// InInbox reports whether an MCP client finds a message of a kind by parley_inbox. Messages of
// the others are answers to its calls.
func InInbox(k parley.Kind) bool {
	return k == parley.Request || k == parley.Notice || k == parley.Input || k == parley.Cancel
}

// A Fate is the effect of a translation on an aspect of a message.
type Fate uint8

// The fates. The Delivery of a message lists its losses.
const (
	Absent   Fate = iota // the sender's protocol does not say it, or nothing goes to such a recipient that has it
	Survives             // the recipient finds it where its protocol has it
	As                   // the recipient finds it in another form
	Refused              // the message is refused with a reason, and nothing is delivered
	Lost                 // the recipient does not find it; the Delivery says so
)

var fateNames = [...]string{"absent", "survives", "as", "refused", "lost"}

func (f Fate) String() string { return fateNames[f] }

// An Entry is the fate of one aspect, and how it comes about.
type Entry struct {
	Fate Fate
	How  string
}

// An Aspect is one thing that a message can say.
type Aspect string

// The aspects, in the order of the table.
const (
	Text        Aspect = "text"
	Object      Aspect = "object"
	OtherJSON   Aspect = "json"
	Numbers     Aspect = "numbers"
	Surrogates  Aspect = "surrogates"
	Bytes       Aspect = "bytes"
	Link        Aspect = "link"
	Several     Aspect = "several"
	Name        Aspect = "name"
	Type        Aspect = "type"
	Request     Aspect = "request"
	Response    Aspect = "response"
	Failure     Aspect = "failure"
	Code        Aspect = "code"
	Retry       Aspect = "retry"
	Accepted    Aspect = "accepted"
	Detail      Aspect = "accepted-detail"
	EventAct    Aspect = "event-act"
	Working     Aspect = "working"
	NeedsInput  Aspect = "needs-input"
	Input       Aspect = "input"
	Chunk       Aspect = "chunk"
	Notice      Aspect = "notice"
	Cancel      Aspect = "cancel"
	Skill       Aspect = "skill"
	Act         Aspect = "act"
	Schema      Aspect = "schema"
	Sent        Aspect = "sent"
	Deadline    Aspect = "deadline"
	Expiry      Aspect = "expiry"
	MessageID   Aspect = "message-id"
	Idempotency Aspect = "idempotency"
	Thread      Aspect = "conversation"
	ReplyTo     Aspect = "reply-to"
	Audience    Aspect = "audience"
	Trace       Aspect = "trace"
	Order       Aspect = "order"
	Sender      Aspect = "sender"
	Assurance   Aspect = "assurance"
	Signature   Aspect = "signature"
	Credentials Aspect = "credentials"
	Budget      Aspect = "budget"
	Context     Aspect = "context"
	Extra       Aspect = "extra"
)

// A Row is one aspect: what it is, how each protocol says it on the way in
// (a protocol that is not there cannot say it), and what becomes of it on each
// way out.
type Row struct {
	Aspect Aspect
	Title  string
	Field  string // of parley.Message, as a Loss names it
	In     map[string]string
	Out    map[Way]Entry
}

func survives(how ...string) Entry {
	e := Entry{Fate: Survives}
	if len(how) > 0 {
		e.How = how[0]
	}
	return e
}
func as(how string) Entry      { return Entry{As, how} }
func lost(why string) Entry    { return Entry{Lost, why} }
func refused(why string) Entry { return Entry{Refused, why} }
func never(why string) Entry   { return Entry{Absent, why} }

// stated gives the entries of a member that every way carries in the provenance.
func stated(member string) map[Way]Entry {
	return map[Way]Entry{
		SAMVAD:    as("the header Parley-Provenance, " + member + "; an answer's is found under the message ID, which is its spanId"),
		Chat:      as("the header Parley-Provenance, " + member),
		Model:     as("the header Parley-Provenance, " + member),
		Inbox:     as("metadata.parley, " + member),
		Call:      as("metadata.parley, " + member),
		AGH:       as("ext.parley, " + member),
		ASP:       as("the trust-evidence object, " + member),
		A2A:       as("metadata of Parley's extension, " + member),
		MCPClient: as("_meta of the result, hub.parley/provenance, " + member + "; metadata.parley in parley_inbox"),
		MCPServer: as("_meta of the call, hub.parley/provenance, " + member),
	}
}

// boxed gives the entry of a member that parley_inbox has of its own.
func boxed(member string) Entry {
	return as(member + " in parley_inbox; _meta of a result, hub.parley/provenance, " + member)
}

// with replaces entries of base by those of other.
func with(base map[Way]Entry, other map[Way]Entry) map[Way]Entry {
	for w, e := range other {
		base[w] = e
	}
	return base
}

// all gives every way the same entry.
func all(e Entry) map[Way]Entry {
	m := map[Way]Entry{}
	for _, w := range Ways {
		m[w.Way] = e
	}
	return m
}

// said gives the form of an aspect in each of the protocols.
func said(samvad, uagents, a2e, agh, asp, a2a, mcp string) map[string]string {
	m := map[string]string{}
	for i, s := range []string{samvad, uagents, a2e, agh, asp, a2a, mcp} {
		if s != "" {
			m[Protocols[i]] = s
		}
	}
	return m
}

const replacedReason = `half a surrogate pair ("\ud83d", of a text that was cut inside a character) becomes U+FFFD`

// noAnswers is why an attached server never gets what only requesters get.
const noAnswers = "an attached server makes no requests"

// SurrogatesReplaced is the loss of the row [Surrogates], for a way that can
// carry them elsewhere.
var SurrogatesReplaced = parley.Loss{Field: "Parts", Reason: replacedReason}

// Table is the loss table: the one place that lists the losses of translations.
var Table = []Row{
	{Text, "Plain text", "Parts", said("", "text of a chat message", "a JSON string", "text of a say", "subject of a QUERY, topic of an INFORM", "a text part", "text; a string as content of a hub tool"), map[Way]Entry{
		SAMVAD: as(`{"text": …}`), Chat: survives(), Model: as("the object that it spells, or the only required string of the model"),
		Inbox: survives(), Call: as(`{"text": …}`), AGH: survives(), ASP: as(`{"text": …}`),
		A2A:       survives("a text part"),
		MCPClient: survives("a text item; content in parley_inbox"),
		MCPServer: as("the tool's only required string, or its argument named content; else it is refused")}},
	{Object, "A JSON object", "Parts", said("payload", "a model's message", "arguments, data", "artifact, result", "parameters, data", "a data part", "arguments, structuredContent"), map[Way]Entry{
		SAMVAD: survives(), Chat: as("compact JSON text; its text or message, if that is all it has"), Model: survives(),
		Inbox: survives(), Call: survives(), AGH: as("an artifact, and as the text where there is none; a result stays a result"), ASP: survives(),
		A2A:       survives("a data part"),
		MCPClient: survives("structuredContent, with its text; content in parley_inbox"),
		MCPServer: survives("the arguments")}},
	{OtherJSON, "JSON that is no object", "Parts", said("", "", "content", "artifact, result", "", "a data part", "content of a hub tool, structuredContent"), map[Way]Entry{
		SAMVAD: as(`{"result": …}`), Chat: as("JSON text"), Model: refused("a model is an object"),
		Inbox: survives(), Call: as(`{"value": …}`), AGH: as(`an artifact; {"result": …} in a trace`), ASP: as(`{"result": …}`),
		A2A:       survives("a data part"),
		MCPClient: as("its text, and structuredContent in revisions that have it for any JSON; content in parley_inbox"),
		MCPServer: refused("arguments are an object: only a tool with an argument named content takes it")}},
	{Numbers, "Numbers beyond a 64-bit float", "Parts.Numbers", said("literal kept", "literal kept", "literal kept", "literal kept", "", "literal kept", "literal kept"), map[Way]Entry{
		SAMVAD: survives("literal kept"), Chat: survives("literal kept in the text"), Model: lost("uAgents agents read decimals as 64-bit floats; whole numbers of any size survive"),
		Inbox: survives("literal kept"), Call: survives("literal kept"), AGH: survives("literal kept"), ASP: refused("ASP signs numbers as 64-bit floats and takes no others"),
		A2A:       as("a text part of media type application/json, with the literal"),
		MCPClient: survives("literal kept"),
		MCPServer: survives("literal kept")}},
	{Surrogates, "Half a surrogate pair in JSON", "Parts", said("kept in a request", "", "", "", "", "", ""), with(all(lost(replacedReason)), map[Way]Entry{
		SAMVAD: survives("as written, in a request; in an answer U+FFFD")})},
	{Bytes, "Bytes: files, images", "Parts", said("", "resource with a data: URI", "base64 part of a result's event", "", "", "a raw part", "image, audio, or a resource with a blob"), map[Way]Entry{
		SAMVAD: as(`{"mediaType", "name", "base64"}`), Chat: as("a resource with a data: URI"), Model: refused("a model is an object"),
		Inbox: as("base64 in a part"), Call: as("base64 in a part"), AGH: as(`an artifact {"media_type", "name", "base64"}`), ASP: as(`mimeType application/octet-stream, {"data", "mediaType", "name"}`),
		A2A:       survives("a raw part"),
		MCPClient: survives("image, audio, or a resource with a blob, whose uri ends with the name; base64 in parley_inbox"),
		MCPServer: refused("arguments are JSON")}},
	{Link, "A URI with the digest of its target", "Parts", said("", "resource", "", "", "", "a url part", "resource_link"), map[Way]Entry{
		SAMVAD: as(`{"uri", "digest", "mediaType", "name"}`), Chat: survives("a resource"), Model: refused("a model is an object"),
		Inbox: as("a part with uri and digest"), Call: as("a part with uri and digest"), AGH: as(`an artifact {"uri", "digest", "media_type", "name"}`), ASP: as(`{"uri", "digest", "mediaType", "name"}`),
		A2A:       survives("a url part; the digest is in its metadata"),
		MCPClient: survives("resource_link, with the digest in its _meta, hub.parley/digest; uri and digest in parley_inbox"),
		MCPServer: refused("arguments are JSON")}},
	{Several, "More than one part", "Parts", said("", "contents of a chat message", "", "text with artifacts", "", "parts", "items of content"), map[Way]Entry{
		SAMVAD: lost("SAMVAD carries one JSON object: the first JSON part goes that is no named attachment, else the first part"), Chat: survives(), Model: lost("a uAgents model is one JSON object: of several parts one goes, by what the model takes"),
		Inbox: survives("content.parts"), Call: survives("parts"), AGH: survives("text and artifacts"), ASP: lost("ASP carries one JSON object: the first JSON part goes that is no named attachment, else the first part"),
		A2A:       survives("parts"),
		MCPClient: survives("items of content; content.parts in parley_inbox"),
		MCPServer: refused("arguments are one JSON object")}},
	{Name, "The name of a part", "Parts.Name", said("", "name of a resource", "name of an artifact", "", "", "filename", "name of a resource_link"), map[Way]Entry{
		SAMVAD: lost("text and JSON have no name in SAMVAD; bytes and links keep it"), Chat: lost("text and JSON have no name in a chat message; bytes and links keep it"), Model: lost("a model's message has no name"),
		Inbox: lost("a single text or JSON value has no name; several parts, bytes and links keep it"), Call: lost("a single text or JSON value has no name; several parts, bytes and links keep it"),
		AGH: lost("text and JSON artifacts have no name in AGH; bytes and links keep it"), ASP: lost("text and JSON have no name in ASP; bytes and links keep it"),
		A2A:       survives("filename"),
		MCPClient: lost("text, JSON, images and audio of a result have no name, nor has a single text or JSON value in parley_inbox; links and other bytes keep it"),
		MCPServer: lost("arguments have no name")}},
	{Type, "A JSON media type of its own", "Parts.MediaType", said("", "", "", "", "", "mediaType", "mimeType of a resource"), map[Way]Entry{
		SAMVAD: lost("JSON is just JSON in SAMVAD"), Chat: lost("JSON becomes text in a chat message"), Model: lost("JSON is just JSON in a model"),
		Inbox: lost("a single JSON value has no media type; several parts keep theirs"), Call: lost("a single JSON value has no media type; several parts keep theirs"),
		AGH: lost("an AGH artifact has no media type"), ASP: lost("JSON is just JSON in an ASP body"),
		A2A:       survives("mediaType"),
		MCPClient: lost("JSON is just JSON in a result, and as a single value in parley_inbox; several parts keep theirs there"),
		MCPServer: lost("JSON is just JSON in arguments")}},

	{Request, "Request", "Kind", said("message, task, stream", "envelope to a stand-in", "tool/call, skill/call, multi_agent/*", "directed say with work_id", "QUERY, DELEGATE", "message without taskId", "tools/call"), map[Way]Entry{
		SAMVAD: as("the mode that the skill declares: message, stream or task"), Chat: as("an envelope in a session of its own"), Model: as("an envelope in a session of its own"),
		Inbox: as("an event of the open parley_inbox call"), Call: as("tool/call/req"), AGH: as("a directed say with work_id"), ASP: as("QUERY"),
		A2A:       survives("SendMessage, SendStreamingMessage"),
		MCPClient: as("a message of parley_inbox, for parley_reply"),
		MCPServer: survives("tools/call")}},
	{Response, "Response", "Kind", said("response ok, task done, last SSE event", "first envelope in the session that is no acknowledgement", "tool/call/resp, parley_reply", "trace completed", "INFORM", "COMPLETED with artifacts, a Message", "result, parley_reply"), map[Way]Entry{
		SAMVAD: survives("response ok, task done, last SSE event"), Chat: survives("a chat message that ends the session"), Model: survives("the model that answers"),
		Inbox: survives("kind response"), Call: survives("tool/call/resp"), AGH: survives("trace completed, and a say"), ASP: survives("INFORM, informType result"),
		A2A:       survives("the artifact result, then COMPLETED; a Message where the agent is set so"),
		MCPClient: survives("the result"),
		MCPServer: never(noAnswers)}},
	{Failure, "Failure and its text", "Kind", said("response error", "ErrorMessage", "error, failed result", "trace failed, receipt rejected", "REJECT, INFORM error", "FAILED, REJECTED, CANCELED, a protocol error", "result with isError, JSON-RPC error, parley_reply with error"), map[Way]Entry{
		SAMVAD: survives("response error"), Chat: survives("ErrorMessage"), Model: survives("ErrorMessage"),
		Inbox: survives("kind error"), Call: survives("error"), AGH: survives("trace failed; receipt rejected for a refusal"), ASP: survives("INFORM error; REJECT for a refusal"),
		A2A:       survives("FAILED, REJECTED or CANCELED, with the text in status.message"),
		MCPClient: survives("a result with isError"),
		MCPServer: never(noAnswers)}},
	{Code, "The code of a failure", "Error.Code", said("one of nine codes", "", "code and reason", "reason_code", "code", "the state, the code of a protocol error", "code of a JSON-RPC error"), map[Way]Entry{
		SAMVAD: as("one of the nine codes of SAMVAD"), Chat: lost("an ErrorMessage is text alone"), Model: lost("an ErrorMessage is text alone"),
		Inbox: survives("error.code"), Call: survives("reason"), AGH: as("reason_code, and ext.parley"), ASP: as("one of ASP's rejection codes"),
		A2A:       as("the state, and metadata of Parley's extension, code"),
		MCPClient: as("_meta of the result, hub.parley/error, code"),
		MCPServer: never(noAnswers)}},
	{Retry, "Retry, and its delay", "Error.After", said("Retry-After", "", "retryable, retry_after", "", "", "Retry-After of a refused call, metadata of Parley's extension", ""), map[Way]Entry{
		SAMVAD: as("Retry-After of a response; a task or stream has none"), Chat: lost("an ErrorMessage is text alone"), Model: lost("an ErrorMessage is text alone"),
		Inbox: survives("error.retryable, error.retry_after"), Call: survives("retryable, retry_after"), AGH: as("ext.parley"), ASP: as("the trust-evidence object"),
		A2A:       as("metadata of Parley's extension, retryable and retry_after"),
		MCPClient: as("_meta of the result, hub.parley/error, retryable and after"),
		MCPServer: never(noAnswers)}},
	{Accepted, "Event: accepted", "State", said("", "chat acknowledgement", "parley_reply state", "receipt accepted", "ACCEPT, INFORM accepted", "SUBMITTED", "parley_reply with state"), map[Way]Entry{
		SAMVAD: lost("SAMVAD streams chunks, no states"), Chat: as("the acknowledgement"), Model: lost("uAgents has no events besides the acknowledgement of a chat message"),
		Inbox: survives("state"), Call: as("an event of a streaming call"), AGH: survives("receipt accepted"), ASP: survives("INFORM accepted"),
		A2A:       survives("SUBMITTED"),
		MCPClient: as("the message of progress; only a client that gave a token gets progress"),
		MCPServer: never(noAnswers)}},
	{Detail, "The content of an accepted event", "Parts", said("", "", "content of parley_reply", "detail of a receipt", "data", "status.message", "content of parley_reply"), map[Way]Entry{
		SAMVAD: lost("SAMVAD streams chunks, no states"), Chat: lost("an acknowledgement has no content"), Model: lost("uAgents has no events besides the acknowledgement of a chat message"),
		Inbox: survives("content"), Call: survives("message, value"), AGH: lost("a receipt has text alone"), ASP: survives("data"),
		A2A:       survives("status.message"),
		MCPClient: as("the message of progress, JSON as its text; bytes and links of an event are lost, and reported"),
		MCPServer: never(noAnswers)}},
	{EventAct, "The speech act of an event", "Act", said("", "", "", "", "performative", "AUTH_REQUIRED, metadata of Parley's extension", ""), map[Way]Entry{
		SAMVAD: as("found under the message's ID"), Chat: lost("an acknowledgement says nothing besides"), Model: lost("uAgents has no events besides the acknowledgement of a chat message"),
		Inbox: survives("act"), Call: lost("an event of a call has content alone"), AGH: as("ext.parley, act"), ASP: as("the trust-evidence object, act"),
		A2A:       as("metadata of Parley's extension, act; auth-required is AUTH_REQUIRED"),
		MCPClient: lost("progress and elicitation have a message alone"),
		MCPServer: never(noAnswers)}},
	{Working, "Event: working", "State", said("", "", "tool/event, parley_reply state", "trace working", "INFORM progress", "WORKING", "progress, parley_reply with state"), map[Way]Entry{
		SAMVAD: lost("SAMVAD streams chunks, no states"), Chat: lost("uAgents has no events besides the acknowledgement of a chat message"), Model: lost("uAgents has no events besides the acknowledgement of a chat message"),
		Inbox: survives("state"), Call: as("an event of a streaming call"), AGH: survives("trace working"), ASP: survives("INFORM progress"),
		A2A:       survives("WORKING"),
		MCPClient: as("the message of progress; only a client that gave a token gets progress"),
		MCPServer: never(noAnswers)}},
	{NeedsInput, "Event: needs input", "State", said("", "", "parley_reply state", "trace needs_input", "CLARIFY, INFORM input-required", "INPUT_REQUIRED, AUTH_REQUIRED", "elicitation, parley_reply with state"), map[Way]Entry{
		SAMVAD: lost("SAMVAD streams chunks, no states"), Chat: as("a chat message in the session of the request"), Model: lost("uAgents has no events besides the acknowledgement of a chat message"),
		Inbox: survives("state"), Call: as("an event of a streaming call"), AGH: survives("trace needs_input"), ASP: survives("INFORM input-required"),
		A2A:       survives("INPUT_REQUIRED; AUTH_REQUIRED where the act is auth-required"),
		MCPClient: as("elicitation; a client that offers none gets a result with the question as text"),
		MCPServer: never(noAnswers)}},
	{Input, "Input: more about an open request", "Kind", said("", "chat message in the session of a request that asked for it", "parley_send with in_reply_to", "say in the work of the request", "CLARIFY or INFORM about the QUERY", "message with taskId", "answer to an elicitation, parley_send with in_reply_to"), map[Way]Entry{
		SAMVAD: lost("SAMVAD cannot add to a request"), Chat: as("a chat message in the session of the request"), Model: lost("a uAgents model has no place for more about a request"),
		Inbox: survives("kind input"), Call: lost("A2E cannot add to a call"), AGH: as("a say in the work of the request"), ASP: as("CLARIFY with an answer; INFORM, informType input, where it is more than text"),
		A2A:       survives("a message with the task's taskId"),
		MCPClient: survives("kind input in parley_inbox"),
		MCPServer: as("the answer to the server's elicitation, whose _meta is like that of a call; one that it did not ask for is refused")}},
	{Chunk, "Event: a piece of the result", "Kind", said("SSE chunk", "", "tool/event", "", "INFORM chunk", "artifact update", ""), map[Way]Entry{
		SAMVAD: as("an SSE chunk of a stream; other callers get the result alone"), Chat: lost("uAgents has no events besides the acknowledgement of a chat message"), Model: lost("uAgents has no events besides the acknowledgement of a chat message"),
		Inbox: survives("kind event"), Call: as("an event of a streaming call"), AGH: as("trace working with the piece as its result"), ASP: survives("INFORM chunk"),
		A2A:       survives("a piece of the artifact result"),
		MCPClient: as("the message of progress, JSON as its text; the result has it all"),
		MCPServer: never(noAnswers)}},
	{Notice, "Notice", "Kind", said("", "envelope in an open session; one that ends it", "parley_send", "say without work_id, broadcast", "INFORM, PROPOSE, COUNTER, COMMIT, …", "", "parley_send"), map[Way]Entry{
		SAMVAD: as("a task without a callback"), Chat: survives("an envelope"), Model: survives("an envelope"), Inbox: survives("kind notice"),
		Call: as("a tool call whose result nobody reads"), AGH: survives("say"), ASP: survives("INFORM, or the performative of the act, whole"),
		A2A:       as("a message whose result the hub does not read"),
		MCPClient: survives("kind notice in parley_inbox"),
		MCPServer: as("a tool call whose result nobody reads")}},
	{Cancel, "Cancel", "Kind", said("", "", "", "receipt canceled", "WITHDRAW", "CancelTask", "notifications/cancelled, a closed stream, a declined elicitation"), map[Way]Entry{
		SAMVAD: lost("SAMVAD cannot cancel a request"), Chat: lost("uAgents cannot cancel a request"), Model: lost("uAgents cannot cancel a request"),
		Inbox: survives("kind cancel"), Call: lost("A2E cannot cancel a request"), AGH: survives("receipt canceled"), ASP: survives("WITHDRAW"),
		A2A:       survives("CancelTask"),
		MCPClient: survives("kind cancel in parley_inbox"),
		MCPServer: survives("notifications/cancelled, or the closed stream")}},

	{Skill, "The skill that is meant", "Skill", said("skill", "the model", "the tool", "intent, ext.parley.skill, capability", "queryType, scope", "metadata of Parley's extension, else by the content", "the tool"), map[Way]Entry{
		SAMVAD: survives("skill"), Chat: as("a message that names a skill goes as the skill's model"), Model: survives("the model"),
		Inbox: survives("skill"), Call: survives("tool_name"), AGH: as("ext.parley.skill"), ASP: survives("queryType; topic of an INFORM"),
		A2A:       as("metadata of Parley's extension, skill"),
		MCPClient: as("skill in parley_inbox; a result answers the call"),
		MCPServer: survives("the tool")}},
	{Act, "The speech act", "Act", said("", "", "", "intent", "performative", "metadata of Parley's extension", ""), with(stated("act"), map[Way]Entry{
		Inbox: survives("act"), AGH: survives("intent"), ASP: as("the performative or topic of a notice; the trust-evidence object of a request"),
		MCPClient: boxed("act")})},
	{Schema, "The name of the content's schema", "Schema", said("", "schema digest", "", "", "version", "metadata of Parley's extension", ""), with(stated("schema"), map[Way]Entry{
		Model: as("the model of that digest; the header Parley-Provenance"), Inbox: survives("schema"),
		MCPClient: boxed("schema")})},

	{Sent, "The sender's time of sending", "Sent", said("timestamp", "timestamp of a chat message", "", "ts", "timestamp", "metadata of Parley's extension", ""), stated("sent")},
	{Deadline, "The deadline", "Deadline", said("", "expires of a synchronous envelope", "timeout", "", "constraints.maxResponseTimeMs", "metadata of Parley's extension", ""), with(stated("deadline"), map[Way]Entry{
		ASP:  as("constraints.maxResponseTimeMs, and the trust-evidence object, deadline"),
		Chat: as("expires"), Model: as("expires"), Inbox: survives("deadline"), Call: as("timeout"), AGH: as("expires_at"),
		MCPClient: boxed("deadline")})},
	{Expiry, "The expiry", "Expires", said("", "expires", "", "expires_at", "", "metadata of Parley's extension", ""), with(stated("expires"), map[Way]Entry{
		Chat: survives("expires"), Model: survives("expires"), Inbox: survives("expires"), AGH: survives("expires_at"),
		MCPClient: boxed("expires")})},
	{MessageID, "The message's ID", "ID", said("nonce, spanId", "digest, msg_id", "id", "id", "messageId", "messageId", ""), with(stated("message"), map[Way]Entry{
		SAMVAD: as("spanId"), Inbox: survives("id"), Call: as("id of the call"), AGH: as("id"), ASP: as("messageId"),
		A2A:       as("messageId, and metadata of Parley's extension, message"),
		MCPClient: as("id in parley_inbox; _meta of a result, hub.parley/provenance, message")})},
	{Idempotency, "The idempotency key", "ID", said("nonce", "digest of the envelope", "id", "id", "messageId, proof", "messageId", "_meta, hub.parley/idempotencyKey"), map[Way]Entry{
		SAMVAD: as("spanId, the same at each attempt; agents do not look at it, so the hub repeats nothing of unknown outcome"),
		Chat:   as("msg_id, the same at each attempt; agents do not look at it, so the hub repeats nothing of unknown outcome"),
		Model:  as("session, the same at each attempt; agents do not look at it, so the hub repeats nothing of unknown outcome"),
		Inbox:  survives("id, the same at each attempt"), Call: as("id, the same at each attempt"), AGH: as("id, the same at each attempt"), ASP: as("messageId, the same at each attempt"),
		A2A:       as("messageId, the same at each attempt; agents may ignore it, so the hub repeats nothing of unknown outcome"),
		MCPClient: as("id in parley_inbox, the same at each attempt; a result is fetched again by parley_result"),
		MCPServer: as("message in hub.parley/provenance, the same at each attempt; servers do not look at it, so the hub repeats nothing of unknown outcome but calls of tools in mcp.repeatable")}},
	{Thread, "The conversation", "Conversation", said("traceId", "session", "correlation_id", "thread or room", "sessionId", "contextId", "conversation of parley_ask and parley_send"), map[Way]Entry{
		SAMVAD: as("the header Parley-Provenance; traceId where there is no trace"), Chat: as("session of a notice; a request has one of its own; the header Parley-Provenance"), Model: as("session of a notice; a request has one of its own; the header Parley-Provenance"),
		Inbox: survives("conversation"), Call: as("correlation_id"), AGH: as("a thread or room"), ASP: as("trust-evidence; what one agent asks another is in one session"),
		A2A:       as("contextId, and metadata of Parley's extension, conversation"),
		MCPClient: as("conversation in parley_inbox; _meta of a result, hub.parley/conversation"),
		MCPServer: as("_meta of the call, hub.parley/provenance, conversation")}},
	{ReplyTo, "The reference to the request", "InReplyTo", said("the exchange", "session", "id", "work_id, reply_to", "referenceId", "taskId", "the call, in_reply_to, id of parley_reply"), map[Way]Entry{
		SAMVAD: survives("the exchange, or the task"), Chat: survives("session"), Model: survives("session"), Inbox: survives("in_reply_to"), Call: survives("req_id"), AGH: survives("work_id, reply_to"), ASP: survives("referenceId"),
		A2A:       survives("the task"),
		MCPClient: survives("the call; in_reply_to in parley_inbox"),
		MCPServer: survives("the elicitation")}},
	{Audience, "Other recipients", "Audience", said("", "", "", "members of the channel", "participants", "", ""), with(stated("audience"), map[Way]Entry{
		SAMVAD: lost("SAMVAD has one recipient"), Chat: lost("a uAgents envelope has one recipient"), Model: lost("a uAgents envelope has one recipient"), Inbox: survives("audience"),
		MCPClient: boxed("audience"),
		MCPServer: lost("a tool call has one recipient")})},
	{Trace, "Trace ids", "Trace", said("traceId, spanId", "", "", "trace_id", "", "the header traceparent", "_meta, traceparent"), with(stated("trace"), map[Way]Entry{
		SAMVAD: survives("traceId; parentSpanId within SAMVAD"), AGH: survives("trace_id"),
		A2A:       as("the header traceparent, and metadata of Parley's extension, trace"),
		MCPClient: as("_meta of a result, traceparent; metadata.parley in parley_inbox, trace"),
		MCPServer: as("_meta of the call, traceparent")})},
	{Order, "Order", "", said("none", "none", "of the session", "of the channel", "sequence and chain", "none", "none"), all(as("the order of the record, per recipient and conversation"))},

	{Sender, "The sender", "From", said("from", "sender", "the session's agent", "from", "sender", "the caller that token, issuer or certificate name", "the caller that token, issuer or certificate name"), stated("sender")},
	{Assurance, "The assurance", "Origin.Verdict", said("signed", "signed; unsigned user addresses", "session", "session; signed handles", "signed", "session", "session"), stated("assurance")},
	{Signature, "The signature, with the bytes and headers it covers", "Origin.Raw", said("RFC 9421 over body and headers", "secp256k1 over the envelope", "", "proof of a handle", "Ed25519 over the envelope", "", ""), stated("digest: the signature itself stays in the hub's record, and no signature of the hub stands for it")},
	{Credentials, "Tokens and delegation", "Extensions", said("auth, delegationToken", "", "token of the session", "", "access token", "credentials of the call", "credentials of the call"), all(lost("credentials end at the hub, which has judged them"))},
	{Budget, "Cost, budget and other constraints", "Extensions", said("", "", "llm_override", "", "maxTokenBudget, requiredTrustScore and allowedPerformatives of constraints", "", ""), all(lost("no protocol says another's constraints"))},
	{Context, "Context objects", "Extensions", said("", "", "", "", "content.context", "", ""), all(lost("only ASP has context objects"))},
	{Extra, "Members of the sender's protocol alone", "Extensions", said("", "streams of a chat message, and members that it names twice", "task_name of a delegation", "ext members", "subject beside parameters", "metadata, extensions, reference tasks, accepted output modes, artifacts", ""), all(lost("it belongs to another protocol"))},
}

// Within lists the protocols that pass on the original envelope, unchanged, between
// two of their agents; in the others the hub makes and signs a new envelope.
var Within = map[string]string{
	"uagents": "the envelope goes on as it came, with its signature, where its target is the agent itself",
	"agh":     "the envelope goes on as it came",
	"asp":     "participants of a session read the sender's envelope from the session itself",
}

// Own lists the protocols that say anew, between two of their agents, also what they alone
// can say.
var Own = map[string]string{
	"a2a": "metadata, extensions, reference tasks, accepted output modes, artifact names and descriptions",
}

// bookkeeping are extensions that a protocol keeps for its own needs, or that other
// fields carry: their absence on another protocol's wire is no loss.
var bookkeeping = map[string]map[string]bool{
	"uagents": {"msg_id": true, "start_session": true, "end_session": true},
	"a2e":     {"subagent": true, "success_criteria": true, "type": true},
	"asp":     {"record": true, "joined": true},
}

// extensionAspects maps members of extensions to aspects; others are Extra.
var extensionAspects = map[string]Aspect{
	"samvad.delegation": Credentials, "samvad.auth": Credentials, "samvad.surrogates": Surrogates, "asp.constraints": Budget, "asp.context": Context, "a2e.llm_override": Budget,
}

// rows finds a row of Table by its aspect.
var rows = func() map[Aspect]*Row {
	m := make(map[Aspect]*Row, len(Table))
	for i := range Table {
		m[Table[i].Aspect] = &Table[i]
	}
	return m
}()

// Look gives the fate of an aspect of a message that comes in by a protocol and goes
// out by a way. Within one protocol that passes envelopes on, every aspect survives.
func Look(from string, to Way, a Aspect) Entry {
	r := rows[a]
	if r == nil {
		return Entry{}
	}
	if _, ok := r.In[from]; !ok {
		return Entry{}
	}
	if to.Protocol() == from && Within[from] != "" {
		return Entry{Survives, Within[from]}
	}
	if to.Protocol() == from && a == Extra && Own[from] != "" {
		return Entry{Survives, Own[from]}
	}
	return r.Out[to]
}

// Protocol of a way; "" for one that is none.
func (w Way) Protocol() string {
	for _, x := range Ways {
		if x.Way == w {
			return x.Protocol
		}
	}
	return ""
}
