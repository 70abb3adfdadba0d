package inspect

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"mime"
	"net/url"
	"slices"
	"strings"

	wire "github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/go-jose/go-jose/v4"

	bridge "github.com/parley-hub/parley/bridge/a2a"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
	"github.com/parley-hub/parley/samvad"
)

// a2aForms are what a sample of A2A can be, in the order in which they are looked for.
var a2aForms = []struct {
	form string
	is   func(*Sample, map[string]jsonx.Value) bool
	read func(*a2aInspection, map[string]jsonx.Value)
}{
	{"JSON-RPC request", func(_ *Sample, m map[string]jsonx.Value) bool {
		method := Decoded(m["method"])
		return m["jsonrpc"] != nil && (a2aMethods[method] != "" || strings.HasPrefix(method, "message/") ||
			strings.HasPrefix(method, "tasks/"))
	}, (*a2aInspection).request},
	{"JSON-RPC response", func(s *Sample, m map[string]jsonx.Value) bool {
		return m["jsonrpc"] != nil && (m["result"] != nil || m["error"] != nil) && !isMCPResponse(s, m)
	}, (*a2aInspection).response},
	{"agent card", func(_ *Sample, m map[string]jsonx.Value) bool {
		return m["skills"].Kind() == '[' && m["publicKeys"] == nil && (m["supportedInterfaces"] != nil ||
			m["capabilities"] != nil && (m["url"] != nil || m["defaultInputModes"] != nil))
	}, (*a2aInspection).card},
	{"webhook", func(s *Sample, m map[string]jsonx.Value) bool {
		return s.http && s.header.Get("A2A-Notification-Token") != "" && a2aEventOf(m) != ""
	}, (*a2aInspection).event},
	{"stream event", func(_ *Sample, m map[string]jsonx.Value) bool {
		return m["statusUpdate"] != nil || m["artifactUpdate"] != nil || m["task"].Kind() == '{' && len(m) == 1 ||
			slices.Contains([]string{"status-update", "artifact-update"}, Decoded(m["kind"]))
	}, (*a2aInspection).event},
	{"task", func(_ *Sample, m map[string]jsonx.Value) bool {
		return m["status"].Kind() == '{' && m["id"] != nil && (m["contextId"] != nil || Decoded(m["kind"]) == "task")
	}, func(v *a2aInspection, m map[string]jsonx.Value) { v.task("task", m) }},
	{"message", func(_ *Sample, m map[string]jsonx.Value) bool {
		return m["parts"].Kind() == '[' && (m["messageId"] != nil || m["message_id"] != nil || m["role"] != nil)
	}, func(v *a2aInspection, m map[string]jsonx.Value) { v.message("message", m) }},
	{"request to send a message", func(s *Sample, m map[string]jsonx.Value) bool {
		inner := a2aMembers(m["message"])
		return inner["parts"] != nil || s.http && strings.HasSuffix(s.path(), "/message:send") ||
			s.http && strings.HasSuffix(s.path(), "/message:stream")
	}, (*a2aInspection).send},
}

// a2aMethods are the methods of JSON-RPC, and what they do.
var a2aMethods = map[string]string{
	"SendMessage":          "send a message, and wait for its task or answer",
	"SendStreamingMessage": "send a message, and stream its task",
	"GetTask":              "read a task", "ListTasks": "list one's tasks", "CancelTask": "cancel a task",
	"SubscribeToTask":                  "stream the rest of a task",
	"CreateTaskPushNotificationConfig": "add a webhook", "GetTaskPushNotificationConfig": "read a webhook",
	"ListTaskPushNotificationConfigs": "list webhooks", "DeleteTaskPushNotificationConfig": "remove a webhook",
	"GetExtendedAgentCard": "read the card for callers that are known",
	"message/send":         "send a message, and wait for its task or answer",
	"message/stream":       "send a message, and stream its task",
	"tasks/get":            "read a task", "tasks/cancel": "cancel a task",
	"tasks/resubscribe":                "stream the rest of a task",
	"tasks/pushNotificationConfig/set": "add a webhook", "tasks/pushNotificationConfig/get": "read a webhook",
	"tasks/pushNotificationConfig/list": "list webhooks", "tasks/pushNotificationConfig/delete": "remove a webhook",
	"agent/getAuthenticatedExtendedCard": "read the card for callers that are known",
}

// a2aErrors are the codes of errors, and what they mean.
var a2aErrors = map[string]string{
	"-32700": "the request is no JSON, or has what the schema does not know", "-32600": "it is no request of JSON-RPC 2.0",
	"-32601": "the method is unknown: it may be of another version", "-32602": "a parameter is missing or wrong",
	"-32603": "the agent failed", "-32001": "no such task, or it is another caller's",
	"-32002": "the task has ended, and cannot be cancelled", "-32003": "the agent calls no webhooks",
	"-32004": "the agent does not do this, or not in this state of the task",
	"-32005": "the agent does not take this type of content",
	"-32006": "what the agent answered is no answer of A2A", "-32007": "the agent has no card for known callers",
	"-32008": "the request does not name an extension that the agent needs: A2A-Extensions",
	"-32009": "the agent does not speak this version: A2A-Version",
}

// a2aMeanings are what the members mean, wherever they are.
var a2aMeanings = map[string]string{
	"jsonrpc": "always 2.0", "id": "the caller's or the task's", "method": "its name", "params": "of the method",
	"messageId": "the sender's id; a hub makes one task of a repeat", "role": "who speaks: the caller or the agent",
	"parts": "the content", "taskId": "the open task that it is about", "contextId": "the conversation",
	"metadata": "what extensions add", "extensions": "URIs of the extensions that metadata uses",
	"referenceTaskIds": "earlier tasks that it builds on", "configuration": "how the answer is wanted",
	"status": "state, when it began, and a message about it", "artifacts": "the results", "history": "messages so far",
	"artifact": "a result, or a piece of one", "append": "whether the piece is added to what came before",
	"lastChunk": "whether the artifact is complete", "final": "0.3: whether the stream ends here",
	"kind": "0.3: what this object is", "message": "the message", "task": "the task as it is",
	"statusUpdate":   "the new state of a task",
	"artifactUpdate": "a result, or a piece of one", "tenant": "as the card's interface names it; it gives no rights",
	"result": "of the method", "error": "why it failed", "name": "for people", "description": "for people",
	"version": "of the agent", "supportedInterfaces": "where clients call, best first",
	"capabilities": "what the agent can do besides",
	"skills":       "what it can do", "defaultInputModes": "media types that it takes",
	"defaultOutputModes": "media types that it gives",
	"securitySchemes":    "ways for callers to identify themselves", "securityRequirements": "those that are needed",
	"signatures": "of the card (JWS)", "url": "0.3: where clients call", "preferredTransport": "0.3: what url speaks",
	"protocolVersion": "0.3: version of the protocol", "additionalInterfaces": "0.3: further URLs",
	"security":                          "0.3: which schemes are needed",
	"supportsAuthenticatedExtendedCard": "0.3: whether known callers get another card",
	"provider":                          "who runs the agent", "documentationUrl": "for people", "iconUrl": "for people",
}

func a2aMembers(v jsonx.Value) map[string]jsonx.Value {
	var m map[string]jsonx.Value
	if v.Kind() != '{' || jsonx.Decode(v, &m) != nil {
		return nil
	}
	return m
}

func a2aList(v jsonx.Value) (out []jsonx.Value) {
	if v.Kind() != '[' || jsonx.Decode(v, &out) != nil {
		return nil
	}
	return out
}

// a2aEventOf names the kind of a stream event; "" for none.
func a2aEventOf(m map[string]jsonx.Value) string {
	for _, name := range []string{"statusUpdate", "artifactUpdate", "task", "message"} {
		if m[name].Kind() == '{' {
			return name
		}
	}
	return map[string]string{"status-update": "statusUpdate", "artifact-update": "artifactUpdate", "task": "task",
		"message": "message"}[Decoded(m["kind"])]
}

func a2aForm(s *Sample) int {
	m := s.members()
	for i := range a2aForms {
		if a2aForms[i].is(s, m) {
			return i
		}
	}
	return -1
}

func recognisesA2A(s *Sample) bool {
	return a2aForm(s) >= 0 || s.header.Get(wire.SvcParamVersion) != "" || s.header.Get("A2A-Notification-Token") != ""
}

// a2aInspection is the inspection of a sample of one version.
type a2aInspection struct {
	*Report
	s   *Sample
	o   Options
	old bool  // of 0.3
	bad error // of the keys to check with
}

func inspectA2A(_ context.Context, s *Sample, o Options) (*Report, error) {
	v := &a2aInspection{Report: newReport(), s: s, o: o}
	var members map[string]jsonx.Value
	if err := jsonx.Decode(s.Body, &members); err != nil {
		v.fail("json", err.Error(), "It is not one JSON object with each member once, in UTF-8.",
			"A hub answers -32700. Other servers may accept it and read something else.")
		return v.Report, nil
	}
	v.pass("json")
	form := a2aForm(s)
	if form < 0 {
		v.fail("form", "", "It is no card, request, response, message, task or event of A2A.",
			"Compare its members with the specification, sections 4 and 9; their spelling counts.")
		return v.Report, nil
	}
	f := a2aForms[form]
	v.ok("form", f.form)
	v.old = a2aIsOld(members, f.form)
	v.Version = v.version()
	v.transport(f.form, members)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		text := Decoded(members[name])
		meaning := a2aMeanings[name]
		if meaning == "" {
			meaning = "not a member that A2A knows; it is ignored"
		}
		v.field(name, text, meaning)
	}
	if f.read(v, members); v.bad != nil {
		return nil, v.bad
	}
	if f.form != "agent card" {
		v.skip("A2A has none for messages: the caller's token or certificate vouches for them", "signature")
	}
	if v.Sentence == "" {
		v.Sentence = fmt.Sprintf("It is a well-formed %s of A2A %s.", f.form, v.version())
		if f.form != "agent card" {
			v.Sentence += " A2A messages have no signatures, so it proves nothing about its sender."
		}
	}
	return v.Report, nil
}

func (v *a2aInspection) version() string {
	if v.old {
		return bridge.V03
	}
	return bridge.V1
}

// a2aIsOld tells the version of a sample by its words.
func a2aIsOld(m map[string]jsonx.Value, form string) bool {
	switch form {
	case "JSON-RPC request":
		return strings.Contains(Decoded(m["method"]), "/")
	case "JSON-RPC response":
		return a2aMembers(m["result"])["kind"] != nil
	case "agent card":
		return m["supportedInterfaces"] == nil
	case "request to send a message":
		return a2aMembers(m["message"])["kind"] != nil
	}
	return m["kind"] != nil
}

// transport checks the headers of an HTTP request against its body.
func (v *a2aInspection) transport(form string, m map[string]jsonx.Value) {
	if !v.s.http {
		return
	}
	if t, _, err := mime.ParseMediaType(v.s.header.Get("Content-Type")); v.s.method == "POST" && (err != nil ||
		t != "application/json" && t != "application/a2a+json") {
		v.fail("content type", v.s.header.Get("Content-Type"), "Its Content-Type is not application/json.",
			"Send Content-Type: application/json; a hub looks at it before the body.")
	} else {
		v.pass("content type")
	}
	if form == "webhook" {
		return
	}
	said := v.s.header.Get(wire.SvcParamVersion)
	if said == "" {
		if q, err := url.ParseQuery(v.s.query()); err == nil {
			said = q.Get(wire.SvcParamVersion)
		}
	}
	release := A2ARelease(said)
	switch {
	case said == "" && !v.old:
		v.fail("version", "", "It has no header A2A-Version, so it is read as 0.3, but its words are of 1.0.",
			"Send A2A-Version: 1.0 with every request.")
	case said != "" && release != bridge.V1 && release != bridge.V03:
		v.fail("version", said, "The version "+said+" is none that agents speak.", "Send A2A-Version: 1.0.")
	case said != "" && (release == bridge.V03) != v.old:
		v.fail("version", said, "The header says "+said+", but the words are of "+v.version()+".",
			"Send the header of the version in which the body is written.")
	default:
		v.ok("version", v.version())
	}
}

// need fails unless a member is a string that is not empty.
func (v *a2aInspection) need(at string, m map[string]jsonx.Value, name string) bool {
	var text string
	if m[name].Kind() == '"' && jsonx.Decode(m[name], &text) == nil && text != "" {
		return true
	}
	path := strings.TrimPrefix(at+"."+name, ".")
	if snake := snakeCase(name); m[snake] != nil && snake != name {
		v.fail(path, snake, "It writes "+snake+" where A2A writes "+name+".", "Some servers read both; write "+name+".")
		return false
	}
	if m[name] != nil && m[name].Kind() != '"' {
		v.fail(path, string(m[name]), path+" is not a string.", "")
		return false
	}
	v.fail(path, "", "It has no "+path+", or it is empty.", "")
	return false
}

func snakeCase(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (v *a2aInspection) request(m map[string]jsonx.Value) {
	if Decoded(m["jsonrpc"]) != "2.0" {
		v.fail("jsonrpc", string(m["jsonrpc"]), `jsonrpc is not "2.0".`, "")
	}
	method := Decoded(m["method"])
	switch {
	case a2aMethods[method] == "":
		v.fail("method", method, "The method "+method+" is unknown.", "")
		return
	case m["id"] == nil:
		v.fail("id", "", "It has no id, so it is a notification, which is not answered.", "Give it an id.")
	case !slices.Contains([]byte{'"', '0', 'n'}, byte(m["id"].Kind())):
		v.fail("id", string(m["id"]), "Its id is neither a string nor a number.", "")
	}
	v.ok("method", method+": "+a2aMethods[method])
	params := a2aMembers(m["params"])
	switch method {
	case "SendMessage", "SendStreamingMessage", "message/send", "message/stream":
		v.send(params)
	case "GetTask", "CancelTask", "SubscribeToTask", "tasks/get", "tasks/cancel", "tasks/resubscribe":
		v.need("params", params, "id")
	case "ListTasks", "GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard":
	case "CreateTaskPushNotificationConfig":
		v.need("params", params, "taskId")
		v.webhook("params", params)
	default:
		if !v.old {
			v.need("params", params, "taskId")
		}
	}
}

// webhook checks where a task's events are to be posted.
func (v *a2aInspection) webhook(at string, m map[string]jsonx.Value) {
	if !v.need(at, m, "url") {
		return
	}
	if u, err := url.Parse(Decoded(m["url"])); err != nil || u.Scheme != "https" || u.Host == "" {
		v.fail(at+".url", Decoded(m["url"]), "The webhook is not at an https:// URL.",
			"A hub calls http:// only with a2a.plain_push, at addresses of network.allow.")
	}
}

func (v *a2aInspection) response(m map[string]jsonx.Value) {
	switch e := a2aMembers(m["error"]); {
	case m["error"] != nil && m["result"] != nil:
		v.fail("result", "", "It has both a result and an error.", "")
	case m["error"] != nil:
		code := string(e["code"])
		meaning := a2aErrors[code]
		if meaning == "" {
			meaning = "no code of A2A"
		}
		v.field("error.code", code, meaning)
		v.field("error.message", Decoded(e["message"]), "for people")
		if e["data"] != nil && e["data"].Kind() != '[' {
			v.fail("error.data", "", "error.data is not a list.", "A2A 1.0, section 9.5: a list of objects with @type. "+
				"Clients of older SDKs lose the code otherwise.")
		}
		for _, d := range a2aList(e["data"]) {
			detail := a2aMembers(d)
			if ref := a2aMembers(detail["metadata"])["ref"]; ref != nil {
				v.field("ref", Decoded(ref), "at a hub: parley explain "+Decoded(ref))
			}
			if detail["reason"] != nil {
				v.field("reason", Decoded(detail["reason"]), "the error's name")
			}
		}
		if v.Sentence == "" {
			v.Sentence = "The agent refused: " + meaning + "."
		}
	default:
		result := a2aMembers(m["result"])
		if inner := a2aEventOf(result); inner != "" {
			v.event(result)
		} else if result["status"] != nil {
			v.task("result", result)
		}
	}
}

func (v *a2aInspection) send(m map[string]jsonx.Value) {
	if m["message"].Kind() != '{' {
		v.fail("message", "", "It has no message.", "A2A 1.0: params.message; over HTTP+JSON the member message.")
		return
	}
	message := a2aMembers(m["message"])
	v.message("message", message)
	if role := Decoded(message["role"]); role == "ROLE_AGENT" || role == "agent" {
		v.fail("message.role", role, "A client speaks as the agent.", "The role of a client is "+
			map[bool]string{true: "user", false: "ROLE_USER"}[v.old]+".")
	}
	c := a2aMembers(m["configuration"])
	for name, other := range map[string]string{"blocking": "returnImmediately",
		"pushNotificationConfig": "taskPushNotificationConfig"} {
		if !v.old && c[name] != nil {
			v.fail("configuration."+name, "", name+" is of 0.3.", "In 1.0 it is "+other+".")
		}
	}
	if hook := c["taskPushNotificationConfig"]; hook != nil {
		v.webhook("configuration.taskPushNotificationConfig", a2aMembers(hook))
	}
}

func (v *a2aInspection) message(at string, m map[string]jsonx.Value) {
	v.need(at, m, "messageId")
	roles := []string{"ROLE_USER", "ROLE_AGENT"}
	if v.old {
		roles = []string{"user", "agent"}
	}
	if role := Decoded(m["role"]); !slices.Contains(roles, role) {
		v.fail(at+".role", role, fmt.Sprintf("The role %q is none of A2A %s.", role, v.version()),
			"It is "+roles[0]+" of a client, "+roles[1]+" of an agent.")
	}
	v.parts(at+".parts", m["parts"])
	if ours := a2aMembers(a2aMembers(m["metadata"])[bridge.ExtensionURI]); ours != nil {
		for _, name := range slices.Sorted(maps.Keys(ours)) {
			v.field("parley "+name, Decoded(ours[name]), "of Parley's extension, see docs/a2a.md")
		}
	}
}

func (v *a2aInspection) parts(at string, list jsonx.Value) {
	parts := a2aList(list)
	if len(parts) == 0 {
		v.fail(at, "", "It has no parts.", "A message has at least one.")
		return
	}
	for i, p := range parts {
		path := fmt.Sprintf("%s[%d]", at, i)
		m := a2aMembers(p)
		if v.old {
			v.oldPart(path, m)
			continue
		}
		var contents []string
		for _, name := range []string{"text", "raw", "url", "data"} {
			if m[name] != nil {
				contents = append(contents, name)
			}
		}
		switch {
		case m["kind"] != nil && len(contents) < 2:
			v.fail(path, Decoded(m["kind"]), "A part names its kind, as in 0.3.",
				`In 1.0 it has exactly one of text, raw, url and data: {"text": "…"}.`)
		case len(contents) != 1:
			v.fail(path, strings.Join(contents, ", "), "A part has not exactly one of text, raw, url and data.", "")
		case contents[0] == "raw":
			v.base64(path+".raw", m["raw"])
		case contents[0] != "data" && m[contents[0]].Kind() != '"':
			v.fail(path+"."+contents[0], string(m[contents[0]]), "The "+contents[0]+" of a part is not a string.",
				`JSON goes into data: {"data": …}.`)
		default:
			v.ok(path, contents[0])
		}
	}
}

func (v *a2aInspection) oldPart(path string, m map[string]jsonx.Value) {
	kind := Decoded(m["kind"])
	switch {
	case m["kind"] == nil:
		v.fail(path, "", "A part names no kind.", `In 0.3 it is {"kind": "text", "text": "…"}.`)
	case kind == "file":
		file := a2aMembers(m["file"])
		if (file["bytes"] != nil) == (file["uri"] != nil) {
			v.fail(path+".file", "", "A file has not exactly one of bytes and uri.", "")
		} else if file["bytes"] != nil {
			v.base64(path+".file.bytes", file["bytes"])
		} else {
			v.ok(path, "file by URI")
		}
	case kind == "data" && m["data"].Kind() != '{':
		v.fail(path, string(m["data"]), "The data of a part is no object.", "0.3 has objects only; 1.0 takes any JSON.")
	case kind == "text" && m["text"].Kind() == '"', kind == "data":
		v.ok(path, kind)
	default:
		v.fail(path, kind, fmt.Sprintf("A part of the kind %q is none of 0.3, or lacks its content.", kind), "")
	}
}

func (v *a2aInspection) base64(path string, value jsonx.Value) {
	b, err := base64.StdEncoding.DecodeString(Decoded(value))
	if err != nil {
		v.fail(path, err.Error(), "The bytes of a part are not base64.", "The standard alphabet, with padding.")
		return
	}
	v.ok(path, fmt.Sprintf("%d bytes", len(b)))
}

// a2aStates are the states, and what they mean.
var a2aStates = map[string]string{"submitted": "recorded; no work yet", "working": "in work",
	"input-required": "it waits for more from the caller: a message with this taskId",
	"auth-required":  "it waits for a sign-in elsewhere; send no password here", "completed": "done",
	"failed": "failed", "canceled": "cancelled", "rejected": "the agent does not do it", "unknown": "0.3 only"}

func (v *a2aInspection) status(at string, m map[string]jsonx.Value) {
	state := Decoded(m["state"])
	name := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(state, "TASK_STATE_")), "_", "-")
	meaning, known := a2aStates[name]
	want := name
	if !v.old {
		want = "TASK_STATE_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
	}
	switch {
	case !known:
		v.fail(at+".state", state, fmt.Sprintf("The state %q is unknown.", state), "")
	case state != want:
		v.fail(at+".state", state, fmt.Sprintf("The state %s is not in the words of A2A %s.", state, v.version()),
			"It is "+want+".")
	default:
		v.field(at+".state", state, meaning)
		v.ok(at+".state", state)
	}
	if m["message"].Kind() == '{' {
		v.message(at+".message", a2aMembers(m["message"]))
	}
}

func (v *a2aInspection) task(at string, m map[string]jsonx.Value) {
	v.need(at, m, "id")
	v.need(at, m, "contextId")
	v.status(at+".status", a2aMembers(m["status"]))
	if m["artifacts"] != nil && m["artifacts"].Kind() != '[' {
		v.fail(at+".artifacts", "", at+".artifacts is not a list.", "")
	}
	for i, a := range a2aList(m["artifacts"]) {
		v.artifact(fmt.Sprintf("%s.artifacts[%d]", at, i), a2aMembers(a))
	}
}

func (v *a2aInspection) artifact(at string, m map[string]jsonx.Value) {
	v.need(at, m, "artifactId")
	v.parts(at+".parts", m["parts"])
}

func (v *a2aInspection) event(m map[string]jsonx.Value) {
	name := a2aEventOf(m)
	inner := m
	if !v.old {
		inner = a2aMembers(m[name])
	}
	switch name {
	case "statusUpdate":
		v.need(name, inner, "taskId")
		v.need(name, inner, "contextId")
		v.status(name+".status", a2aMembers(inner["status"]))
		if v.old && inner["final"] == nil {
			v.fail("final", "", "The status update does not say whether it is final.", "0.3 clients end the stream by it.")
		}
	case "artifactUpdate":
		v.need(name, inner, "taskId")
		v.need(name, inner, "contextId")
		v.artifact(name+".artifact", a2aMembers(inner["artifact"]))
	case "task":
		v.task(name, inner)
	case "message":
		v.message(name, inner)
	}
	if v.s.header.Get("A2A-Notification-Token") != "" {
		v.skip("compare A2A-Notification-Token with the one that you gave, and read the task: a webhook is a hint",
			"token")
	}
}

// card checks an agent card (A2A 1.0, section 4.4; 0.3, section 5.5).
func (v *a2aInspection) card(m map[string]jsonx.Value) {
	form := "pure " + bridge.V1
	switch {
	case m["supportedInterfaces"] == nil:
		form = bridge.V03
	case m["url"] != nil && m["preferredTransport"] != nil:
		form = "hybrid: clients of 1.0 and of 0.3 read it"
	}
	v.ok("card form", form)
	for _, name := range []string{"name", "description", "version"} {
		v.need("", m, name)
	}
	if v.old || m["url"] != nil {
		v.address("url", m)
	}
	if !v.old {
		list := a2aList(m["supportedInterfaces"])
		if len(list) == 0 {
			v.fail("supportedInterfaces", "", "It lists no interface: nobody can call the agent.", "")
		}
		for i, e := range list {
			at, entry := fmt.Sprintf("supportedInterfaces[%d]", i), a2aMembers(e)
			v.address(at+".url", entry)
			v.need(at, entry, "protocolVersion")
			if b := Decoded(entry["protocolBinding"]); !slices.Contains([]string{"JSONRPC", "HTTP+JSON", "GRPC"}, b) {
				v.fail(at+".protocolBinding", b, fmt.Sprintf("The binding %q is none of JSONRPC, HTTP+JSON and GRPC.", b),
					"Clients skip the interface.")
			}
		}
	}
	if m["capabilities"].Kind() != '{' {
		v.fail("capabilities", "", "It has no capabilities.", "An empty object will do.")
	}
	for _, name := range []string{"defaultInputModes", "defaultOutputModes"} {
		if len(a2aList(m[name])) == 0 {
			v.fail(name, "", "It has no "+name+", or the list is empty.", `["text/plain"] is usual.`)
		}
	}
	skills := a2aList(m["skills"])
	if len(skills) == 0 {
		v.fail("skills", "", "It lists no skill.", "")
	}
	for i, k := range skills {
		at, skill := fmt.Sprintf("skills[%d]", i), a2aMembers(k)
		for _, name := range []string{"id", "name", "description"} {
			v.need(at, skill, name)
		}
		if len(a2aList(skill["tags"])) == 0 {
			v.fail(at+".tags", "", "A skill has no tags.", "At least one is required.")
		}
		v.field(at, Decoded(skill["id"]), short(Decoded(skill["description"]), 200))
	}
	if !v.old && m["security"] != nil && m["securityRequirements"] == nil {
		v.fail("securityRequirements", "", "It says security, the member of 0.3.", "In 1.0 it is securityRequirements.")
	}
	if err := v.signatures(m); err != nil {
		v.bad = err
	}
}

// address checks the URL of an interface, or of a card of 0.3.
func (v *a2aInspection) address(path string, m map[string]jsonx.Value) {
	text := Decoded(m["url"])
	u, err := url.Parse(text)
	switch {
	case Decoded(m["protocolBinding"]) == "GRPC" && text != "":
		v.ok(path, text)
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		v.fail(path, text, fmt.Sprintf("%q is no URL that a client can call.", text), "")
	case u.Scheme == "http" && !netguard.OnThisMachine(u.Hostname()):
		v.fail(path, text, "It names a URL without TLS: tokens could be read on the way.", "Use https.")
	default:
		v.ok(path, text)
	}
}

// signatures checks the signatures of a card with the keys of --key.
func (v *a2aInspection) signatures(m map[string]jsonx.Value) error {
	if len(a2aList(m["signatures"])) == 0 {
		v.skip("the card has none: TLS alone says whose it is", "signature")
		return nil
	}
	var keys []jose.JSONWebKey
	for _, text := range v.o.Keys {
		k, err := samvad.ParseKey(text)
		if err != nil {
			return fmt.Errorf("--key: want the base64 of an Ed25519 public key, 32 bytes: %w", err)
		}
		keys = append(keys, jose.JSONWebKey{Key: k.Public, Algorithm: string(jose.EdDSA), Use: "sig"})
	}
	card, err := bridge.VerifyCard(v.s.Body, func(*bridge.CardSignature) []jose.JSONWebKey { return keys })
	switch {
	case err != nil:
		v.fail("signature", err.Error(), "The signatures of the card are malformed.", "")
		return nil
	case len(keys) == 0:
		v.skip("signed by "+SignersOf(card)+"; --key BASE64 checks it", "signature")
	case card.Valid():
		v.ok("signature", SignersOf(card))
	default:
		v.fail("signature", SignersOf(card), "None of these keys signed the card, or it was changed since.",
			"Compare the key with the signer's operator. A gateway that changes URLs in a card breaks its signature.")
	}
	return nil
}

// SignersOf names the keys that a card's signatures claim.
func SignersOf(card *bridge.VerifiedCard) string {
	var keys []string
	for _, s := range card.Signatures {
		if k := clean(s.KeyID) + " (" + clean(s.Algorithm) + ")"; s.KeyID != "" && !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return "keys that it does not name"
	}
	return strings.Join(keys, ", ")
}

// A2ARelease is a version of the protocol without its patch: 0.3 of 0.3.0.
func A2ARelease(version string) string {
	numbers := strings.SplitN(version, ".", 3)
	return strings.Join(numbers[:min(2, len(numbers))], ".")
}
