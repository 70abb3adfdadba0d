package admin

import (
	"context"
	"iter"
	"net/url"

	"github.com/parley-hub/parley/internal/jsonx"
)

// This file serves the timeline, and calls it.

func getTrace(a *Admin, c *call) (any, error) {
	var cursor string
	var limit int
	if err := c.params(param{"cursor", &cursor}, param{"limit", &limit}); err != nil {
		return nil, err
	}
	return a.Trace(c.r.Context(), c.by, c.r.PathValue("id"), cursor, limit)
}

func getRefusalsAround(a *Admin, c *call) (any, error) {
	if err := c.params(); err != nil {
		return nil, err
	}
	list, err := a.RefusalsAround(c.r.Context(), c.by, c.r.PathValue("id"))
	return map[string]any{"refused": list}, err
}

func getHidden(a *Admin, c *call) (any, error) {
	var f TimelineFilter
	if err := c.params(timelineParams(&f)...); err != nil {
		return nil, err
	}
	list, err := a.Hidden(c.r.Context(), c.by, f)
	return map[string]any{"hidden": list}, err
}

func getWatch(a *Admin, c *call) (any, error) {
	var f TimelineFilter
	if err := c.params(timelineParams(&f)...); err != nil {
		return nil, err
	}
	var out *sse
	defer func() { out.close() }()
	for b, err := range a.Watch(c.r.Context(), c.by, f, func() {
		out = newSSE(c)
		// If the caller is gone, the first batch finds that out.
		_ = out.send("started", "", struct{}{})
	}) {
		switch {
		case err != nil && out == nil:
			return nil, err
		case err != nil:
			out.fail(err)
			return nil, nil
		}
		if out.send("batch", "", b) != nil {
			break
		}
	}
	return nil, nil
}

// Timeline lists messages and refusals, the newest first.
func (c *Client) Timeline(ctx context.Context, f TimelineFilter) (TimelinePage, error) {
	return fetch[TimelinePage](c, ctx, "GET", "/timeline", values(timelineParams(&f)...), nil)
}

// Counts counts the entries of the timeline that a filter chooses, for each choice of Show.
func (c *Client) Counts(ctx context.Context, f TimelineFilter) (Counts, error) {
	return fetch[Counts](c, ctx, "GET", "/counts", values(timelineParams(&f)...), nil)
}

// Hidden gives for each member that is set in a filter how many entries the filter chooses without it.
func (c *Client) Hidden(ctx context.Context, f TimelineFilter) ([]Hiding, error) {
	return fetchList[Hiding](c, ctx, "/hidden", values(timelineParams(&f)...), "hidden")
}

// Watch yields what changes in the timeline, until ctx ends or the loop breaks off. Started, if not nil,
// is called once no later change can be missed.
func (c *Client) Watch(ctx context.Context, f TimelineFilter, started func()) iter.Seq2[Batch, error] {
	return decoded(c.events(c.request(ctx, "GET", "/watch", values(timelineParams(&f)...), nil)),
		func(e event) (b Batch, last bool, err error) {
			switch e.name {
			case "batch":
				err = jsonx.Decode(e.data, &b)
			case "started":
				if started != nil {
					started()
				}
				err = errPassedOver
			default: // of a later version
				err = errPassedOver
			}
			return b, false, err
		})
}

func conversationPath(id, rest string) string { return "/conversations/" + url.PathEscape(id) + rest }

// ConversationAround finds a conversation, with the page of its messages that has a message. Both ids may
// be beginnings.
func (c *Client) ConversationAround(ctx context.Context, id, message string, limit int) (Conversation, error) {
	return fetch[Conversation](c, ctx, "GET", conversationPath(id, ""),
		values(param{"m", &message}, param{"limit", &limit}), nil)
}

// Trace finds the conversations that share a trace with one, with the page of their messages behind cursor.
func (c *Client) Trace(ctx context.Context, id, cursor string, limit int) (Trace, error) {
	return fetch[Trace](c, ctx, "GET", conversationPath(id, "/trace"),
		values(param{"cursor", &cursor}, param{"limit", &limit}), nil)
}

// RefusalsAround lists refusals that claim a name of a conversation's agents within its time, the newest
// first.
func (c *Client) RefusalsAround(ctx context.Context, id string) ([]Refusal, error) {
	return fetchList[Refusal](c, ctx, conversationPath(id, "/refused"), nil, "refused")
}
