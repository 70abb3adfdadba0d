package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/internal/jsonx"
)

func recognisesA2E(s *Sample) bool {
	if s.http && strings.HasSuffix(s.path(), "/send") && s.header.Get("X-Session-Id") != "" {
		return true
	}
	var m map[string]jsonx.Value
	var name string
	if jsonx.Decode(firstLine(s.Body), &m) != nil || m["type"].Kind() != '"' || jsonx.Decode(m["type"], &name) != nil {
		return false
	}
	_, known := a2e.NewRegistry().Lookup(name)
	return m["a2e"] != nil || known && (m["version"] != nil || m["ts"] != nil || strings.Contains(name, "/"))
}

// firstLine gives the message: the first line, or all lines if they are one JSON value,
// formatted by a tool.
func firstLine(b []byte) []byte {
	var compact bytes.Buffer
	if json.Compact(&compact, b) == nil {
		return compact.Bytes()
	}
	line, _, _ := strings.Cut(strings.TrimLeft(string(b), "\r\n"), "\n")
	return []byte(line)
}

// jsonKinds names the kinds of JSON values by their first byte.
var jsonKinds = map[byte]string{'"': "text", '{': "an object", '[': "a list", '0': "a number",
	'n': "null, as good as absent", 't': "true or false", 'f': "true or false"}

var a2eMeanings = map[string]string{
	"type": "which message it is", "id": "a response repeats it as req_id", "a2e": "version",
	"version": "version, as the reference writes it",
	"ts":      "Unix seconds; never checked", "req_id": "the request that this is about",
	"auth_token": "the agent's secret: not shown",
	"session_id": "of the handshake; over HTTP a secret: not shown", "agent_id": "the claimed agent",
	"agent_caps": "capabilities that it asks for", "data": "what the event or result holds", "message": "for people",
	"error": "why it failed", "name": "which one is meant",
	"streaming": "whether the caller wants events before the result",
	"metadata":  "facts that are not for the tool; a hub puts the message's origin under parley",
	"tool_name": "the tool: agent__skill at a hub", "arguments": "input of the tool",
	"timeout": "seconds that the caller waits", "seq": "number of the event",
	"kind": "of the event: progress, artifact, log, status",
	"code": "what went wrong", "retryable": "whether the same again may succeed", "detail": "for programs",
	"correlation_id": "the caller's own",
}

func inspectA2E(_ context.Context, s *Sample, _ Options) (*Report, error) {
	v := newReport()
	line := firstLine(s.Body)
	if rest := strings.TrimSpace(string(s.Body)); strings.Count(rest, "\n") > 0 {
		v.field("(lines)", fmt.Sprint(strings.Count(rest, "\n")+1), "the first is explained")
	}
	m, err := a2e.NewRegistry().Decode(line)
	if err != nil {
		text := err.Error()
		if e, ok := errors.AsType[*a2e.Error](err); ok {
			text = string(e.Code) + ": " + e.Text
		}
		v.fail("line", text, "A host answers it with an error: "+text+".",
			"One object on one line, in UTF-8, without NaN, members as the tables of A2E §6 say.")
		return v, nil
	}
	v.pass("line")
	var members map[string]jsonx.Value
	if err := jsonx.Decode(line, &members); err != nil {
		v.fail("members", err.Error(), "A member is named twice; of the two the last counts.", "")
	} else {
		for _, name := range slices.Sorted(maps.Keys(members)) {
			value := unquoted(members[name])
			if name == "auth_token" || name == "session_id" {
				value = "(secret)"
			}
			meaning := cmp.Or(a2eMeanings[name], "a member of "+m.Type+": "+jsonKinds[jsonx.Kind(members[name])])
			v.field(name, value, meaning)
		}
	}
	v.field("(class)", m.Class.String(), "its part in the exchange")
	if c := m.Capability(); c != "" {
		v.field("(capability)", c, "the namespace that a handshake negotiates")
	}
	v.Version = m.Version
	v.ok("version", m.Version)
	if m.Known() {
		v.pass("type")
	} else {
		v.skip("a type that A2E does not define; it is kept whole", "type")
	}
	if err := m.Check(); err != nil {
		detail := err.Error()
		if e, ok := errors.AsType[*a2e.Error](err); ok && len(e.Detail) > 0 {
			detail = string(e.Detail)
		}
		v.fail("schema", detail, "It fails the schema of its type: a host answers schema_violation, "+
			"an SDK agent drops it.", "")
		return v, nil
	}
	v.pass("schema")
	v.skip("A2E has none: the session's token vouches for its messages", "signature")
	v.Sentence = "It is well-formed. A2E has no signatures, so the line alone proves nothing about its sender."
	return v, nil
}
