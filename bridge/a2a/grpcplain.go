package a2a

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"
	pb1 "github.com/a2aproject/a2a-go/v2/a2apb/v1"

	"github.com/parley-hub/parley/internal/jsonx"
)

// plainEvent gives an event as the SDK's conversion to protocol buffers takes it: values
// that are JSON become what encoding/json makes of them, and numbers doubles, as
// google.protobuf.Value has them. The event itself may be read by others, so it is copied.
func plainEvent(e protocol.Event) (out protocol.Event, err error) {
	switch e := e.(type) {
	case *protocol.Task:
		return plainTask(e)
	case *protocol.Message:
		return plainMessage(e)
	case *protocol.TaskStatusUpdateEvent:
		c := *e
		if c.Status.Message, err = plainMessage(e.Status.Message); err != nil {
			return nil, err
		}
		c.Metadata, err = plainMap(e.Metadata)
		return &c, err
	case *protocol.TaskArtifactUpdateEvent:
		c := *e
		if c.Artifact, err = plainArtifact(e.Artifact); err != nil {
			return nil, err
		}
		c.Metadata, err = plainMap(e.Metadata)
		return &c, err
	}
	return e, nil
}

func plainTask(t *protocol.Task) (_ *protocol.Task, err error) {
	if t == nil {
		return nil, nil
	}
	c := *t
	if c.Status.Message, err = plainMessage(t.Status.Message); err != nil {
		return nil, err
	}
	c.History = make([]*protocol.Message, len(t.History))
	for i, m := range t.History {
		if c.History[i], err = plainMessage(m); err != nil {
			return nil, err
		}
	}
	c.Artifacts = make([]*protocol.Artifact, len(t.Artifacts))
	for i, a := range t.Artifacts {
		if c.Artifacts[i], err = plainArtifact(a); err != nil {
			return nil, err
		}
	}
	c.Metadata, err = plainMap(t.Metadata)
	return &c, err
}

func plainMessage(m *protocol.Message) (_ *protocol.Message, err error) {
	if m == nil {
		return nil, nil
	}
	c := *m
	if c.Parts, err = plainParts(m.Parts); err != nil {
		return nil, err
	}
	c.Metadata, err = plainMap(m.Metadata)
	return &c, err
}

func plainArtifact(a *protocol.Artifact) (_ *protocol.Artifact, err error) {
	if a == nil {
		return nil, nil
	}
	c := *a
	if c.Parts, err = plainParts(a.Parts); err != nil {
		return nil, err
	}
	c.Metadata, err = plainMap(a.Metadata)
	return &c, err
}

func plainParts(parts protocol.ContentParts) (protocol.ContentParts, error) {
	out := make(protocol.ContentParts, len(parts))
	for i, p := range parts {
		if p == nil {
			return nil, errors.New("a part without content")
		}
		c := *p
		var err error
		if d, ok := p.Content.(protocol.Data); ok {
			if c.Content, c.MediaType, err = plainData(d, p.MediaType); err != nil {
				return nil, err
			}
		}
		if c.Metadata, err = plainMap(p.Metadata); err != nil {
			return nil, err
		}
		out[i] = &c
	}
	return out, nil
}

// plainData gives data that is no object as a text of type application/json: the SDK
// converts objects alone.
func plainData(d protocol.Data, mediaType string) (protocol.PartContent, string, error) {
	text, err := jsonLiteral(d.Value)
	if err != nil {
		return nil, "", err
	}
	if jsonx.Kind(text) != '{' {
		return protocol.Text(text), cmp.Or(mediaType, "application/json"), nil
	}
	var v map[string]any
	err = json.Unmarshal(text, &v)
	return protocol.Data{Value: v}, mediaType, err
}

func plainMap(m map[string]any) (out map[string]any, err error) {
	if len(m) == 0 {
		return m, nil
	}
	text, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	return out, err
}

// keepData gives data that is no object as a text of type application/json: the SDK would
// make an empty object of it.
func keepData(request any) error {
	r, ok := request.(*pb1.SendMessageRequest)
	if !ok {
		return nil
	}
	for i, p := range r.GetMessage().GetParts() {
		d, ok := p.GetContent().(*pb1.Part_Data)
		if !ok || d.Data.GetStructValue() != nil {
			continue
		}
		text, err := encodeJSON(d.Data.AsInterface())
		if err != nil || d.Data.GetKind() == nil {
			return invalidParams(fmt.Sprintf("message.parts[%d].data", i), "no JSON value")
		}
		p.Content, p.MediaType = &pb1.Part_Text{Text: string(text)}, cmp.Or(p.MediaType, "application/json")
	}
	return nil
}
