package a2a

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// Messages for agents elsewhere, and their answers. The functions of this file are pure.

// wayOut is this protocol's column in the loss table.
const wayOut = bridge.Way(Protocol)

// A sendForm says how an agent takes a message.
type sendForm struct {
	version     string // V1 or V03
	rest        bool   // HTTP+JSON
	declares    bool   // Parley's extension
	task        string // that the message is about; "": a new one
	context     string // "": the agent makes one
	immediately bool   // the agent is not to wait for the end of the task
}

// toSend makes the request that sends a message.
func toSend(m *parley.Message, f sendForm) (*protocol.SendMessageRequest, error) {
	var x kept
	if raw := m.Extensions[Protocol]; raw != nil {
		if err := jsonx.Decode(raw, &x); err != nil {
			return nil, fmt.Errorf("the extension a2a of the message: %w", err)
		}
	}
	out := &protocol.Message{ID: m.ID.String(), Role: protocol.MessageRoleUser, TaskID: protocol.TaskID(f.task),
		ContextID: f.context, Extensions: slices.Clone(x.Extensions), Metadata: anyOf(x.Metadata),
		Parts: make(protocol.ContentParts, 0, max(len(m.Parts), 1))}
	out.ReferenceTasks = x.References
	for i, p := range m.Parts {
		part, err := partTo(p, x.Parts[strconv.Itoa(i)].Metadata, f)
		if err != nil {
			return nil, fmt.Errorf("part %d: %w", i+1, err)
		}
		out.Parts = append(out.Parts, part)
	}
	if len(out.Parts) == 0 {
		out.Parts = append(out.Parts, protocol.NewTextPart("")) // A2A has no message without parts
	}
	out.SetMeta(ExtensionURI, provenance(m))
	if f.declares && !slices.Contains(out.Extensions, ExtensionURI) {
		out.Extensions = append(out.Extensions, ExtensionURI)
	}
	return &protocol.SendMessageRequest{Message: out, Metadata: anyOf(x.Request),
		Config: &protocol.SendMessageConfig{ReturnImmediately: f.immediately, AcceptedOutputModes: x.OutputModes},
	}, nil
}

func anyOf(raw map[string]json.RawMessage) map[string]any {
	if len(raw) == 0 {
		return nil
	}
	out := make(map[string]any, len(raw))
	for name, v := range raw {
		out[name] = v
	}
	return out
}

// A partNote is what Parley's extension says about a part, in its metadata.
type partNote struct {
	Digest    string `json:"digest,omitzero"`    // of a link's target
	MediaType string `json:"mediaType,omitzero"` // for 0.3, whose text and data parts have none
	Filename  string `json:"filename,omitzero"`
}

// plainTypes are the media types that a text part has without saying so.
var plainTypes = []string{"text/plain", "text/plain; charset=utf-8", "text/plain;charset=utf-8"}

func partTo(p parley.Part, metadata map[string]json.RawMessage, f sendForm) (*protocol.Part, error) {
	out := &protocol.Part{Filename: p.Name, MediaType: p.MediaType, Metadata: anyOf(metadata)}
	note := partNote{Digest: p.Digest}
	noType := false // 0.3 has no place for the type and the name
	switch {
	case p.URI != "":
		out.Content = protocol.URL(p.URI)
	case p.IsJSON():
		if err := jsonx.Valid(p.Data, 0); err != nil {
			return nil, err
		}
		noType = true
		if !keepsNumbers(p.Data) || f.rest && f.version == V03 && changesNames(p.Data) {
			out.Content = protocol.Text(p.Data)
			break
		}
		var err error
		if out.Content, err = toData(p.Data, f.version); err != nil {
			return nil, err
		}
		if f.version == V1 && p.MediaType == "application/json" {
			out.MediaType = ""
		}
	case strings.HasPrefix(p.MediaType, "text/") && utf8.Valid(p.Data):
		out.Content, noType = protocol.Text(p.Data), true
		if slices.Contains(plainTypes, strings.ToLower(p.MediaType)) {
			out.MediaType = ""
		}
	default:
		out.Content = protocol.Raw(p.Data)
	}
	if f.version == V03 && noType {
		note.MediaType, note.Filename = out.MediaType, out.Filename
		if _, data := out.Content.(protocol.Data); data && note.MediaType == "application/json" {
			note.MediaType = ""
		}
	}
	if note != (partNote{}) {
		out.SetMeta(ExtensionURI, note)
	}
	return out, nil
}

// toData makes a data part's content, with the literal of the value. For 0.3 the SDK
// wants objects as a map.
func toData(b []byte, version string) (protocol.Data, error) {
	if version != V03 || jsonx.Kind(b) != '{' {
		return protocol.Data{Value: json.RawMessage(b)}, nil
	}
	var o map[string]json.RawMessage
	if err := json.Unmarshal(b, &o); err != nil {
		return protocol.Data{}, err
	}
	if o == nil {
		o = map[string]json.RawMessage{}
	}
	values := make(map[string]any, len(o))
	for name, v := range o {
		values[name] = v
	}
	return protocol.Data{Value: values}, nil
}

// changesNames reports whether an object has a name with an upper-case letter or an
// underscore: HTTP+JSON of 0.3 would write it otherwise, in content too.
func changesNames(b []byte) bool {
	changes := false
	each := func(v jsonx.Value) bool { changes = changes || changesNames(v); return !changes }
	switch jsonx.Kind(b) {
	case '[':
		jsonx.Elements(b, each)
	case '{':
		jsonx.Members(b, func(name string, v jsonx.Value) bool {
			changes = changes || name != strings.ToLower(name) || strings.Contains(name, "_")
			return each(v)
		})
	}
	return changes
}

// partsFrom gives the content of an agent's message or artifact, and the metadata of its
// parts by index, from first on.
func partsFrom(parts protocol.ContentParts, first int, notes map[string]keptPart) []parley.Part {
	out := make([]parley.Part, 0, len(parts))
	for i, p := range parts {
		if p == nil {
			continue
		}
		var note partNote
		rest := map[string]json.RawMessage{}
		for name, v := range p.Metadata {
			if name == ExtensionURI {
				_ = json.Unmarshal(marshal(v), &note) // a note of another form says nothing
				continue
			}
			rest[name] = marshal(v)
		}
		if len(rest) > 0 {
			notes[strconv.Itoa(first+i)] = keptPart{rest}
		}
		out = append(out, partFrom(p, note))
	}
	return out
}

func partFrom(p *protocol.Part, note partNote) parley.Part {
	out := parley.Part{MediaType: cmp.Or(p.MediaType, note.MediaType), Name: cmp.Or(p.Filename, note.Filename)}
	switch c := p.Content.(type) {
	case protocol.Text:
		out.Data = []byte(c)
		out.MediaType = cmp.Or(out.MediaType, "text/plain; charset=utf-8")
		if out.IsJSON() && jsonx.Valid(out.Data, 0) != nil {
			out.MediaType = "text/plain; charset=utf-8"
		}
	case protocol.Raw:
		out.Data = c
		if note.MediaType != "" && out.IsJSON() { // 0.3: a data part, see dataPart
			out.MediaType = note.MediaType
		}
		out.MediaType = cmp.Or(out.MediaType, "application/octet-stream")
		if out.IsJSON() && jsonx.Valid(out.Data, 0) != nil {
			out.MediaType = "application/octet-stream"
		}
	case protocol.Data:
		out.Data = marshal(c.Value)
		if !out.IsJSON() {
			out.MediaType = "application/json"
		}
	case protocol.URL:
		out.URI, out.Digest = string(c), note.Digest
	}
	return out
}

// metadataOf gives metadata without Parley's, which comes decoded.
func metadataOf(metadata map[string]any) (rest map[string]json.RawMessage, ours note) {
	for name, v := range metadata {
		if name == ExtensionURI {
			_ = json.Unmarshal(marshal(v), &ours) // a note of another form says nothing
			continue
		}
		if rest == nil {
			rest = map[string]json.RawMessage{}
		}
		rest[name] = marshal(v)
	}
	return rest, ours
}

// fromMessage gives the content of a message of an agent. declares: the agent knows
// Parley's extension.
func fromMessage(m *protocol.Message, declares bool) *parley.Message {
	x := kept{Parts: map[string]keptPart{}}
	out := &parley.Message{Parts: partsFrom(m.Parts, 0, x.Parts)}
	var ours note
	x.Metadata, ours = metadataOf(m.Metadata)
	x.Extensions = others(m.Extensions)
	x.References = m.ReferenceTasks
	if declares {
		out.Act, out.Schema = clipped(ours.Act, maxName), clipped(ours.Schema, maxName)
	}
	out.Extensions = x.extensions()
	return out
}

// others are the extensions besides Parley's.
func others(uris []string) []string {
	return slices.DeleteFunc(slices.Clone(uris), func(u string) bool { return u == ExtensionURI })
}

// fromTask gives the answer of a task that ended.
func fromTask(t *protocol.Task, declares bool) *parley.Message {
	if t.Status.State != protocol.TaskStateCompleted {
		return fromFailed(&t.Status, declares)
	}
	x := kept{Parts: map[string]keptPart{}}
	out := &parley.Message{Kind: parley.Response}
	for _, a := range t.Artifacts {
		if a == nil {
			continue
		}
		parts := partsFrom(a.Parts, len(out.Parts), x.Parts)
		metadata, ours := metadataOf(a.Metadata)
		if declares && out.Act == "" && out.Schema == "" {
			out.Act, out.Schema = clipped(ours.Act, maxName), clipped(ours.Schema, maxName)
		}
		x.Artifacts = append(x.Artifacts, keptArtifact{ID: a.ID, Name: a.Name, Description: a.Description,
			Metadata: metadata, Extensions: others(a.Extensions), Parts: len(parts)})
		out.Parts = append(out.Parts, parts...)
	}
	if len(x.Artifacts) == 0 && t.Status.Message != nil {
		out = fromMessage(t.Status.Message, declares)
		out.Kind = parley.Response
		return out
	}
	x.Metadata, _ = metadataOf(t.Metadata)
	out.Extensions = x.extensions()
	return out
}

// failures are the codes of tasks that ended without an answer.
var failures = map[protocol.TaskState]parley.Code{
	protocol.TaskStateRejected: parley.Rejected,
	protocol.TaskStateFailed:   parley.HandlerFailed,
	protocol.TaskStateCanceled: parley.Cancelled,
}

// peerCodes are those that an agent may give for a failure of its own.
var peerCodes = []parley.Code{parley.Malformed, parley.TooLarge, parley.Unauthenticated, parley.Stale, parley.Replayed,
	parley.Forbidden, parley.UnknownAgent, parley.UnknownSkill, parley.InvalidContent, parley.Unsupported,
	parley.RateLimited, parley.Loop, parley.Conflict, parley.Unavailable, parley.NoSpace, parley.TimedOut,
	parley.Cancelled, parley.Rejected, parley.HandlerFailed, parley.OutcomeUnknown, parley.Internal}

// fromFailed gives the Failure of a task that ended without an answer.
func fromFailed(s *protocol.TaskStatus, declares bool) *parley.Message {
	code := cmp.Or(failures[s.State], parley.HandlerFailed)
	out := &parley.Message{}
	said := ""
	var ours note
	if s.Message != nil {
		out = fromMessage(s.Message, declares)
		said = clipped(out.Text(), maxErrorText)
		_, ours = metadataOf(s.Message.Metadata)
	}
	e := parley.Refuse(code, "%s", cmp.Or(said, "the agent ended the task as "+stateName(s.State)))
	if declares && slices.Contains(peerCodes, ours.Code) {
		e.Code = ours.Code
	}
	if declares && ours.Retryable {
		e.Retryable = true
		e.After = min(time.Duration(max(ours.RetryAfter, 0)*float64(time.Second)), 24*time.Hour)
	}
	out.Kind, out.Parts = parley.Failure, nil
	out.Error = bridge.Answered(e, Protocol, said, stateName(s.State))
	return out
}

// stateName is the name of a state as 0.3 writes it: "input-required".
func stateName(s protocol.TaskState) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(clipped(s.String(), maxName), "TASK_STATE_")), "_", "-")
}

// fromStatus gives the event of a status before the end; nil: it says nothing new.
func fromStatus(s *protocol.TaskStatus, declares bool) *parley.Message {
	out := &parley.Message{}
	if s.Message != nil {
		out = fromMessage(s.Message, declares)
	}
	out.Kind = parley.Event
	switch s.State {
	case protocol.TaskStateInputRequired:
		out.State = parley.NeedsInput
	case protocol.TaskStateAuthRequired:
		out.State, out.Act = parley.NeedsInput, authRequired
	case protocol.TaskStateSubmitted:
		out.State = parley.Accepted
	default: // working, and states that are not known
		out.State = parley.Working
	}
	if s.Message == nil && out.State != parley.NeedsInput && s.State != protocol.TaskStateWorking {
		return nil
	}
	return out
}

// fromChunk gives the event of one part of an artifact.
func fromChunk(a *protocol.Artifact, part *protocol.Part) *parley.Message {
	x := kept{Parts: map[string]keptPart{}}
	out := &parley.Message{Kind: parley.Event, Parts: partsFrom(protocol.ContentParts{part}, 0, x.Parts)}
	metadata, _ := metadataOf(a.Metadata)
	x.Artifacts = []keptArtifact{{ID: a.ID, Name: a.Name, Description: a.Description, Metadata: metadata,
		Extensions: others(a.Extensions), Parts: 1}}
	out.Extensions = x.extensions()
	return out
}
