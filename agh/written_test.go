package agh

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// A message that the router has encoded gets the checks of a received one.
func TestWrittenIsDecoded(t *testing.T) {
	base := func() *Envelope {
		e := &Envelope{ID: "m1", WorkspaceID: "ws", Channel: "c", Surface: SurfaceThread,
			ThreadID: "thread_abc", From: "a", To: "b", WorkID: "work_1",
			ReplyTo: "m0", TraceID: "t", CausationID: "m0", TS: 1776366000, ExpiresAt: 1776366300,
			Ext: json.RawMessage(`{"a":{"n":1.10}}`)}
		if err := e.SetContent(&Say{Text: "hello <&>", Intent: "notice",
			Artifacts: []json.RawMessage{json.RawMessage(`{"x":[1]}`)}}); err != nil {
			t.Fatal(err)
		}
		return e
	}
	deep := strings.Repeat("[", 1200) + strings.Repeat("]", 1200)
	for name, change := range map[string]func(*Envelope){
		"as it is": func(*Envelope) {}, "no to": func(e *Envelope) { e.To = "" },
		"no thread": func(e *Envelope) { e.ThreadID = "" },
		"both":      func(e *Envelope) { e.DirectID = "direct_" + strings.Repeat("a", 32) },
		"padded":    func(e *Envelope) { e.ID = " m1" },
		"blank id":  func(e *Envelope) { e.ID = " " }, "channel": func(e *Envelope) { e.Channel = "C" },
		"from":   func(e *Envelope) { e.From = "A" },
		"handle": func(e *Envelope) { e.From = "n@" + strings.Repeat("a", 32) },
		"to":     func(e *Envelope) { e.To = "-b" }, "ts": func(e *Envelope) { e.TS = 0 },
		"expires": func(e *Envelope) { e.ExpiresAt = -1 }, "work": func(e *Envelope) { e.WorkID = "a/b" },
		"kind":      func(e *Envelope) { e.Kind = "direct" },
		"body":      func(e *Envelope) { e.Body = json.RawMessage(`{"text":" "}`) },
		"no body":   func(e *Envelope) { e.Body = json.RawMessage(`[]`) },
		"ext":       func(e *Envelope) { e.Ext = json.RawMessage(`[1]`) },
		"null ext":  func(e *Envelope) { e.Ext = json.RawMessage(`null`) },
		"proof":     func(e *Envelope) { e.Proof = json.RawMessage(`{"p":1}`) },
		"bad proof": func(e *Envelope) { e.Proof = json.RawMessage(`"x"`) },
		"deep":      func(e *Envelope) { e.Ext = json.RawMessage(`{"d":` + deep + `}`) },
		"unknown":   func(e *Envelope) { e.Unknown = json.RawMessage(`{"more":1}`) },
		"long":      func(e *Envelope) { e.TraceID = strings.Repeat("x", 5000) },
		"utf8":      func(e *Envelope) { e.ID = "\xff" },
		"twice":     func(e *Envelope) { e.Ext = json.RawMessage(`{"a":1,"a":2}`) },
		"receipt":   func(e *Envelope) { mustContent(t, e, &Receipt{ForID: "m0", Status: StatusRejected}) },
		"trace": func(e *Envelope) {
			mustContent(t, e, &Trace{State: StateCompleted, Result: json.RawMessage(`{"ok":true}`)})
		},
		"greet": func(e *Envelope) {
			c, err := NewCard("a", "", nil)
			if err != nil {
				t.Fatal(err)
			}
			*e = Envelope{ID: "m", WorkspaceID: "ws", Channel: "c", From: "a", TS: 1}
			mustContent(t, e, &Greet{Card: c})
		},
	} {
		e := base()
		change(e)
		w, b, err := e.marshal()
		if err != nil {
			if _, err := e.Encode(); err == nil {
				t.Errorf("%s: is written after all", name)
			}
			continue
		}
		var d Decoder
		want, wantErr := d.Decode(b)
		got, gotErr := d.written(w, b)
		if (wantErr == nil) != (gotErr == nil) || wantErr != nil && ReasonOf(wantErr) != ReasonOf(gotErr) {
			t.Errorf("%s: decoded %v, written %v", name, wantErr, gotErr)
			continue
		}
		if wantErr != nil {
			continue
		}
		if !reflect.DeepEqual(got.content, want.content) || got.Container() != want.Container() || got.ID != want.ID ||
			got.To != want.To ||
			string(got.raw) != string(want.raw) || got.TS != want.TS || (got.Proof == nil) != (want.Proof == nil) ||
			string(got.Ext) != string(want.Ext) {
			t.Errorf("%s:\n%+v\n%+v", name, got, want)
		}
	}
}

func mustContent(t *testing.T, e *Envelope, c any) {
	t.Helper()
	if err := e.SetContent(c); err != nil {
		t.Fatal(err)
	}
}
