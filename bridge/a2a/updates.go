package a2a

import (
	"cmp"
	"maps"
	"slices"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
)

// This file makes tasks and updates of records, as translate.go makes messages: it is pure.

// contextOf gives the contextId of a request. Of a request whose content was erased it is that
// of the conversation.
func contextOf(request *parley.Message) string {
	if id := request.Trace.Foreign[foreignContext]; id != "" {
		return id
	}
	return request.Conversation.String()
}

// progress is what a stream knows of its task, from the records up to the last.
type progress struct {
	task    protocol.TaskID
	context string
	state   protocol.TaskState
	pieces  bool // pieces of the result were told
}

// begin makes the task of a request with nothing recorded about it.
func begin(request *parley.Message, at time.Time) (progress, *protocol.Task) {
	p := progress{protocol.TaskID(request.ID.String()), contextOf(request), protocol.TaskStateSubmitted, false}
	t := &protocol.Task{ID: p.task, ContextID: p.context, Status: protocol.TaskStatus{State: p.state,
		Timestamp: inUTC(at)}, History: []*protocol.Message{p.fromClient(request)}}
	if k := keptOf(request); k.Request != nil {
		t.Metadata = object(k.Request)
	}
	return p, t
}

func inUTC(t time.Time) *time.Time { t = t.UTC(); return &t }

// interrupted reports whether a task waits for its client.
func interrupted(s protocol.TaskState) bool {
	return s == protocol.TaskStateInputRequired || s == protocol.TaskStateAuthRequired
}

// resultID is the artifact with the result of a task.
const resultID = "result"

// events gives the updates that a record about the task makes, and moves on. After a terminal
// reply there are none.
func (p *progress) events(m *parley.Message, at time.Time) []protocol.Event {
	if p.state.Terminal() {
		return nil
	}
	status := func(s protocol.TaskState, message *protocol.Message) protocol.Event {
		p.state = s
		e := &protocol.TaskStatusUpdateEvent{TaskID: p.task, ContextID: p.context,
			Status: protocol.TaskStatus{State: s, Message: message, Timestamp: inUTC(at)}}
		e.SetMeta(ExtensionURI, provenance(m))
		return e
	}
	switch m.Kind {
	case parley.Event:
		var said *protocol.Message
		if len(m.Parts) > 0 {
			said = p.fromAgent(m)
		}
		switch {
		case m.State == parley.NoState && said == nil:
			return nil
		case m.State == parley.NoState:
			e := p.artifact(&protocol.Artifact{ID: resultID, Parts: said.Parts}, m)
			e.Append, p.pieces = p.pieces, true
			return []protocol.Event{e}
		case m.State == parley.Accepted:
			return []protocol.Event{status(protocol.TaskStateSubmitted, said)}
		case m.State == parley.Working:
			return []protocol.Event{status(protocol.TaskStateWorking, said)}
		case m.Act == authRequired:
			return []protocol.Event{status(protocol.TaskStateAuthRequired, said)}
		}
		return []protocol.Event{status(protocol.TaskStateInputRequired, said)}
	case parley.Input:
		if interrupted(p.state) {
			return []protocol.Event{status(protocol.TaskStateWorking, nil)}
		}
	case parley.Response:
		var out []protocol.Event
		for _, a := range p.artifacts(m) {
			e := p.artifact(a, m)
			e.LastChunk = true
			out = append(out, e)
		}
		return append(out, status(protocol.TaskStateCompleted, nil))
	case parley.Failure:
		return []protocol.Event{status(failureState(m.Error), p.fromAgent(m))}
	}
	return nil
}

// authRequired is the act of an event with which an A2A agent asks for an authorization.
const authRequired = "auth-required"

// failureState is the state of a task that failed.
func failureState(e *parley.Error) protocol.TaskState {
	if e == nil {
		return protocol.TaskStateFailed
	}
	switch e.Code {
	case parley.Rejected, parley.Forbidden, parley.UnknownSkill, parley.InvalidContent:
		return protocol.TaskStateRejected
	case parley.Cancelled:
		return protocol.TaskStateCanceled
	}
	return protocol.TaskStateFailed
}

func (p *progress) artifact(a *protocol.Artifact, m *parley.Message) *protocol.TaskArtifactUpdateEvent {
	if m.Kind.Terminal() {
		a.SetMeta(ExtensionURI, provenance(m))
	}
	e := &protocol.TaskArtifactUpdateEvent{TaskID: p.task, ContextID: p.context, Artifact: a}
	e.SetMeta(ExtensionURI, provenance(m))
	return e
}

// artifacts makes the artifacts of an answer: those of the A2A agent that answered, if their ids
// differ, else one. If the client has pieces already, one artifact has their id and replaces them.
func (p *progress) artifacts(m *parley.Message) []*protocol.Artifact {
	if len(m.Parts) == 0 {
		return nil
	}
	k, all := keptOf(m), 0
	parts := fromParts(m.Parts, k.Parts)
	ids := map[protocol.ArtifactID]bool{}
	for _, a := range k.Artifacts {
		if a.Parts < 0 || a.Parts > len(parts) || a.ID == "" || ids[a.ID] {
			all = -1
			break
		}
		ids[a.ID] = true
		all += a.Parts
	}
	if all != len(parts) {
		return []*protocol.Artifact{{ID: resultID, Parts: parts}}
	}
	var out []*protocol.Artifact
	for i, a := range k.Artifacts {
		id := a.ID
		if i == 0 && p.pieces && !ids[resultID] {
			id = resultID
		}
		out = append(out, &protocol.Artifact{ID: id, Name: a.Name, Description: a.Description,
			Metadata: object(a.Metadata), Extensions: a.Extensions, Parts: parts[:a.Parts:a.Parts]})
		parts = parts[a.Parts:]
	}
	return out
}

// fromAgent makes the message of an event, a failure or an answer.
func (p *progress) fromAgent(m *parley.Message) *protocol.Message {
	k := keptOf(m)
	out := &protocol.Message{ID: m.ID.String(), TaskID: p.task, ContextID: p.context, Role: protocol.MessageRoleAgent,
		Parts: fromParts(m.Parts, k.Parts), Metadata: object(k.Metadata), Extensions: slices.Clone(k.Extensions)}
	if m.Kind == parley.Failure && m.Error != nil {
		out.Parts = protocol.ContentParts{protocol.NewTextPart(m.Error.Text)}
	}
	out.SetMeta(ExtensionURI, provenance(m))
	if !slices.Contains(out.Extensions, ExtensionURI) {
		out.Extensions = append(out.Extensions, ExtensionURI)
	}
	return out
}

// fromClient makes the message of a request or an input again, as the client sent it.
func (p *progress) fromClient(m *parley.Message) *protocol.Message {
	k := keptOf(m)
	out := &protocol.Message{ID: m.Trace.Foreign[foreignMessage], TaskID: p.task, ContextID: p.context,
		Role: protocol.MessageRoleUser, Parts: sentParts(m), Metadata: object(k.Metadata), Extensions: k.Extensions,
		ReferenceTasks: k.References}
	if out.Parts == nil {
		out.Parts = fromParts(m.Parts, k.Parts)
	}
	if out.ID == "" {
		out.ID = m.ID.String()
	}
	return out
}

// partsShape has the members of the parts of a message.
var partsShape = shapeOf[[]part1]()

// sentParts gives the parts as a client of 1.0 sent them, before the hub made them fit a skill;
// nil if they are not to be had.
func sentParts(m *parley.Message) protocol.ContentParts {
	v := memberAt(sentMessage(m.Origin.Raw), "parts")
	old := false // a part of 0.3 says its kind
	jsonx.Elements(v, func(part jsonx.Value) bool {
		old = memberAt(part, "kind") != nil
		return !old
	})
	if v == nil || old {
		return nil
	}
	exact, err := canonical(v, partsShape)
	var wire []part1
	if err != nil || jsonx.Decode(exact, &wire) != nil {
		return nil
	}
	parts := make(protocol.ContentParts, len(wire))
	for i := range wire {
		p, err := toPart1(&wire[i])
		if err != nil {
			return nil
		}
		if _, ok := p.Content.(protocol.Data); ok { // numbers keep their digits, as in an answer
			data := fromPart(&parley.Part{MediaType: cmp.Or(p.MediaType, plainJSON), Name: p.Filename, Data: wire[i].Data})
			data.Metadata = p.Metadata
			p = data
		}
		parts[i] = p
	}
	return parts
}

// fold applies an update to a task.
func fold(t *protocol.Task, e protocol.Event) {
	switch e := e.(type) {
	case *protocol.TaskStatusUpdateEvent:
		if said := t.Status.Message; said != nil {
			t.History = append(t.History, said)
		}
		t.Status = e.Status
	case *protocol.TaskArtifactUpdateEvent:
		i := slices.IndexFunc(t.Artifacts, func(a *protocol.Artifact) bool { return a.ID == e.Artifact.ID })
		switch {
		case i < 0:
			t.Artifacts = append(t.Artifacts, cloneArtifact(e.Artifact))
		case e.Append:
			t.Artifacts[i].Parts = append(t.Artifacts[i].Parts, e.Artifact.Parts...)
		default:
			t.Artifacts[i] = cloneArtifact(e.Artifact)
		}
	}
}

func cloneArtifact(a *protocol.Artifact) *protocol.Artifact {
	c := *a
	c.Parts, c.Metadata = slices.Clone(a.Parts), maps.Clone(a.Metadata)
	return &c
}

// add applies a record about a task.
func (p *progress) add(t *protocol.Task, m *parley.Message, at time.Time) []protocol.Event {
	events := p.events(m, at)
	for _, e := range events {
		fold(t, e)
	}
	if m.Kind == parley.Input {
		t.History = append(t.History, p.fromClient(m))
	}
	return events
}

// usualHistory is how much of a task's history a client gets that names no length.
const usualHistory = 100

// cut leaves the newest messages of a history: n, or the usual number.
func cut(t *protocol.Task, n *int) *protocol.Task {
	most := usualHistory
	if n != nil {
		most = *n
	}
	t.History = t.History[max(len(t.History)-most, 0):]
	return t
}
