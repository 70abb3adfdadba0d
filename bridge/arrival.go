package bridge

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
)

// An Arrival is a message as the tool parley_inbox gives it to an agent.
type Arrival struct {
	Message      string          `json:"message"` // a line for people and logs
	ID           parley.ID       `json:"id"`
	Kind         parley.Kind     `json:"kind"`
	From         string          `json:"from"`
	Skill        string          `json:"skill,omitempty"`
	Act          string          `json:"act,omitempty"`
	Schema       string          `json:"schema,omitempty"`
	Conversation parley.ID       `json:"conversation"`
	InReplyTo    parley.ID       `json:"in_reply_to,omitzero"`
	State        string          `json:"state,omitempty"`
	Number       int             `json:"number,omitzero"`
	Content      json.RawMessage `json:"content,omitzero"` // of [Content]
	Error        json.RawMessage `json:"error,omitzero"`
	Audience     []string        `json:"audience,omitempty"`
	Deadline     float64         `json:"deadline,omitzero"` // seconds since 1970, as is Expires
	Expires      float64         `json:"expires,omitzero"`
	Attempt      int             `json:"attempt,omitzero"`
	Metadata     json.RawMessage `json:"metadata,omitzero"` // {"parley": [ProvenanceObject]}
}

// ArrivalOf gives the JSON of the [Arrival] of a message that a hub sends on a way.
func ArrivalOf(way Way, m *parley.Message, attempt int, hub string) (json.RawMessage, error) {
	a := Arrival{ID: m.ID, Kind: m.Kind, From: m.From, Skill: m.Skill, Act: m.Act, Schema: m.Schema,
		Conversation: m.Conversation, InReplyTo: m.InReplyTo, Number: m.Number, Audience: m.Audience,
		Deadline: seconds(m.Deadline), Expires: seconds(m.Expires), Attempt: attempt}
	if m.State != parley.NoState {
		a.State = m.State.String()
	}
	var err error
	if a.Metadata, err = jsonx.Encode(map[string]ProvenanceObject{"parley": ProvenanceOf(way, m, hub)}); err != nil {
		return nil, err
	}
	if a.Content, err = Content(m.Parts); err != nil {
		return nil, err
	}
	if m.Error != nil {
		failure := map[string]any{"code": m.Error.Code, "message": m.Error.Text, "retryable": m.Error.Retryable}
		if m.Error.After > 0 {
			failure["retry_after"] = m.Error.After.Seconds()
		}
		if a.Error, err = jsonx.Encode(failure); err != nil {
			return nil, err
		}
	}
	a.Message = fmt.Sprintf("%s from %s", m.Kind, m.From)
	if t := m.Text(); t != "" {
		a.Message += ": " + t
	}
	a.Message = Shorten(a.Message, 200)
	return jsonx.Encode(a)
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

// Content encodes parts as one JSON value: JSON unchanged, text as a string, any other part,
// and several parts, as {"parts": […]}.
func Content(parts []parley.Part) (json.RawMessage, error) {
	switch {
	case len(parts) == 0:
		return json.RawMessage("{}"), nil
	case len(parts) == 1 && parts[0].IsJSON():
		if err := jsonx.Valid(parts[0].Data, 0); err != nil {
			return nil, fmt.Errorf("the content is not JSON: %w", err)
		}
		return json.RawMessage(parts[0].Data), nil
	case len(parts) == 1 && parts[0].IsText():
		return jsonx.AppendString(make([]byte, 0, len(parts[0].Data)+16), string(parts[0].Data))
	}
	list := make([]contentPart, len(parts))
	for i := range parts {
		list[i] = contentPartOf(&parts[i])
	}
	return jsonx.Encode(map[string][]contentPart{"parts": list})
}

// contentPart is one of the parts of [Content].
type contentPart struct {
	MediaType string          `json:"media_type,omitempty"`
	Name      string          `json:"name,omitempty"`
	JSON      json.RawMessage `json:"json,omitempty"`
	Text      *string         `json:"text,omitempty"`
	Base64    string          `json:"base64,omitempty"`
	URI       string          `json:"uri,omitempty"`
	Digest    string          `json:"digest,omitempty"`
}

func contentPartOf(p *parley.Part) contentPart {
	out := contentPart{MediaType: p.MediaType, Name: p.Name, URI: p.URI, Digest: p.Digest}
	switch {
	case p.URI != "":
	case p.IsJSON() && jsonx.Valid(p.Data, 0) == nil:
		out.JSON = json.RawMessage(p.Data)
	case p.IsText():
		s := string(p.Data)
		out.Text = &s
	default:
		out.Base64 = base64.StdEncoding.EncodeToString(p.Data)
	}
	return out
}
