package a2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// Chains serves the capability "chains" (A2E §6.18): a walk from the entry node along
// next_node, with branches, and with map nodes that run another node for each item.
// Nodes are tools and skills; nothing else can be started. chain/resp carries failures,
// not an error frame.
type Chains struct {
	Tools  Tools
	Skills Skills
	Nodes  int // nodes of a chain, and items of a map node; 0 means 256
	Output int // bytes of all outputs; 0 means 2 MiB
}

// Chain error codes, in the member error.code of chain/resp.
const (
	chainCycle     = "chain_cycle"
	chainNodeError = "chain_node_error"
	chainBadEntry  = "bad_entry"
	chainTimeout   = "timeout"
	chainError     = "chain_error"
)

type chainNode struct {
	NodeID    string                     `json:"node_id"`
	Kind      string                     `json:"kind"`
	Name      string                     `json:"name"`
	Input     map[string]json.RawMessage `json:"input"`
	InputMap  map[string]json.RawMessage `json:"input_map"`
	Condition string                     `json:"condition"`
	TrueNode  string                     `json:"true_node"`
	FalseNode string                     `json:"false_node"`
	ItemsPath string                     `json:"items_path"`
	MapNode   string                     `json:"map_node"`
	NextNode  string                     `json:"next_node"`
	OnError   string                     `json:"on_error"`
}

type chainRun struct {
	c       *Chains
	r       *Request
	nodes   map[string]*chainNode
	context map[string]json.RawMessage // initial input and outputs
	outputs map[string]json.RawMessage
	failed  bool
	bytes   int
}

type chainFault struct{ code, message string }

// Serve runs a chain/req.
func (c *Chains) Serve(ctx context.Context, r *Request) (Response, error) {
	if r.Type != "chain/req" {
		return Response{}, ErrUnknownType
	}
	run := &chainRun{c: c, r: r, nodes: map[string]*chainNode{}, context: map[string]json.RawMessage{},
		outputs: map[string]json.RawMessage{}}
	last, fault := run.walk(ctx)
	body := map[string]any{
		"chain_id": cmp.Or(r.Str("chain_id"), NewID()[:8]), "success": fault == nil && !run.failed,
		"outputs": run.outputs, "final_output": nil, "duration_ms": time.Since(r.Received).Milliseconds(),
		"nodes_run": len(run.outputs), "error": nil,
	}
	if fault != nil {
		body["error"] = map[string]string{"code": fault.code, "message": clip(fault.message, maxText)}
	} else if out := run.outputs[last]; out != nil {
		body["final_output"] = out
	}
	return Response{Body: body}, nil
}

func (run *chainRun) walk(ctx context.Context) (last string, fault *chainFault) {
	limit := orDefault(run.c.Nodes, 256)
	for _, raw := range run.r.Values("nodes") {
		n := &chainNode{}
		if err := jsonx.Decode(raw, n); err != nil || n.NodeID == "" || n.Kind == "" || len(run.nodes) >= limit {
			return "", &chainFault{chainError, "a node is not usable"}
		}
		run.nodes[n.NodeID] = n
	}
	input := run.r.Get("initial_input")
	for _, m := range members(input) {
		name, _ := unquote(m.name.of(input))
		run.context[name] = m.value.of(input)
	}
	id := run.r.Str("entry_node")
	if run.nodes[id] == nil {
		return "", &chainFault{chainBadEntry, "entry_node missing"}
	}
	visited := map[string]bool{}
	for id != "" {
		n := run.nodes[id]
		switch {
		case visited[id]:
			return "", &chainFault{chainCycle, "cycle at " + id}
		case ctx.Err() != nil:
			return "", &chainFault{chainTimeout, "chain exceeded timeout"}
		case n == nil:
			return "", &chainFault{chainError, "no node " + id}
		}
		visited[id] = true
		last = id
		id, fault = run.step(ctx, n)
		if fault != nil {
			return "", fault
		}
	}
	return last, nil
}

// step runs one node and names the next.
func (run *chainRun) step(ctx context.Context, n *chainNode) (next string, fault *chainFault) {
	switch n.Kind {
	case "branch":
		ok, err := evalCondition(n.Condition, run.context)
		if err != nil {
			return "", &chainFault{chainError, "the condition cannot be evaluated"}
		}
		if ok {
			return n.TrueNode, nil
		}
		return n.FalseNode, nil
	case "map":
		return n.NextNode, run.mapOver(ctx, n)
	}
	input := run.input(n)
	out, err := run.execute(ctx, n, input)
	if err == nil {
		return n.NextNode, run.keep(n.NodeID, out)
	}
	run.failed = true
	run.outputs[n.NodeID], run.context[n.NodeID] = null, null
	switch n.OnError {
	case "skip":
		return n.NextNode, nil
	case "", "abort":
		return "", &chainFault{chainNodeError, publicText(err)}
	}
	return n.OnError, nil
}

func (run *chainRun) mapOver(ctx context.Context, n *chainNode) *chainFault {
	found := resolve(appendString(nil, cmp.Or(n.ItemsPath, "$")), run.context)
	items := []json.RawMessage{found}
	if found[0] == '[' {
		items = nil
		elements(found, func(_ int, v []byte) bool { items = append(items, v); return true })
	}
	target := run.nodes[n.MapNode]
	if target == nil || len(items) > orDefault(run.c.Nodes, 256) {
		return &chainFault{chainError, "the map node is not usable"}
	}
	results := []json.RawMessage{}
	for _, item := range items {
		if ctx.Err() != nil {
			return &chainFault{chainTimeout, "chain exceeded timeout"}
		}
		out, err := run.execute(ctx, target, append(append(json.RawMessage(`{"item":`), item...), '}'))
		if err != nil {
			run.failed = true
			continue
		}
		if fault := run.keep(target.NodeID, out); fault != nil {
			return fault
		}
		results = append(results, out)
	}
	all, _ := jsonx.Encode(results)
	return run.keep(n.NodeID, all)
}

func (run *chainRun) keep(id string, out json.RawMessage) *chainFault {
	run.bytes += len(out)
	if run.bytes > orDefault(run.c.Output, 2<<20) {
		return &chainFault{chainError, "the outputs are too large"}
	}
	run.outputs[id], run.context[id] = out, out
	return nil
}

func (run *chainRun) input(n *chainNode) json.RawMessage {
	from := n.Input
	if len(n.InputMap) > 0 {
		from = make(map[string]json.RawMessage, len(n.InputMap))
		for k, v := range n.InputMap {
			from[k] = resolve(v, run.context)
		}
	}
	b, _ := jsonx.Encode(from)
	return b
}

// execute runs a tool or skill between a start and a done or error event.
func (run *chainRun) execute(ctx context.Context, n *chainNode, input json.RawMessage) (json.RawMessage, error) {
	run.emit(ctx, n.NodeID, "start", null, "")
	out, err := run.call(ctx, n, input)
	if err != nil {
		run.emit(ctx, n.NodeID, "error", null, publicText(err))
		return nil, err
	}
	run.emit(ctx, n.NodeID, "done", out, "")
	return out, nil
}

func (run *chainRun) call(ctx context.Context, n *chainNode, input json.RawMessage) (json.RawMessage, error) {
	var data any
	success, text := false, ""
	switch {
	case n.Kind == "tool" && run.c.Tools != nil:
		res, err := run.c.Tools.Call(ctx, &ToolCall{Request: run.r, Name: n.Name, Arguments: input})
		if err != nil {
			return nil, err
		}
		data, success, text = res.Data, res.Success, res.Error
	case n.Kind == "skill" && run.c.Skills != nil:
		res, err := run.c.Skills.Call(ctx, &SkillCall{Request: run.r, Name: n.Name, Arguments: input,
			LLMOverride: null, Metadata: json.RawMessage("{}")})
		if err != nil {
			return nil, err
		}
		data, success, text = res.Data, res.Success, res.Error
	default:
		return nil, &Error{Code: InvalidMessage, Text: "unknown node kind " + clip(n.Kind, 40)}
	}
	if !success {
		return nil, &Error{Code: RuntimeError, Text: text}
	}
	return valueOf(data)
}

func (run *chainRun) emit(ctx context.Context, node, phase string, output json.RawMessage, fault string) {
	if !run.r.Bool("streaming") {
		return
	}
	more := func(f encoder) encoder {
		return f.text("node_id", node).text("phase", phase).json("output", output).text("error", clip(fault, maxText))
	}
	// A chain continues when its agent does not read events; Event has waited for it.
	_ = run.r.event(ctx, KindStatus, nil, more)
}

// publicText is the text of an error for the agent.
func publicText(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Text
	}
	return "the node failed"
}

// resolve evaluates an expression of input_map or items_path (A2E §6.18). A string that
// starts with "$" is a path into the context ("$" all of it, "$.node.field" a member of
// an output); any other expression stands for itself. A path that leads nowhere gives
// null.
func resolve(expr json.RawMessage, context map[string]json.RawMessage) json.RawMessage {
	text, _ := textOf(expr)
	if !strings.HasPrefix(text, "$") {
		return expr
	}
	if text == "$" {
		b, _ := jsonx.Encode(context)
		return b
	}
	// The second character is a dot by convention and not checked.
	_, size := utf8.DecodeRuneInString(text[1:])
	parts := strings.Split(text[1+size:], ".")
	cur := context[parts[0]]
	for _, part := range parts[1:] {
		if len(cur) == 0 || cur[0] != '{' {
			return null
		}
		cur = lookup(cur, members(cur), part)
	}
	if cur == nil {
		return null
	}
	return cur
}

var errCondition = errors.New("a2e: values of the condition cannot be compared")

// evalCondition evaluates the condition of a branch node (A2E §6.18). An empty
// condition is true; a path alone is true unless it leads to null, false, zero or an
// empty value; otherwise the condition is one of == != >= <= > < between a path and a
// literal. Values without an order, such as a text and a number, give an error.
func evalCondition(condition string, context map[string]json.RawMessage) (bool, error) {
	condition = strings.TrimSpace(condition)
	if condition == "" {
		return true, nil
	}
	for _, op := range [...]string{"==", "!=", ">=", "<=", ">", "<"} {
		left, right, ok := strings.Cut(condition, op)
		if !ok {
			continue
		}
		value := operandOf(resolve(appendString(nil, strings.TrimSpace(left)), context))
		order, err := value.compare(literalOf(strings.TrimSpace(right)))
		switch equal := err == nil && order == 0; {
		case op == "==":
			return equal, nil
		case op == "!=":
			return !equal, nil
		case value.kind == operandNull:
			return false, nil
		case err != nil || order == unordered:
			return false, err
		}
		switch op {
		case ">":
			return order > 0, nil
		case "<":
			return order < 0, nil
		case ">=":
			return order >= 0, nil
		default:
			return order <= 0, nil
		}
	}
	return operandOf(resolve(appendString(nil, condition), context)).truth(), nil
}

// operand is a value of a condition: booleans count as 0 and 1.
type operand struct {
	kind  byte
	text  string
	whole *big.Int // a number without fraction or exponent
	num   float64
	empty bool // of other
}

const (
	operandNull byte = iota
	operandText
	operandNumber
	operandOther // an array or object

	unordered = 2 // a comparison with NaN
)

// longestNumber bounds the digits of an exact integer.
const longestNumber = 4300

func numberOperand(s string) operand {
	o := operand{kind: operandNumber}
	if !strings.ContainsAny(s, ".eEnNfF") && len(s) <= longestNumber {
		if n, ok := new(big.Int).SetString(s, 10); ok {
			o.whole = n
			o.num, _ = new(big.Float).SetInt(n).Float64()
			return o
		}
	}
	o.num, _ = strconv.ParseFloat(s, 64)
	return o
}

func boolOperand(b bool) operand {
	if b {
		return numberOperand("1")
	}
	return numberOperand("0")
}

func operandOf(v json.RawMessage) operand {
	switch v[0] {
	case 'n':
		return operand{}
	case 't', 'f':
		return boolOperand(v[0] == 't')
	case '"':
		s, _ := unquote(v)
		return operand{kind: operandText, text: strings.TrimSpace(s), empty: s == ""}
	case '{', '[':
		inner := trimLine(v[1 : len(v)-1])
		return operand{kind: operandOther, empty: len(inner) == 0}
	}
	return numberOperand(string(v))
}

// literalOf reads the right side: a number, true or false, or a text with or
// without quotes.
func literalOf(s string) operand {
	switch {
	case validNumber(s):
		return numberOperand(strings.ReplaceAll(s, "_", ""))
	case s == "true" || s == "false":
		return boolOperand(s == "true")
	}
	return operand{kind: operandText, text: strings.Trim(s, `'"`)}
}

// validNumber accepts numbers as the reference's language reads them: decimal, with
// underscores between digits, or inf and nan.
func validNumber(s string) bool {
	if strings.ContainsAny(s, "xX") || strings.HasPrefix(strings.TrimLeft(s, "+-"), "_") ||
		strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return false
	}
	_, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return err == nil || errors.Is(err, strconv.ErrRange)
}

func (a operand) compare(b operand) (int, error) {
	switch {
	case a.kind == operandText && b.kind == operandText:
		return strings.Compare(a.text, b.text), nil
	case a.kind == operandNumber && b.kind == operandNumber:
		return compareNumbers(a, b), nil
	}
	return 0, fmt.Errorf("%w: kinds %d and %d", errCondition, a.kind, b.kind)
}

func compareNumbers(a, b operand) int {
	switch {
	case a.whole != nil && b.whole != nil:
		return a.whole.Cmp(b.whole)
	case math.IsNaN(a.num) || math.IsNaN(b.num):
		return unordered
	}
	return cmp.Compare(a.num, b.num)
}

func (a operand) truth() bool {
	switch a.kind {
	case operandNull:
		return false
	case operandNumber:
		return a.num != 0
	}
	return !a.empty
}
