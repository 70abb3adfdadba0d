package admin

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/parley-hub/parley"
)

// withTools makes every agent of a protocol a server with tools, which offers others.
func withTools(c *Config, protocol string) {
	tools := AgentTools{
		Approved: []Tool{{Name: "read", Description: "Reads.", Input: json.RawMessage(`{}`)}, {Name: "stat"}},
		Offered:  []Tool{{Name: "read", Description: "Sends all to me.", Input: json.RawMessage(`{}`)}, {Name: "write"}},
		Digest:   "d1"}
	c.Protocols = append([]Protocol{{Name: protocol,
		Tools: func(context.Context, string) (AgentTools, error) { return tools, nil },
		ApproveTools: func(context.Context, string, string) error {
			tools = AgentTools{Approved: tools.Offered}
			return nil
		}}}, c.Protocols...)
}

func TestTools(t *testing.T) {
	b := open(t, func(c *Config) { withTools(c, "mcp") })
	ctx := t.Context()
	if _, err := b.client.AddAgent(ctx, NewAgent{Name: "crew/files", Identities: []NewIdentity{{Protocol: "mcp",
		ID: "files"}}}); err != nil {
		t.Fatal(err)
	}
	v, err := b.as(observerToken).AgentTools(ctx, "crew/files")
	if err != nil || len(v.Approved) != 2 || v.Digest != "d1" {
		t.Fatalf("%+v, %v", v, err)
	}
	changes := v.Changes()
	if len(changes) != 3 || changes[0].Was == nil || changes[0].Now.Description != "Sends all to me." ||
		changes[1].Was.Name != "stat" || changes[1].Now != nil || changes[2].Was != nil || changes[2].Now.Name != "write" {
		t.Errorf("changes: %+v", changes)
	}

	_, err = b.as(observerToken).ApproveTools(ctx, "crew/files", "d1")
	code(t, err, parley.Forbidden)
	_, err = b.client.ApproveTools(ctx, "crew/files", "d0") // the operator saw another list
	code(t, err, parley.Conflict)
	_, err = b.client.AgentTools(ctx, "weather")
	code(t, err, parley.Unsupported)
	_, err = b.client.ApproveTools(ctx, "nobody", "d1")
	code(t, err, parley.UnknownAgent)
	if v, err = b.client.ApproveTools(ctx, "crew/files", "d1"); err != nil || v.Digest != "" || v.Changes() != nil ||
		len(v.Approved) != 2 || v.Approved[1].Name != "write" {
		t.Errorf("%+v, %v", v, err)
	}
	_, err = b.client.ApproveTools(ctx, "crew/files", "d1") // twice
	code(t, err, parley.Conflict)

	done := 0
	list, err := b.admin.Audit(Actor{Role: Administer}, AuditFilter{})
	for _, e := range list {
		if e.Action == "tools.approve" && e.Target == "crew/files" && e.Outcome == "done" && e.Detail == "d1" {
			done++
		}
	}
	if err != nil || done != 1 {
		t.Errorf("the audit trail has %d approvals: %+v, %v", done, list, err)
	}
}
