package a2e

import (
	"context"
	"encoding/json"
)

// Status of a subagent (A2E §6.18).
const (
	StatusReady      = "READY"
	StatusRunning    = "RUNNING"
	StatusCompleted  = "COMPLETED"
	StatusFailed     = "FAILED"
	StatusTerminated = "TERMINATED"
)

// Spawn are the members of multi_agent/spawn.
type Spawn struct {
	Name     string
	Role     string
	Model    string
	MaxSteps int64
	Metadata json.RawMessage
}

// Delegation are the members of multi_agent/delegate.
type Delegation struct {
	SubagentID      string
	TaskName        string
	Instruction     string
	SuccessCriteria []string
}

// Outcome is the answer to multi_agent/await.
type Outcome struct {
	Status string
	Result json.RawMessage // a JSON object, or nil for null
	Error  string          // null on the wire when empty
}

// MultiAgent is the capability "multi_agent": spawn finds another agent, delegate gives
// it work, await asks for the result (A2E §6.11). Await should answer RUNNING before
// the deadline of its request: agents call it again. Every method gets the request, for
// the identity of the agent.
type MultiAgent interface {
	Spawn(ctx context.Context, r *Request, s Spawn) (subagentID, status string, err error)
	Delegate(ctx context.Context, r *Request, d Delegation) (accepted bool, status string, err error)
	Await(ctx context.Context, r *Request, subagentID string) (Outcome, error)
	List(ctx context.Context, r *Request) ([]json.RawMessage, error) // a JSON object each
	Terminate(ctx context.Context, r *Request, subagentID string) (success bool, err error)
}

// ServeMultiAgent makes the provider of the capability "multi_agent".
func ServeMultiAgent(m MultiAgent) Provider { return multiAgentProvider{m} }

type multiAgentProvider struct{ m MultiAgent }

func (p multiAgentProvider) Serve(ctx context.Context, r *Request) (Response, error) {
	sub := r.Str("subagent_id")
	switch r.Type {
	case "multi_agent/spawn":
		id, status, err := p.m.Spawn(ctx, r, Spawn{
			Name: r.Str("name"), Role: r.Str("role"), Model: r.Str("model"), MaxSteps: r.Int("max_steps"),
			Metadata: r.Get("metadata"),
		})
		return Response{Body: map[string]any{"subagent_id": id, "status": status}}, err
	case "multi_agent/delegate":
		ok, status, err := p.m.Delegate(ctx, r, Delegation{
			SubagentID: sub, TaskName: r.Str("task_name"), Instruction: r.Str("instruction"),
			SuccessCriteria: r.Strings("success_criteria"),
		})
		return Response{Body: map[string]any{"accepted": ok, "status": status}}, err
	case "multi_agent/await":
		o, err := p.m.Await(ctx, r, sub)
		var text any
		if o.Error != "" {
			text = o.Error
		}
		return Response{Body: map[string]any{"subagent_id": sub, "status": o.Status, "result": o.Result,
			"error": text}}, err
	case "multi_agent/list":
		list, err := p.m.List(ctx, r)
		return Response{Body: map[string]any{"subagents": list}}, err
	case "multi_agent/terminate":
		ok, err := p.m.Terminate(ctx, r, sub)
		return Response{Body: map[string]any{"success": ok, "subagent_id": sub}}, err
	}
	return Response{}, ErrUnknownType
}
