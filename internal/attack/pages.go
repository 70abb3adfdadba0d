package attack

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley/uagents"
)

// Evil is the origin of the attacking page in an operator's browser.
const Evil = "https://evil.example"

// A Visit is one request that a page of another origin makes a browser send to
// the hub.
type Visit struct {
	Endpoint string
	As       string // form of the request
	Status   int
	Changed  bool // the request had the effect that the page wanted
}

// requestForm is a way for a page to make a browser send a request.
type requestForm struct {
	name, contentType string
	header            http.Header
	host              string
}

// requestForms are the forms that need no preflight, a form whose preflight a browser
// skipped wrongly, and that of a page whose host name was made to point to this machine
// (DNS rebinding).
func requestForms() []requestForm {
	cross := http.Header{"Origin": {Evil}, "Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"no-cors"}}
	return []requestForm{
		{"text/plain", "text/plain;charset=UTF-8", cross, ""},
		{"no content type", "", cross, ""},
		{"a form", "application/x-www-form-urlencoded", cross, ""},
		{"application/json", jsonType, cross, ""},
		{"application/json, an opaque origin", jsonType,
			http.Header{"Origin": {"null"}, "Sec-Fetch-Site": {"cross-site"}}, ""},
		{"application/json, no Sec-Fetch-Site", jsonType, http.Header{"Origin": {Evil}}, ""},
		{"DNS rebinding", jsonType,
			http.Header{"Origin": {"http://evil.example"}, "Sec-Fetch-Site": {"same-origin"}}, "evil.example"},
	}
}

// goal is an endpoint that changes state: make renders a request by a new key, which the
// hub would accept from a program, and gives a function that checks its effect.
type goal struct {
	name string
	make func(context.Context, *uagents.Identity) (*request, seen, error)
}

// seen reports whether a request had its effect; nil: the status of the answer tells.
type seen func(context.Context) (bool, error)

func (a *Attack) goals() []goal {
	found := func(path string) seen {
		return func(ctx context.Context) (bool, error) {
			status, _, err := a.get(ctx, path)
			return status == http.StatusOK, err
		}
	}
	goals := []goal{
		{"a registration", func(_ context.Context, id *uagents.Identity) (*request, seen, error) {
			r, err := registering(id, elsewhere, chat, nil)
			return r, found(pathAgents + "/" + id.Address()), err
		}},
		{"a batch of registrations", func(_ context.Context, id *uagents.Identity) (*request, seen, error) {
			b, err := registration(id, elsewhere, chat, nil)
			batch := slices.Concat([]byte(`{"attestations":[`), b, []byte(`]}`))
			return post(pathAgents+"/batch", batch), found(pathAgents + "/" + id.Address()), err
		}},
		{"a status", a.statusGoal},
		{"a manifest", func(context.Context, *uagents.Identity) (*request, seen, error) {
			m, err := modelOf("Page", uagents.NewSession())
			if err != nil {
				return nil, nil, err
			}
			b, err := manifest("1.0", "page", nil, []guestModel{m}, nil)
			if err != nil {
				return nil, nil, err
			}
			parsed, err := uagents.ParseManifest(b)
			if err != nil {
				return nil, nil, err
			}
			return post(pathManifests, b), found(pathManifests + "/protocols/" + parsed.Digest()), nil
		}},
		{"an envelope for a mailbox", a.mailboxGoal},
		{"an A2E session", func(context.Context, *uagents.Identity) (*request, seen, error) {
			return post("/a2e/session", []byte("{}")), nil, nil
		}},
		{"an ASP card", func(context.Context, *uagents.Identity) (*request, seen, error) {
			r, _, err := a.card()
			return r, nil, err
		}},
	}
	if a.c.Target != "" {
		envelope := func(ctx context.Context, id *uagents.Identity) (*request, seen, error) {
			schema, content := a.taken(ctx, 20)
			b, err := envelope(id, a.c.Target, schema, content, time.Now().Add(time.Minute))
			return post(pathSubmit, b), nil, err
		}
		goals = append(goals, goal{"an envelope for an agent", envelope})
	}
	return goals
}

// statusGoal sets a newly registered agent offline.
func (a *Attack) statusGoal(ctx context.Context, id *uagents.Identity) (*request, seen, error) {
	r, err := registering(id, elsewhere, chat, nil)
	if err == nil {
		_, _, err = a.do(ctx, a.webs[0], r)
	}
	if err != nil {
		return nil, nil, err
	}
	s := uagents.NewStatus(id, false, false)
	if err := s.Sign(id, time.Now()); err != nil {
		return nil, nil, err
	}
	b, err := s.Encode()
	if err != nil {
		return nil, nil, err
	}
	return post(pathAgents+"/"+id.Address()+"/status", b), func(ctx context.Context) (bool, error) {
		status, b, err := a.get(ctx, pathAgents+"/"+id.Address())
		return status == http.StatusOK && strings.Contains(string(b), `"offline"`), err
	}, nil
}

// mailboxGoal puts an envelope into a new mailbox.
func (a *Attack) mailboxGoal(ctx context.Context, id *uagents.Identity) (*request, seen, error) {
	box, err := uagents.NewIdentity()
	if err != nil {
		return nil, nil, err
	}
	r, err := a.mailboxed(box)
	if err == nil {
		_, _, err = a.do(ctx, a.webs[0], r)
	}
	if err != nil {
		return nil, nil, err
	}
	b, err := envelope(id, box.Address(), uagents.ChatMessageDigest, chatPayload(20, ""),
		time.Now().Add(5*time.Minute))
	return post(pathMailbox, b), func(ctx context.Context) (bool, error) {
		n, err := a.items(ctx, box)
		return n > 0, err
	}, err
}

// Visits sends every request in every form, once.
func (a *Attack) Visits(ctx context.Context) ([]Visit, error) {
	var out []Visit
	for _, g := range a.goals() {
		for _, d := range requestForms() {
			v, err := a.visit(ctx, a.webs[0], g, d, &tally{})
			if err != nil {
				return out, fmt.Errorf("%s as %s: %w", g.name, d.name, err)
			}
			out = append(out, v)
		}
	}
	return out, nil
}

// Pages sends n requests as [Attack.Visits] does. Requests with an effect count as changed.
func (a *Attack) Pages(ctx context.Context, n int) Result {
	goals, forms := a.goals(), requestForms()
	return a.each(ctx, n, func(web *http.Client, i int, t *tally) error {
		v, err := a.visit(ctx, web, goals[i/len(forms)%len(goals)], forms[i%len(forms)], t)
		if err == nil && v.Changed {
			t.add(func(r *Result) { r.Changed++ })
		}
		return nil // no answer, so no effect to check; counted already
	})
}

func (a *Attack) visit(ctx context.Context, web *http.Client, g goal, d requestForm, t *tally) (Visit, error) {
	v := Visit{Endpoint: g.name, As: d.name}
	id, err := uagents.NewIdentity()
	if err != nil {
		return v, err
	}
	r, changed, err := g.make(ctx, id)
	if err != nil {
		return v, err
	}
	header := http.Header{}
	maps.Copy(header, r.header)
	maps.Copy(header, d.header)
	r.contentType, r.header, r.host = d.contentType, header, d.host
	if v.Status, _ = a.send(ctx, web, r, t); v.Status == 0 {
		return v, errors.New("attack: the hub does not answer")
	}
	v.Changed = v.Status >= 200 && v.Status <= 299
	if changed != nil && !v.Changed {
		v.Changed, err = changed(ctx)
	}
	return v, err
}
