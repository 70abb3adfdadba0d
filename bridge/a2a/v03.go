package a2a

import (
	"encoding/json"
	"fmt"
	"strings"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley/internal/jsonx"
)

// The JSON of 0.3 (tag v0.3.0 of the specification, sections 6 and 7). Of the SDK's
// conversions the one of cards is used. Those of messages take a text that is no base64 as
// bytes, call an unknown role unspecified, decode data, and set final by the state alone.

type part03 struct {
	Kind     kind            `json:"kind"`
	Text     *string         `json:"text,omitempty"`
	File     *file03         `json:"file,omitempty"`
	Data     json.RawMessage `json:"data,omitempty"`
	Metadata map[string]any  `json:"metadata,omitempty"`
}

type file03 struct {
	Bytes    *string `json:"bytes,omitempty"` // base64
	URI      *string `json:"uri,omitempty"`
	MimeType string  `json:"mimeType,omitempty"`
	Name     string  `json:"name,omitempty"`
}

var form03 = form[part03]{
	named: true,
	role: func(r protocol.MessageRole) string {
		if r == protocol.MessageRoleAgent {
			return "agent"
		}
		return "user"
	},
	state: func(s protocol.TaskState) string {
		if s == protocol.TaskStateUnspecified {
			return "unknown"
		}
		return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(string(s), "TASK_STATE_")), "_", "-")
	},
	part: fromPart03,
}

func fromPart03(p *protocol.Part) (out part03, err error) {
	if p == nil {
		return out, fmt.Errorf("a part without content")
	}
	out.Metadata = p.Metadata
	file := file03{MimeType: p.MediaType, Name: p.Filename}
	switch c := p.Content.(type) {
	case protocol.Text:
		out.Kind, out.Text = "text", (*string)(&c)
	case protocol.Raw:
		one, err := fromPart1(p)
		file.Bytes = one.Raw
		out.Kind, out.File = "file", &file
		return out, err
	case protocol.URL:
		file.URI = (*string)(&c)
		out.Kind, out.File = "file", &file
	case protocol.Data:
		out.Kind = "data"
		if out.Data, err = jsonLiteral(c.Value); err == nil && jsonx.Kind(out.Data) != '{' {
			out.Data = append(append(json.RawMessage(`{"value":`), out.Data...), '}')
			out.Metadata = map[string]any{compatMark: true}
			for k, v := range p.Metadata {
				out.Metadata[k] = v
			}
		}
	default:
		err = fmt.Errorf("a part with content of type %T", c)
	}
	return out, err
}

func toPart03(w *part03) (*protocol.Part, error) {
	p := &protocol.Part{Metadata: w.Metadata}
	switch {
	case w.Kind == "text" && w.Text != nil:
		p.Content = protocol.Text(*w.Text)
	case w.Kind == "data" && jsonx.Kind(w.Data) == '{':
		value := w.Data
		if marked, ok := w.Metadata[compatMark].(bool); ok && marked {
			value = nil
			jsonx.Members(w.Data, func(name string, v jsonx.Value) bool {
				if name == "value" {
					value = json.RawMessage(v)
				}
				return value == nil
			})
			if value == nil {
				return nil, invalidParams("data", "the member value is missing")
			}
			p.Metadata = map[string]any{}
			for k, v := range w.Metadata {
				if k != compatMark {
					p.Metadata[k] = v
				}
			}
		}
		p.Content = protocol.Data{Value: value}
	case w.Kind == "file" && w.File != nil:
		return toFile03(w)
	case w.Kind != "text" && w.Kind != "data" && w.Kind != "file":
		return nil, invalidParams("kind", "want text, file or data")
	default:
		return nil, invalidParams(string(w.Kind), "missing, or not of its type")
	}
	return p, nil
}

func toFile03(w *part03) (*protocol.Part, error) {
	f := w.File
	p := &protocol.Part{Metadata: w.Metadata, MediaType: f.MimeType, Filename: f.Name}
	switch {
	case f.Bytes != nil && f.URI == nil:
		raw, err := decodeBase64(*f.Bytes)
		if err != nil {
			return nil, invalidParams("file.bytes", "not base64")
		}
		p.Content = protocol.Raw(raw)
	case f.URI != nil && *f.URI != "" && f.Bytes == nil:
		p.Content = protocol.URL(*f.URI)
	default:
		return nil, invalidParams("file", "a file has either bytes or a uri")
	}
	return p, nil
}

// events03 makes the results of 0.3: in a stream of events it knows which is the last.
type events03 struct {
	send  bool // of message/stream: it ends where the task waits for the client
	last  *protocol.TaskStatusUpdateEvent
	final bool // the last status update went out with final
}

// ends reports whether a status ends the stream.
func (s *events03) ends(state protocol.TaskState) bool {
	return state.Terminal() || s.send && (state == protocol.TaskStateInputRequired ||
		state == protocol.TaskStateAuthRequired)
}

func (s *events03) event(e protocol.Event) (any, error) {
	switch e := e.(type) {
	case *protocol.Task:
		s.last = &protocol.TaskStatusUpdateEvent{TaskID: e.ID, ContextID: e.ContextID, Status: e.Status}
		return form03.task(e)
	case *protocol.Message:
		s.last = nil
		return form03.message(e)
	case *protocol.TaskStatusUpdateEvent:
		out, err := form03.statusUpdate(e)
		if err != nil {
			return nil, err
		}
		final := s.ends(e.Status.State)
		out.Final = &final
		s.last, s.final = e, final
		return out, nil
	case *protocol.TaskArtifactUpdateEvent:
		return form03.artifactUpdate(e)
	}
	return nil, fmt.Errorf("an event of type %T", e)
}

// close gives the event that ends the stream: clients of 0.3 wait for final (rule
// A2A-033). It is nil where the last event was one, and where the task goes on.
func (s *events03) close() (any, error) {
	if s.final || s.last == nil || !s.ends(s.last.Status.State) {
		return nil, nil
	}
	return s.event(s.last)
}

// The parameters of 0.3's methods.

type sendParams03 struct {
	Message       *wireMessage[part03] `json:"message"`
	Configuration *struct {
		AcceptedOutputModes []string  `json:"acceptedOutputModes"`
		Blocking            *bool     `json:"blocking"`
		HistoryLength       *int      `json:"historyLength"`
		Push                *config03 `json:"pushNotificationConfig"`
	} `json:"configuration"`
	Metadata map[string]any `json:"metadata"`
}

func (w *sendParams03) request() (*protocol.SendMessageRequest, error) {
	r := &protocol.SendMessageRequest{Metadata: w.Metadata}
	var task protocol.TaskID
	if m := w.Message; m != nil {
		task = m.TaskID
		role := protocol.MessageRole(m.Role)
		switch m.Role {
		case "user":
			role = protocol.MessageRoleUser
		case "agent":
			role = protocol.MessageRoleAgent
		}
		if m.Kind != "" && m.Kind != "message" {
			return nil, invalidParams("message.kind", "want message")
		}
		var err error
		if r.Message, err = readMessage(m, role, toPart03); err != nil {
			return nil, err
		}
	}
	if c := w.Configuration; c != nil {
		r.Config = &protocol.SendMessageConfig{AcceptedOutputModes: c.AcceptedOutputModes,
			HistoryLength: c.HistoryLength, ReturnImmediately: c.Blocking != nil && !*c.Blocking}
		if c.Push != nil {
			push, err := c.Push.config(task)
			if err != nil {
				return nil, err
			}
			r.Config.PushConfig = push
		}
	}
	return r, nil
}

// config03 is a PushNotificationConfig. 1.0 has one scheme where 0.3 has several.
type config03 struct {
	ID    string  `json:"id,omitempty"`
	URL   string  `json:"url"`
	Token string  `json:"token,omitempty"`
	Auth  *auth03 `json:"authentication,omitempty"`
}

type auth03 struct {
	Schemes     []string `json:"schemes"`
	Credentials string   `json:"credentials,omitempty"`
}

func (c *config03) config(task protocol.TaskID) (*protocol.PushConfig, error) {
	out := &protocol.PushConfig{TaskID: task, ID: c.ID, URL: c.URL, Token: c.Token}
	if c.Auth != nil {
		if len(c.Auth.Schemes) != 1 {
			return nil, invalidParams("pushNotificationConfig.authentication.schemes", "want one scheme")
		}
		out.Auth = &protocol.PushAuthInfo{Scheme: c.Auth.Schemes[0], Credentials: c.Auth.Credentials}
	}
	return out, nil
}

type taskConfig03 struct {
	TaskID protocol.TaskID `json:"taskId"`
	Config *config03       `json:"pushNotificationConfig"`
}

func (w *taskConfig03) request() (*protocol.PushConfig, error) {
	if w.Config == nil {
		return nil, invalidParams("pushNotificationConfig", "missing")
	}
	return w.Config.config(w.TaskID)
}

func toConfig03(c *protocol.PushConfig) (any, error) {
	out := taskConfig03{TaskID: c.TaskID, Config: &config03{ID: c.ID, URL: c.URL, Token: c.Token}}
	if c.Auth != nil {
		out.Config.Auth = &auth03{Schemes: []string{c.Auth.Scheme}, Credentials: c.Auth.Credentials}
	}
	return out, nil
}

func toConfigs03(r *protocol.ListTaskPushConfigResponse) (any, error) {
	out := make([]any, len(r.Configs))
	for i, c := range r.Configs {
		out[i], _ = toConfig03(c)
	}
	return out, nil
}

// taskParams03 are TaskIdParams, TaskQueryParams and those of push configurations.
type taskParams03 struct {
	ID            protocol.TaskID `json:"id"`
	HistoryLength *int            `json:"historyLength"`
	ConfigID      string          `json:"pushNotificationConfigId"`
	Metadata      map[string]any  `json:"metadata"`
}

func (w *taskParams03) get() (*protocol.GetTaskRequest, error) {
	return &protocol.GetTaskRequest{ID: w.ID, HistoryLength: w.HistoryLength}, nil
}

func (w *taskParams03) cancel() (*protocol.CancelTaskRequest, error) {
	return &protocol.CancelTaskRequest{ID: w.ID, Metadata: w.Metadata}, nil
}

func (w *taskParams03) subscribe() (*protocol.SubscribeToTaskRequest, error) {
	return &protocol.SubscribeToTaskRequest{ID: w.ID}, nil
}

func (w *taskParams03) getConfig() (*protocol.GetTaskPushConfigRequest, error) {
	return &protocol.GetTaskPushConfigRequest{TaskID: w.ID, ID: w.ConfigID}, nil
}

func (w *taskParams03) listConfigs() (*protocol.ListTaskPushConfigRequest, error) {
	return &protocol.ListTaskPushConfigRequest{TaskID: w.ID}, nil
}

func (w *taskParams03) deleteConfig() (*protocol.DeleteTaskPushConfigRequest, error) {
	return &protocol.DeleteTaskPushConfigRequest{TaskID: w.ID, ID: w.ConfigID}, nil
}

// toCard03 is a card with the members of both versions.
func toCard03(c *protocol.AgentCard) (any, error) {
	b, err := hybridForm(c)
	return json.RawMessage(b), err
}
