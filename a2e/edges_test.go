package a2e

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// A2E-123: working memory is that of one session, episodic memory that of one
// identity over its sessions.
func TestWorkingMemoryEndsWithItsSession(t *testing.T) {
	bubble(t, "A2E-123", func(t *testing.T) {
		h := testHost()
		first := connect(t, h)
		first.handshake("test-token-a")
		open := func(co *conn) string {
			co.send(`{"type":"memory/init/req","id":"i","namespace":"n"}`)
			return co.next().str("memory_id")
		}
		store := open(first)
		first.send(`{"type":"memory/store/req","id":"s","memory_id":"` + store + `","entries":[` +
			`{"key":{"k":1},"content":1,"tier":"working"},{"key":{"k":2},"content":2,"tier":"episodic"}]}`)
		if f := first.next(); len(f["stored"].([]any)) != 2 {
			t.Fatal(f)
		}
		second := connect(t, h)
		second.handshake("test-token-a")
		second.send(`{"type":"memory/retrieve/req","id":"r","memory_id":"` + open(second) + `"}`)
		entries := second.next()["entries"].([]any)
		if len(entries) != 1 || entries[0].(map[string]any)["tier"] != "episodic" {
			t.Errorf("another session of the identity reads %v, want the episodic entry alone", entries)
		}
	})
}

// A2E-075: the handler learns that its deadline passed, not that the requester left.
func TestHandlerLearnsOfItsDeadline(t *testing.T) {
	bubble(t, "A2E-075", func(t *testing.T) {
		h := testHost()
		ended := make(chan error, 1)
		box := &Toolbox{}
		box.Add(ToolDefinition{Name: "polite"}, func(ctx context.Context, _ *ToolCall) (any, error) {
			<-ctx.Done()
			ended <- ctx.Err()
			return nil, ctx.Err()
		})
		h.Capabilities["tools"] = ServeTools(box)
		co := connect(t, h)
		co.handshake("test-token-a")
		begin := time.Now()
		co.send(`{"type":"tool/call/req","id":"p","tool_name":"polite","arguments":{},"timeout":2}`)
		wantError(t, co.next(), "p", "timeout", "")
		if err := <-ended; !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != 2*time.Second {
			t.Errorf("the handler's context ended after %v with %v", time.Since(begin), err)
		}
	})
}

// The literal of a condition is a number where the reference's language reads one, and a
// text otherwise.
func TestLiterals(t *testing.T) {
	context := map[string]json.RawMessage{"zero": json.RawMessage("0"), "n": json.RawMessage("-5"),
		"s": json.RawMessage(`"--0"`)}
	for condition, want := range map[string]bool{
		"$.n == -5": true, "$.n == -5.0": true, "$.n < +1_0": true, "$.n > -inf": true,
		"$.zero == --0": false, "$.n == +-5": false, "$.zero == -nan": false, "$.s == --0": true,
	} {
		if got, err := evalCondition(condition, context); err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", condition, got, err, want)
		}
	}
}
