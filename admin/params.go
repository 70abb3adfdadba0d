package admin

import (
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/journal/index"
)

// A param is a query parameter. The handlers read it into to, a pointer, and
// the client writes it from there, so that both agree.
type param struct {
	name string
	to   any
}

func messageParams(f *index.Filter) []param {
	return []param{{"agent", &f.Agent}, {"from", &f.From}, {"to", &f.To}, {"conversation", &f.Conversation},
		{"trace", &f.Trace}, {"kind", &f.Kind}, {"state", &f.State}, {"protocol", &f.Protocol}, {"since", &f.Since},
		{"until", &f.Until}, {"failed", &f.Failed}, {"refused", &f.Refused}, {"waiting", &f.Waiting}, {"proof", &f.Proof},
		{"via", &f.Via}, {"slow", &f.Slow}, {"q", &f.Text}}
}

func timelineParams(f *TimelineFilter) []param {
	list := messageParams(&f.Filter)
	list[len(list)-1].name = "text"
	return append(list, param{"show", &f.Show}, param{"before", &f.Before}, param{"after", &f.After},
		param{"limit", &f.Limit})
}

// pageParams are those of a list of messages.
func pageParams(f *index.Filter) []param {
	return append(messageParams(f), param{"cursor", &f.Cursor}, param{"limit", &f.Limit})
}

func conversationParams(f *index.ConversationFilter) []param {
	return []param{{"agent", &f.Agent}, {"since", &f.Since}, {"until", &f.Until}, {"open", &f.Open},
		{"failed", &f.Failed}, {"cursor", &f.Cursor}, {"limit", &f.Limit}}
}

func agentParams(f *AgentFilter) []param {
	return []param{{"filter", &f.Filter}, {"q", &f.Q}, {"state", &f.State}, {"protocol", &f.Protocol},
		{"standin", &f.StandIn}, {"guest", &f.Guest}, {"callableBy", &f.CallableBy}, {"order", &f.Order},
		{"cursor", &f.Cursor}, {"limit", &f.Limit}}
}

func deadParams(f *DeadFilter) []param {
	return []param{{"to", &f.To}, {"from", &f.From}, {"code", &f.Code}, {"reason", &f.Reason}, {"since", &f.Since},
		{"before", &f.Before}, {"cursor", &f.Cursor}, {"limit", &f.Limit}}
}

func auditParams(f *AuditFilter) []param {
	return []param{{"by", &f.By}, {"action", &f.Action}, {"target", &f.Target}, {"since", &f.Since}, {"limit", &f.Limit}}
}

// params reads the query of a call: each parameter of the list at most once, and
// no others. A missing parameter keeps the value that it has.
func (c *call) params(list ...param) error {
	q, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return parley.Refuse(parley.Malformed, "the query is malformed")
	}
	var known []string
	for _, p := range list {
		known = append(known, p.name)
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return parley.Refuse(parley.Malformed, "unknown parameter %.40q; known: %s", name,
				strings.Join(known, ", "))
		}
		if len(values) > 1 {
			return parley.Refuse(parley.Malformed, "parameter %q is there twice", name)
		}
	}
	for _, p := range list {
		if _, flag := p.to.(*bool); q.Get(p.name) == "" && !(flag && q.Has(p.name)) {
			continue
		}
		if err := p.read(q.Get(p.name), c.conversation); err != nil {
			return err
		}
	}
	return nil
}

// read reads the value of a parameter. resolve finds the conversation that an id, or the beginning of it, names.
func (p param) read(s string, resolve func(string) (parley.ID, error)) (err error) {
	want := ""
	switch to := p.to.(type) {
	case *string:
		*to = s
	case *parley.Code:
		*to = parley.Code(s)
	case *parley.Reason:
		*to = parley.Reason(s)
	case *bool:
		if s != "" && s != "true" && s != "false" {
			return parley.Refuse(parley.Malformed, "%s is true or false", p.name)
		}
		*to = s == "true"
	case *int:
		n, err := strconv.ParseUint(s, 10, 24)
		if err != nil {
			return parley.Refuse(parley.Malformed, "%s=%.20q is not a number", p.name, s)
		}
		*to = int(n)
	case *time.Duration:
		if *to, err = time.ParseDuration(s); err != nil || *to < 0 {
			return parley.Refuse(parley.Malformed, "%s=%.20q is not a duration such as 30s", p.name, s)
		}
	case *time.Time:
		if *to, err = time.Parse(time.RFC3339Nano, s); err != nil {
			return parley.Refuse(parley.Malformed, "%s=%.40q is not a time such as 2026-11-20T15:04:05Z", p.name, s)
		}
	case *parley.ID:
		*to, err = resolve(s)
		return err
	case *parley.Kind:
		want, err = "request, event, response, error, notice or cancel", to.UnmarshalText([]byte(s))
	case *index.Proof:
		want, err = "signed, session, unsigned or refused", to.UnmarshalText([]byte(s))
	case *Show:
		*to = Show(s)
	case *parley.DeliveryState:
		want, err = "waiting, delivering, delivered, answered, dead, dropped, expired or abandoned",
			to.UnmarshalText([]byte(s))
	}
	if err != nil {
		return parley.Refuse(parley.Malformed, "%s=%.40q: want %s", p.name, s, want)
	}
	return nil
}

// values writes parameters as [call.params] reads them; zero values are left out.
func values(list ...param) url.Values {
	q := url.Values{}
	for _, p := range list {
		v := reflect.ValueOf(p.to).Elem()
		if v.IsZero() {
			continue
		}
		s := fmt.Sprint(v.Interface())
		if t, ok := v.Interface().(time.Time); ok {
			s = t.UTC().Format(time.RFC3339Nano)
		}
		q.Set(p.name, s)
	}
	return q
}
