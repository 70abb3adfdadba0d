package a2a

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley/internal/jsonx"
)

// The JSON of both wire versions, as types. The SDK's own codecs cannot be used: they lose
// the digits of numbers, take a bad base64 text as it is, and write null for an empty list.
//
// A message, a task and an event have the same members in both versions, besides kind and
// final; their parts differ. So P is a part of 1.0 or of 0.3. Data is its literal on the
// way in and, where [service] gives a json.RawMessage, on the way out.

// kind is the discriminator of 0.3. It is no member of 1.0, where any value is ignored.
type kind string

// UnmarshalJSON takes any value.
func (k *kind) UnmarshalJSON(b []byte) error {
	*k = ""
	if jsonx.Kind(b) == '"' {
		text, _ := jsonx.Unquote(b)
		*k = kind(text)
	}
	return nil
}

type part1 struct {
	Text      *string         `json:"text,omitempty"`
	Raw       *string         `json:"raw,omitempty"` // base64
	Data      json.RawMessage `json:"data,omitempty"`
	URL       *string         `json:"url,omitempty"`
	Filename  string          `json:"filename,omitempty"`
	MediaType string          `json:"mediaType,omitempty"`
	Metadata  map[string]any  `json:"metadata,omitempty"`
}

type wireMessage[P any] struct {
	Kind           kind              `json:"kind,omitempty"`
	ID             string            `json:"messageId"`
	ContextID      string            `json:"contextId,omitempty"`
	TaskID         protocol.TaskID   `json:"taskId,omitempty"`
	Role           string            `json:"role"`
	Parts          []P               `json:"parts"`
	Metadata       map[string]any    `json:"metadata,omitempty"`
	Extensions     []string          `json:"extensions,omitempty"`
	ReferenceTasks []protocol.TaskID `json:"referenceTaskIds,omitempty"`
}

type wireTask[P any] struct {
	Kind      kind              `json:"kind,omitempty"`
	ID        protocol.TaskID   `json:"id"`
	ContextID string            `json:"contextId"`
	Status    wireStatus[P]     `json:"status"`
	Artifacts []wireArtifact[P] `json:"artifacts,omitempty"`
	History   []*wireMessage[P] `json:"history,omitempty"`
	Metadata  map[string]any    `json:"metadata,omitempty"`
}

type wireStatus[P any] struct {
	State     string          `json:"state"`
	Message   *wireMessage[P] `json:"message,omitempty"`
	Timestamp *stamp          `json:"timestamp,omitempty"`
}

type wireArtifact[P any] struct {
	ID          protocol.ArtifactID `json:"artifactId"`
	Name        string              `json:"name,omitempty"`
	Description string              `json:"description,omitempty"`
	Parts       []P                 `json:"parts"`
	Metadata    map[string]any      `json:"metadata,omitempty"`
	Extensions  []string            `json:"extensions,omitempty"`
}

type wireStatusUpdate[P any] struct {
	Kind      kind            `json:"kind,omitempty"`
	TaskID    protocol.TaskID `json:"taskId"`
	ContextID string          `json:"contextId"`
	Status    wireStatus[P]   `json:"status"`
	Final     *bool           `json:"final,omitempty"`
	Metadata  map[string]any  `json:"metadata,omitempty"`
}

type wireArtifactUpdate[P any] struct {
	Kind      kind            `json:"kind,omitempty"`
	TaskID    protocol.TaskID `json:"taskId"`
	ContextID string          `json:"contextId"`
	Artifact  wireArtifact[P] `json:"artifact"`
	Append    bool            `json:"append,omitempty"`
	LastChunk bool            `json:"lastChunk,omitempty"`
	Metadata  map[string]any  `json:"metadata,omitempty"`
}

// stamp is a time in UTC with milliseconds (A2A 1.0, section 5.6.1).
type stamp time.Time

func (s stamp) MarshalJSON() ([]byte, error) {
	return time.Time(s).UTC().AppendFormat(nil, `"2006-01-02T15:04:05.000Z"`), nil
}

// form is what differs between the versions in the objects above.
type form[P any] struct {
	named bool // objects have a kind
	role  func(protocol.MessageRole) string
	state func(protocol.TaskState) string
	part  func(*protocol.Part) (P, error)
}

var form1 = form[part1]{
	role:  func(r protocol.MessageRole) string { return r.String() },
	state: func(s protocol.TaskState) string { return s.String() },
	part:  fromPart1,
}

// kind gives the discriminator, where the version has one.
func (f *form[P]) kind(k kind) kind {
	if f.named {
		return k
	}
	return ""
}

func (f *form[P]) parts(parts protocol.ContentParts) ([]P, error) {
	out := make([]P, len(parts))
	var err error
	for i, p := range parts {
		if out[i], err = f.part(p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (f *form[P]) message(m *protocol.Message) (*wireMessage[P], error) {
	if m == nil {
		return nil, nil
	}
	parts, err := f.parts(m.Parts)
	return &wireMessage[P]{Kind: f.kind("message"), ID: m.ID, ContextID: m.ContextID, TaskID: m.TaskID,
		Role: f.role(m.Role), Parts: parts, Metadata: m.Metadata, Extensions: m.Extensions,
		ReferenceTasks: m.ReferenceTasks}, err
}

func (f *form[P]) status(s protocol.TaskStatus) (out wireStatus[P], err error) {
	out.State = f.state(s.State)
	if s.Timestamp != nil {
		at := stamp(*s.Timestamp)
		out.Timestamp = &at
	}
	out.Message, err = f.message(s.Message)
	return out, err
}

func (f *form[P]) artifact(a *protocol.Artifact) (wireArtifact[P], error) {
	if a == nil {
		a = &protocol.Artifact{}
	}
	parts, err := f.parts(a.Parts)
	return wireArtifact[P]{ID: a.ID, Name: a.Name, Description: a.Description, Parts: parts, Metadata: a.Metadata,
		Extensions: a.Extensions}, err
}

func (f *form[P]) task(t *protocol.Task) (*wireTask[P], error) {
	out := &wireTask[P]{Kind: f.kind("task"), ID: t.ID, ContextID: t.ContextID, Metadata: t.Metadata}
	var err error
	if out.Status, err = f.status(t.Status); err != nil {
		return nil, err
	}
	for _, a := range t.Artifacts {
		w, err := f.artifact(a)
		if err != nil {
			return nil, err
		}
		out.Artifacts = append(out.Artifacts, w)
	}
	for _, m := range t.History {
		w, err := f.message(m)
		if err != nil {
			return nil, err
		}
		out.History = append(out.History, w)
	}
	return out, nil
}

func (f *form[P]) statusUpdate(e *protocol.TaskStatusUpdateEvent) (*wireStatusUpdate[P], error) {
	s, err := f.status(e.Status)
	return &wireStatusUpdate[P]{Kind: f.kind("status-update"), TaskID: e.TaskID, ContextID: e.ContextID, Status: s,
		Metadata: e.Metadata}, err
}

func (f *form[P]) artifactUpdate(e *protocol.TaskArtifactUpdateEvent) (*wireArtifactUpdate[P], error) {
	a, err := f.artifact(e.Artifact)
	return &wireArtifactUpdate[P]{Kind: f.kind("artifact-update"), TaskID: e.TaskID, ContextID: e.ContextID,
		Artifact: a, Append: e.Append, LastChunk: e.LastChunk, Metadata: e.Metadata}, err
}

// event1 is a StreamResponse, or a SendMessageResponse, of 1.0.
type event1 struct {
	Task           *wireTask[part1]           `json:"task,omitempty"`
	Message        *wireMessage[part1]        `json:"message,omitempty"`
	StatusUpdate   *wireStatusUpdate[part1]   `json:"statusUpdate,omitempty"`
	ArtifactUpdate *wireArtifactUpdate[part1] `json:"artifactUpdate,omitempty"`
}

func toEvent1(e protocol.Event) (any, error) {
	var out event1
	var err error
	switch e := e.(type) {
	case *protocol.Task:
		out.Task, err = form1.task(e)
	case *protocol.Message:
		out.Message, err = form1.message(e)
	case *protocol.TaskStatusUpdateEvent:
		out.StatusUpdate, err = form1.statusUpdate(e)
	case *protocol.TaskArtifactUpdateEvent:
		out.ArtifactUpdate, err = form1.artifactUpdate(e)
	default:
		err = fmt.Errorf("an event of type %T", e)
	}
	return out, err
}

func fromPart1(p *protocol.Part) (out part1, err error) {
	if p == nil {
		return out, fmt.Errorf("a part without content")
	}
	out.Filename, out.MediaType, out.Metadata = p.Filename, p.MediaType, p.Metadata
	switch c := p.Content.(type) {
	case protocol.Text:
		out.Text = (*string)(&c)
	case protocol.Raw:
		text := base64.StdEncoding.EncodeToString(c)
		out.Raw = &text
	case protocol.URL:
		out.URL = (*string)(&c)
	case protocol.Data:
		if out.Data, err = jsonLiteral(c.Value); err == nil && jsonx.IsNull(out.Data) {
			// For clients of the Go SDK a part with null has no content, and they refuse the whole task.
			text := "null"
			out.Data, out.Text, out.MediaType = nil, &text, cmp.Or(p.MediaType, "application/json")
		}
	default:
		err = fmt.Errorf("a part with content of type %T", c)
	}
	return out, err
}

// jsonLiteral is the JSON of a value: its own where it is JSON already.
func jsonLiteral(v any) (json.RawMessage, error) {
	switch v := v.(type) {
	case json.RawMessage:
		return v, nil
	case jsonx.Value:
		return json.RawMessage(v), nil
	}
	return json.Marshal(v)
}

// toPart1 reads a part of 1.0. Exactly one of text, raw, url and data must be there.
func toPart1(w *part1) (*protocol.Part, error) {
	p := &protocol.Part{Filename: w.Filename, MediaType: w.MediaType, Metadata: w.Metadata}
	contents := 0
	if w.Text != nil {
		p.Content = protocol.Text(*w.Text)
		contents++
	}
	if w.Raw != nil {
		raw, err := decodeBase64(*w.Raw)
		if err != nil {
			return nil, invalidParams("raw", "not base64")
		}
		p.Content = protocol.Raw(raw)
		contents++
	}
	if w.URL != nil {
		if *w.URL == "" {
			return nil, invalidParams("url", "empty")
		}
		p.Content = protocol.URL(*w.URL)
		contents++
	}
	// A null beside another content is a member that is not set.
	if len(w.Data) > 0 && (contents == 0 || !jsonx.IsNull(w.Data)) {
		p.Content = protocol.Data{Value: w.Data}
		contents++
	}
	if contents != 1 {
		return nil, invalidParams("", "a part has exactly one of text, raw, url and data; this one has %d", contents)
	}
	return p, nil
}

// decodeBase64 takes what ProtoJSON takes: both alphabets, with or without padding.
func decodeBase64(text string) ([]byte, error) {
	text = strings.TrimRight(text, "=")
	if strings.ContainsAny(text, "\r\n") {
		return nil, base64.CorruptInputError(0)
	}
	if strings.ContainsAny(text, "-_") {
		return base64.RawURLEncoding.Strict().DecodeString(text)
	}
	return base64.RawStdEncoding.Strict().DecodeString(text)
}

// readMessage reads a message, whose role is known already.
func readMessage[P any](w *wireMessage[P], role protocol.MessageRole, read func(*P) (*protocol.Part, error)) (
	*protocol.Message, error) {
	m := &protocol.Message{ID: w.ID, ContextID: w.ContextID, TaskID: w.TaskID, Role: role, Metadata: w.Metadata,
		Extensions: w.Extensions, ReferenceTasks: w.ReferenceTasks, Parts: make(protocol.ContentParts, len(w.Parts))}
	for i := range w.Parts {
		p, err := read(&w.Parts[i])
		if err != nil {
			return nil, below(fmt.Sprintf("message.parts[%d]", i), err)
		}
		m.Parts[i] = p
	}
	return m, nil
}

// below puts the path of a value before the field that an error names.
func below(path string, err error) error {
	f := toError(err)
	name := path
	text := f.text
	for _, d := range f.details {
		if v, ok := d.Value["fieldViolations"].([]map[string]string); ok && len(v) > 0 {
			name, text = path+"."+v[0]["field"], v[0]["description"]
		}
	}
	return invalidParams(name, "%s", text)
}

// The parameters of 1.0's methods (specification/a2a.proto).

type sendParams1 struct {
	Tenant        string              `json:"tenant"`
	Message       *wireMessage[part1] `json:"message"`
	Configuration *struct {
		AcceptedOutputModes []string             `json:"acceptedOutputModes"`
		ReturnImmediately   bool                 `json:"returnImmediately"`
		HistoryLength       *int                 `json:"historyLength"`
		Push                *protocol.PushConfig `json:"taskPushNotificationConfig"`
	} `json:"configuration"`
	Metadata map[string]any `json:"metadata"`
}

func (w *sendParams1) request() (*protocol.SendMessageRequest, error) {
	r := &protocol.SendMessageRequest{Tenant: w.Tenant, Metadata: w.Metadata}
	if c := w.Configuration; c != nil {
		r.Config = &protocol.SendMessageConfig{AcceptedOutputModes: c.AcceptedOutputModes, PushConfig: c.Push,
			ReturnImmediately: c.ReturnImmediately, HistoryLength: c.HistoryLength}
	}
	if w.Message == nil {
		return r, nil
	}
	var err error
	r.Message, err = readMessage(w.Message, protocol.MessageRole(w.Message.Role), toPart1)
	return r, err
}

type listParams1 struct {
	Tenant               string             `json:"tenant"`
	ContextID            string             `json:"contextId"`
	Status               protocol.TaskState `json:"status"`
	PageSize             *int               `json:"pageSize"`
	PageToken            string             `json:"pageToken"`
	HistoryLength        *int               `json:"historyLength"`
	StatusTimestampAfter *time.Time         `json:"statusTimestampAfter"`
	IncludeArtifacts     bool               `json:"includeArtifacts"`
}

func (w *listParams1) request() (*protocol.ListTasksRequest, error) {
	r := &protocol.ListTasksRequest{Tenant: w.Tenant, ContextID: w.ContextID, Status: w.Status, PageToken: w.PageToken,
		HistoryLength: w.HistoryLength, StatusTimestampAfter: w.StatusTimestampAfter,
		IncludeArtifacts: w.IncludeArtifacts}
	if w.PageSize != nil {
		if r.PageSize = *w.PageSize; r.PageSize == 0 {
			return nil, invalidParams("pageSize", "want 1 to %d", maxPage)
		}
	}
	return r, nil
}

type listResult1 struct {
	Tasks         []*wireTask[part1] `json:"tasks"`
	NextPageToken string             `json:"nextPageToken"`
	PageSize      int                `json:"pageSize"`
	TotalSize     int                `json:"totalSize"`
}

func toListResult1(r *protocol.ListTasksResponse) (any, error) {
	out := listResult1{Tasks: make([]*wireTask[part1], len(r.Tasks)), NextPageToken: r.NextPageToken,
		PageSize: r.PageSize, TotalSize: r.TotalSize}
	var err error
	for i, t := range r.Tasks {
		if out.Tasks[i], err = form1.task(t); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// listConfigs1 always has the list.
func listConfigs1(r *protocol.ListTaskPushConfigResponse) (any, error) {
	if r.Configs == nil {
		r = &protocol.ListTaskPushConfigResponse{Configs: []*protocol.PushConfig{}, NextPageToken: r.NextPageToken}
	}
	return r, nil
}
