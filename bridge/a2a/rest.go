package a2a

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley/internal/jsonx"
)

// HTTP+JSON (A2A 1.0, section 11). A request becomes the parameters that JSON-RPC has for
// the same method, of body, path and query, and is read like those. 0.3 is not served here:
// a request that names no version gets VERSION_NOT_SUPPORTED.

// An endpoint is a method of REST. The path is below the URL of the agent: {task} is a
// task's id, and {config} that of a push configuration.
type endpoint struct {
	method string   // of HTTP
	path   []string // in segments
	name   string   // of the method in 1.0
	task   string   // the parameter that is the task's id
	body   bool     // it has a body
}

var endpoints = []endpoint{
	{http.MethodPost, []string{"message:send"}, "SendMessage", "", true},
	{http.MethodPost, []string{"message:stream"}, "SendStreamingMessage", "", true},
	{http.MethodGet, []string{"tasks"}, "ListTasks", "", false},
	{http.MethodGet, []string{"tasks", "{task}"}, "GetTask", "id", false},
	{http.MethodPost, []string{"tasks", "{task}:cancel"}, "CancelTask", "id", true},
	// The text of the specification says POST, its protocol buffers GET.
	{http.MethodPost, []string{"tasks", "{task}:subscribe"}, "SubscribeToTask", "id", true},
	{http.MethodGet, []string{"tasks", "{task}:subscribe"}, "SubscribeToTask", "id", false},
	{http.MethodPost, []string{"tasks", "{task}", "pushNotificationConfigs"}, "CreateTaskPushNotificationConfig",
		"taskId", true},
	{http.MethodGet, []string{"tasks", "{task}", "pushNotificationConfigs"}, "ListTaskPushNotificationConfigs",
		"taskId", false},
	{http.MethodGet, []string{"tasks", "{task}", "pushNotificationConfigs", "{config}"},
		"GetTaskPushNotificationConfig", "taskId", false},
	{http.MethodDelete, []string{"tasks", "{task}", "pushNotificationConfigs", "{config}"},
		"DeleteTaskPushNotificationConfig", "taskId", false},
	{http.MethodGet, []string{"extendedAgentCard"}, "GetExtendedAgentCard", "", false},
}

// match compares the end of a path.
func (e *endpoint) match(segments []string) (route, bool) {
	at := len(segments) - len(e.path)
	if at < 1 {
		return route{}, false
	}
	to := route{endpoint: e}
	for i, want := range e.path {
		got := segments[at+i]
		action, isTask := strings.CutPrefix(want, "{task}")
		switch {
		case want == "{config}":
			to.config = got
		case isTask:
			id, ok := strings.CutSuffix(got, action)
			if !ok || id == "" || strings.Contains(id, ":") {
				return route{}, false
			}
			to.task = id
		case got != want:
			return route{}, false
		}
	}
	to.agent = strings.Join(segments[:at], "/")
	return to, true
}

func (x *exchange) serveREST(to route) {
	version, err := x.version(V1)
	if err != nil {
		x.fail("decode", err)
		return
	}
	hasBody := to.endpoint.body && x.r.ContentLength != 0
	if hasBody || to.endpoint.task == "" && to.endpoint.body {
		if err := x.mediaType(); err != nil {
			x.fail("decode", err)
			return
		}
	}
	if x.caller, err = x.b.identify(x.r.Context(), x.agent, x.r.Header, x.r.TLS, x.r.RemoteAddr); err != nil {
		x.fail("verify", err)
		return
	}
	var body []byte
	if hasBody {
		if body, err = x.body(); err != nil {
			x.fail("decode", err)
			return
		}
	}
	m := methods[V1][to.endpoint.name]
	c := x.newCall(version, body)
	if c.params, err = restParams(to, m, body, x.r.URL.RawQuery); err != nil {
		x.fail("decode", err)
		return
	}
	x.activate(c)
	x.run(c, m)
}

// restParams makes the parameters of a method of body, path and query.
func restParams(to route, m *method, body []byte, query string) (json.RawMessage, error) {
	e := to.endpoint
	if len(body) == 0 && e.body && e.task == "" {
		return nil, protocol.NewError(protocol.ErrParseError, "no JSON value")
	}
	params := []byte("{}")
	switch {
	case len(body) > 0:
		if err := jsonx.Valid(body, maxDepth); err != nil {
			return nil, notStrict(err)
		}
		if e.task != "" && jsonx.IsNull(body) {
			break // the Go SDK's client says so that it has nothing to add to the path
		}
		if jsonx.Kind(body) != '{' {
			return nil, invalidRequest("a request is an object")
		}
		exact, err := canonical(body, m.shape)
		if err != nil {
			return nil, misspelt(err)
		}
		params = exact
	case !e.body:
		var err error
		if params, err = queryParams(query, m.shape); err != nil {
			return nil, err
		}
	}
	var err error
	if e.task != "" {
		if params, err = setMember(params, e.task, to.task); err != nil {
			return nil, err
		}
	}
	if to.config != "" {
		params, err = setMember(params, "id", to.config)
	}
	return params, err
}

// setMember adds what the path says. A body or a query may say the same.
func setMember(params []byte, name, value string) ([]byte, error) {
	there, empty := false, true
	var err error
	jsonx.Members(params, func(n string, v jsonx.Value) bool {
		empty = false
		if n != name {
			return true
		}
		there = true
		if jsonx.Kind(v) != '"' || unquoted(v) != value {
			err = invalidParams(name, "differs from the path")
		}
		return false
	})
	if err != nil || there {
		return params, err
	}
	out := append(make([]byte, 0, len(params)+len(name)+len(value)+8), '{', '"')
	out = append(append(out, name...), '"', ':')
	out = jsonx.AppendText(out, value)
	if !empty {
		out = append(out, ',')
	}
	open := bytes.IndexByte(params, '{')
	return append(out, params[open+1:]...), nil
}

// literals are the query parameters that are numbers or booleans in JSON.
var literals = map[string]bool{"historyLength": true, "pageSize": true, "includeArtifacts": true}

// queryParams gives the known parameters of a query as an object. Others are ignored, as
// unknown members are.
func queryParams(query string, s *shape) ([]byte, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, invalidRequest("the query is not valid")
	}
	out := []byte{'{'}
	seen := map[string]bool{}
	for name, list := range values {
		m, known := s.members[name]
		if !known {
			if like := s.folded[strings.ToLower(name)]; like != "" {
				return nil, faulty(protocol.ErrInvalidRequest, name, "the parameter is spelt %q", like)
			}
			continue
		}
		if len(list) != 1 || seen[m.name] {
			return nil, faulty(protocol.ErrInvalidRequest, m.name, "the parameter is there twice")
		}
		seen[m.name] = true
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, '"'), m.name...), '"', ':')
		switch value := list[0]; {
		case !literals[m.name]:
			if !utf8.ValidString(value) {
				return nil, invalidParams(m.name, "not UTF-8")
			}
			out = jsonx.AppendText(out, value)
		case jsonx.Valid([]byte(value), 1) == nil && strings.Contains("0tf", string(jsonx.Kind([]byte(value)))):
			out = append(out, value...)
		default:
			return nil, invalidParams(m.name, "the value has the wrong type or form")
		}
	}
	return append(out, '}'), nil
}
