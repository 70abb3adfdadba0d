package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// Resources of a caller: cards of the agents that it may use, and its conversations.
const (
	agentURI        = "parley://agents/"        // and the agent's name
	conversationURI = "parley://conversations/" // and the conversation's id
	jsonType        = "application/json"
)

const (
	maxURI           = 2 << 10 // bytes of one that an error gives back
	maxCards         = 100     // in a list
	maxConversations = 20      // in a list
	maxCardSize      = 1 << 20 // bytes of the schemas on a card
	pageMessages     = 50      // of a conversation
	pageSize         = 1 << 20 // bytes of content, if more than one message
)

func templates(who *caller) []*mcp.ResourceTemplate {
	out := []*mcp.ResourceTemplate{{URITemplate: agentURI + "{name}", Name: "agent", Title: "Card of an agent",
		MIMEType: jsonType, Description: "What an agent is and can do, in its own words: description, skills, schemas."}}
	if !who.Guest {
		out = append(out, &mcp.ResourceTemplate{URITemplate: conversationURI + "{id}{?after}", Name: "conversation",
			Title: "Conversation", MIMEType: jsonType, Description: "The messages that you sent and got in a conversation, " +
				"with their proof, the oldest first. A page ends with next if there are more: give it as after."})
	}
	return out
}

// resources lists the newest conversations of a caller, and the agents that it may use.
func (c *clients) resources(ctx context.Context, who *caller) ([]*mcp.Resource, error) {
	out := []*mcp.Resource{}
	for _, t := range c.visible(who) {
		uri := agentURI + url.PathEscape(t.Agent)
		if slices.ContainsFunc(out, func(r *mcp.Resource) bool { return r.URI == uri }) {
			continue
		}
		if out = append(out, &mcp.Resource{URI: uri, Name: t.Agent, MIMEType: jsonType,
			Title:       shownText(t.Entry.Title, maxTitle),
			Description: shownText(t.Entry.Description, 300)}); len(out) == maxCards {
			break
		}
	}
	list, err := c.conversations(ctx, who)
	return append(out, list...), err
}

// conversations lists those in which a caller takes part, and at the endpoint of an agent, those with this agent.
func (c *clients) conversations(ctx context.Context, who *caller) (out []*mcp.Resource, err error) {
	if who.Guest { // the name of a guest may be that of several callers
		return nil, nil
	}
	if err := c.b.requests.Indexed(ctx); err != nil {
		return nil, indexError(err)
	}
	page, err := c.b.c.Index.Conversations(ctx, index.ConversationFilter{Agent: who.Name, Limit: maxConversations})
	if err != nil {
		return nil, indexError(err)
	}
	for _, v := range page.Conversations {
		own, err := c.b.c.Index.Messages(ctx, index.Filter{Agent: who.Name, Conversation: v.ID, Limit: pageMessages})
		if err != nil {
			return nil, indexError(err)
		}
		var with []string
		var last time.Time
		for _, m := range own.Messages { // the newest first
			if m.Refused {
				continue
			}
			if last.IsZero() {
				last = m.Time
			}
			for _, name := range []string{m.From, m.To} {
				if name != "" && name != who.Name && !slices.Contains(with, name) {
					with = append(with, name)
				}
			}
		}
		if last.IsZero() || who.agent != "" && !slices.Contains(with, who.agent) {
			continue
		}
		out = append(out, &mcp.Resource{URI: conversationURI + v.ID.String(), Name: "conversation " + v.ID.String(),
			MIMEType: jsonType, Title: bridge.Shorten("Conversation with "+strings.Join(with, ", "), maxTitle),
			Annotations: &mcp.Annotations{LastModified: last.UTC().Format(time.RFC3339)}})
	}
	return out, nil
}

// indexError is for a client that asks for what the hub cannot look up now.
func indexError(err error) error {
	return rpcError(jsonrpc.CodeInternalError, "%s", parley.AsError(err).Text)
}

// read is the handler of the hidden resource. What a caller may not read is not there (MCP-100).
func (c *clients) read(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	who, uri := callerOf(r), ""
	if uri, _ = ctx.Value(readKey{}).(string); who == nil || uri == "" {
		return nil, internalError()
	}
	var text []byte
	var err error
	name, isAgent := strings.CutPrefix(uri, agentURI)
	rest, isConversation := strings.CutPrefix(uri, conversationURI)
	switch {
	case isAgent:
		text, err = c.card(who, name)
	case isConversation && !who.Guest:
		text, err = c.transcript(ctx, who, rest)
	}
	if err != nil {
		return nil, err
	}
	if text == nil {
		code := int64(-32002)
		if isModern(r.ProtocolVersion()) {
			code = jsonrpc.CodeInvalidParams
		}
		return nil, unknownResource(code, uri)
	}
	contents := &mcp.ResourceContents{URI: uri, MIMEType: jsonType, Text: string(text)}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
}

// unknownResource names the resource in its data too, if it is short: a part of a URI names another resource.
func unknownResource(code int64, uri string) error {
	e := &jsonrpc.Error{Code: code, Message: fmt.Sprintf("resource not found: %q", bridge.Shorten(uri, 300))}
	if data, err := jsonx.Encode(map[string]string{"uri": uri}); err == nil && len(uri) <= maxURI {
		e.Data = data
	}
	return e
}

// An agentCard is an agent as a caller may use it.
type agentCard struct {
	Name        string      `json:"name"`
	Title       string      `json:"title,omitzero"`
	Description string      `json:"description,omitzero"`
	Version     string      `json:"version,omitzero"`
	Skills      []skillCard `json:"skills"`
}

type skillCard struct {
	ID          string          `json:"id,omitzero"`
	Name        string          `json:"name,omitzero"`
	Tool        string          `json:"tool"` // at this endpoint
	Description string          `json:"description,omitzero"`
	Input       json.RawMessage `json:"input,omitzero"`  // JSON Schema of the content
	Output      json.RawMessage `json:"output,omitzero"` // JSON Schema of the answer
}

// card gives the card of an agent; nil: there is none for this caller.
func (c *clients) card(who *caller, escaped string) ([]byte, error) {
	name, err := url.PathUnescape(escaped)
	if err != nil || who.agent != "" && who.agent != name {
		return nil, nil
	}
	var out *agentCard
	size := 0
	for _, t := range c.ofAgent(name) {
		if !c.b.sees(who, t.Tool) {
			continue
		}
		if out == nil {
			out = &agentCard{Name: name, Title: shownText(t.Entry.Title, maxTitle),
				Description: shownText(t.Entry.Description, maxDescription), Version: shownText(t.Entry.Version, maxTitle)}
		}
		s := c.schemas.of(t.Tool)
		v := skillCard{ID: visible(t.Skill.ID), Name: shownText(t.Skill.Name, maxTitle), Tool: t.name,
			Description: shownText(t.Skill.Description, maxDescription), Input: s.content, Output: s.output}
		if who.agent == "" {
			v.Tool = t.Name
		}
		if size += len(v.Input) + len(v.Output); size > maxCardSize {
			v.Input, v.Output = nil, nil // parley_find has them
		}
		out.Skills = append(out.Skills, v)
	}
	if out == nil {
		return nil, nil
	}
	return jsonx.Encode(out)
}

// A transcript is a page of a conversation.
type transcript struct {
	Conversation parley.ID        `json:"conversation"`
	Messages     []transcriptItem `json:"messages"`
	Next         string           `json:"next,omitzero"` // after for the next page
}

type transcriptItem struct {
	ID        parley.ID        `json:"id"`
	Kind      parley.Kind      `json:"kind"`
	State     parley.State     `json:"state,omitzero"`
	Number    int              `json:"number,omitzero"`
	From      string           `json:"from"`
	To        string           `json:"to,omitzero"`
	InReplyTo parley.ID        `json:"in_reply_to,omitzero"`
	Skill     string           `json:"skill,omitzero"`
	Act       string           `json:"act,omitzero"`
	Schema    string           `json:"schema,omitzero"`
	Sent      time.Time        `json:"sent,omitzero"`
	Recorded  time.Time        `json:"recorded"`
	Error     *transcriptError `json:"error,omitzero"`
	Parts     []transcriptPart `json:"parts,omitempty"`
	Erased    bool             `json:"erased,omitzero"` // the content is not there any more

	Provenance *bridge.ProvenanceObject `json:"provenance,omitzero"`
}

type transcriptError struct {
	Code      parley.Code `json:"code"`
	Text      string      `json:"text,omitzero"`
	Retryable bool        `json:"retryable,omitzero"`
}

type transcriptPart struct {
	MediaType string          `json:"media_type,omitzero"`
	Name      string          `json:"name,omitzero"`
	Text      *string         `json:"text,omitzero"`
	JSON      json.RawMessage `json:"json,omitzero"`
	Data      []byte          `json:"data,omitzero"` // base64: neither text nor JSON
	URI       string          `json:"uri,omitzero"`
	Digest    string          `json:"digest,omitzero"` // RFC 9530: of the content at uri, or of what is not there any more
}

// transcript gives a page of a caller's own messages in a conversation; nil: the caller takes no part in it. What other
// participants said to each other is not in it.
func (c *clients) transcript(ctx context.Context, who *caller, rest string) ([]byte, error) {
	text, query, _ := strings.Cut(rest, "?")
	id, err := parley.ParseID(text)
	q, bad := url.ParseQuery(query)
	if err != nil || bad != nil || len(q) > 1 || len(q) == 1 && len(q["after"]) != 1 {
		return nil, nil
	}
	if err := c.b.requests.Indexed(ctx); err != nil {
		return nil, indexError(err)
	}
	f := index.Filter{Agent: who.Name, Conversation: id, Oldest: true, Cursor: q.Get("after"), Limit: pageMessages}
	page, err := c.b.c.Index.Messages(ctx, f)
	if errors.Is(err, index.ErrFilter) {
		return nil, rpcError(jsonrpc.CodeInvalidParams, "after: not a value that an earlier page gave as next")
	}
	if err != nil {
		return nil, indexError(err)
	}
	out := transcript{Conversation: id, Messages: []transcriptItem{}, Next: page.Next}
	size := 0
	for i, m := range page.Messages {
		if m.Refused {
			continue
		}
		item, n, err := c.item(ctx, m)
		if err != nil {
			return nil, indexError(err)
		}
		if size += n; size > pageSize && len(out.Messages) > 0 {
			f.Limit = i // the page ends here
			if page, err = c.b.c.Index.Messages(ctx, f); err != nil {
				return nil, indexError(err)
			}
			out.Next = page.Next
			break
		}
		out.Messages = append(out.Messages, item)
	}
	if len(out.Messages) == 0 && f.Cursor == "" && out.Next == "" {
		return nil, nil
	}
	return jsonx.Encode(out)
}

// item gives a message of a transcript, and the size of its content.
func (c *clients) item(ctx context.Context, x index.Message) (item transcriptItem, size int, err error) {
	item = transcriptItem{ID: x.ID, Kind: x.Kind, State: x.State, Number: x.Number, From: x.From, To: x.To,
		InReplyTo: x.InReplyTo, Skill: x.Skill, Act: x.Act, Recorded: x.Time.UTC(), Erased: true}
	r, err := c.b.c.Journal.Read(ctx, x.Position)
	switch {
	case errors.Is(err, journal.ErrNotFound):
		return item, 0, nil
	case err != nil:
		return item, 0, err
	case r.Message == nil || r.Message.ID != x.ID:
		return item, 0, nil
	}
	m := r.Message
	proof := bridge.ProvenanceOf(bridge.Inbox, m, c.b.c.Hub.ID())
	item.Erased, item.Sent, item.Schema, item.Provenance = r.Erased != nil, m.Sent.UTC(), m.Schema, &proof
	if m.Sent.IsZero() {
		item.Sent = time.Time{}
	}
	if m.Error != nil {
		item.Error = &transcriptError{m.Error.Code, m.Error.Text, m.Error.Retryable}
	}
	for _, p := range m.Parts {
		v := transcriptPart{MediaType: p.MediaType, Name: p.Name, URI: p.URI, Digest: p.Digest}
		switch {
		case len(p.Data) == 0:
		case p.IsText():
			text := strings.ToValidUTF8(string(p.Data), "\uFFFD")
			v.Text = &text
		case p.IsJSON() && jsonx.Valid(p.Data, 0) == nil:
			v.JSON = p.Data
		default:
			v.Data = p.Data
		}
		size += len(p.Data)
		item.Parts = append(item.Parts, v)
	}
	return item, size, nil
}
