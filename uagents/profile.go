package uagents

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

// A Profile describes an agent; it comes from the account that holds the agent's key:
// the RegistrationRequest of uagents-core 0.4.12. Lengths are in characters.
type Profile struct {
	Address     string          `json:"address"`
	Account     string          `json:"account"`
	Name        string          `json:"name"` // 1 to 80
	Handle      string          `json:"handle,omitzero"`
	URL         string          `json:"url,omitzero"`  // where the agent takes envelopes, if its endpoint is the proxy
	Type        string          `json:"type,omitzero"` // chosen by the account; default uagent
	Description string          `json:"description,omitzero"`
	Readme      string          `json:"readme,omitzero"`
	Avatar      string          `json:"avatar_url,omitzero"`
	Banner      string          `json:"banner_url,omitzero"`
	Prompts     []string        `json:"starter_prompts,omitzero"`
	Endpoints   []Endpoint      `json:"endpoints,omitzero"`
	Protocols   []string        `json:"protocols,omitzero"` // digests
	Metadata    json.RawMessage `json:"metadata,omitzero"`  // JSON object, or nil
	Created     time.Time       `json:"created"`
	Updated     time.Time       `json:"updated"`
}

// Bounds of a profile beside those of the reference's fields.
const (
	maxProfile  = 512 << 10 // bytes of a request: a readme of 80,000 characters fits
	maxPrompts  = 50
	maxPrompt   = 1000
	maxMetadata = 16 << 10
	maxBatch    = 100

	searchedReadme = 4 << 10   // bytes of a readme that searches read
	maxFound       = 512 << 10 // bytes of the profiles in an answer; the next offset gives the rest
)

// Public reports whether searches of other accounts may find the agent: the default,
// unless its metadata has is_public false, in either spelling of Python.
func (p *Profile) Public() bool {
	if p.Metadata == nil {
		return true
	}
	m, err := parse(p.Metadata)
	if err != nil {
		return true // cannot fail: the metadata were parsed before
	}
	v := m.get("is_public")
	return v == nil || v.kind != 'f' && !strings.EqualFold(v.str(), "false")
}

// Size is about the memory that the profile takes, in bytes.
func (p *Profile) Size() int {
	n := 512 + len(p.Name) + len(p.Handle) + len(p.URL) + len(p.Type) + len(p.Description) + len(p.Readme) +
		len(p.Avatar) + len(p.Banner) + len(p.Metadata)
	for _, t := range p.Prompts {
		n += len(t) + 16
	}
	for _, e := range p.Endpoints {
		n += len(e.URL) + 24
	}
	return n + 96*len(p.Protocols)
}

// A ProfileStore keeps the profiles.
type ProfileStore interface {
	// Profile gives the profile of an agent, or nil. The caller must not change it.
	Profile(ctx context.Context, address string) (*Profile, error)
	// PutProfile adds or replaces a profile. The error is
	// ErrFull when the account has no room, ErrHandle when another agent has
	// the handle.
	PutProfile(ctx context.Context, p *Profile) error
	// Profiles gives the profiles of an account, sorted by address.
	Profiles(ctx context.Context, account string) ([]*Profile, error)
	// RemoveProfile removes the profile of an agent.
	RemoveProfile(ctx context.Context, address string) error
	// Listings gives every agent that searches may find.
	Listings(ctx context.Context) iter.Seq[Listing]
}

// A Listing is an agent as searches show it.
type Listing struct {
	*Profile
	Status string // active or offline
	Kind   string // mailbox, proxy, custom or hosted
}

// fields reads members of a request, and keeps the first error.
type fields struct{ err error }

func (f *fields) refuse(format string, args ...any) {
	if f.err == nil {
		f.err = ErrProfile.Saying("Invalid registration: " + fmt.Sprintf(format, args...))
	}
}

// member reads a member of a kind; what names the kind in a refusal. It gives nil for a
// missing, null or refused member.
func (f *fields) member(in *node, name string, kind byte, what string) *node {
	v := in.get(name)
	if v == nil || v.kind == 'n' {
		return nil
	}
	if v.kind != kind {
		f.refuse("%s is not %s", name, what)
		return nil
	}
	return v
}

// text reads a member that may be missing or null. most is in characters.
func (f *fields) text(in *node, name string, most int) string {
	v := f.member(in, name, '"', "a text")
	if v == nil {
		return ""
	}
	if len([]rune(v.text)) > most {
		f.refuse("%s has more than %d characters", name, most)
		return ""
	}
	return strings.Clone(v.text) // not to keep a long body
}

// texts reads a list of texts that may be missing or null.
func (f *fields) texts(in *node, name string, count, most int) (out []string) {
	v := in.get(name)
	if v == nil || v.kind == 'n' {
		return nil
	}
	if v.kind != '[' || len(v.vals) > count {
		f.refuse("%s is not a list of at most %d texts", name, count)
		return nil
	}
	for _, one := range v.vals {
		if one.kind != '"' || len([]rune(one.text)) > most {
			f.refuse("%s holds something else than texts of at most %d characters", name, most)
			return nil
		}
		out = append(out, strings.Clone(one.text))
	}
	return out
}

// web reads an http or https URL, or "".
func (f *fields) web(in *node, name string) string {
	s := f.text(in, name, 4000)
	if s != "" && !usable(s) {
		f.refuse("%s is not an http(s) URL", name)
	}
	return s
}

// image reads the URL of an image, or "". Some agents put the image into a data URL.
func (f *fields) image(in *node, name string) string {
	if s := f.text(in, name, 4000); strings.HasPrefix(s, "data:image/") {
		return s
	}
	return f.web(in, name)
}

// profileOf reads a RegistrationRequest.
func profileOf(n *node) (*Profile, error) {
	if n.kind != '{' {
		return nil, ErrProfile
	}
	var f fields
	about := f.member(n, "profile", '{', "an object")
	if about == nil {
		about = &node{kind: '{'}
	}
	p := &Profile{
		Address: f.text(n, "address", 66), Name: f.text(n, "name", 32), Handle: f.text(n, "handle", 40),
		URL:  f.web(n, "url"),
		Type: f.text(n, "agent_type", 32), Description: f.text(about, "description", 300),
		Readme: f.text(about, "readme", 80000),
		Avatar: f.image(about, "avatar_url"), Banner: f.image(about, "banner_url"),
		Prompts: f.texts(about, "starter_prompts", maxPrompts, maxPrompt), Protocols: f.texts(n, "protocols", 200, 70),
	}
	if p.Name == "" {
		f.refuse("name is missing")
	}
	for _, d := range p.Protocols {
		if !IsProtocolDigest(d) {
			f.refuse("a protocol is not a digest")
		}
	}
	if v := n.get("endpoints"); v != nil && v.kind != 'n' {
		if v.kind != '[' || len(v.vals) > 20 {
			f.refuse("endpoints is not a list of at most 20 endpoints")
			return nil, f.err
		}
		for _, one := range v.vals {
			e := Endpoint{URL: f.web(one, "url")}
			if weight := one.get("weight"); weight != nil && e.URL != "" {
				if w, ok := asInteger(weight); ok && w.IsInt64() {
					e.Weight = w.Int64()
					p.Endpoints = append(p.Endpoints, e)
					continue
				}
			}
			f.refuse("an endpoint has no http(s) URL or no whole weight")
			return nil, f.err
		}
	}
	if m := f.member(n, "metadata", '{', "an object"); m != nil {
		b, err := pyCompact.write(nil, m)
		if err != nil || len(b) > maxMetadata {
			f.refuse("metadata has more than %d bytes", maxMetadata)
		}
		p.Metadata = b
	}
	if f.err != nil {
		return nil, f.err
	}
	if _, err := ParseAddress(p.Address); err != nil {
		return nil, err
	}
	return p, nil
}

// update gives the profile with the members of an AgentUpdates; the others stay.
func (p *Profile) update(n *node) (*Profile, error) {
	if n.kind != '{' {
		return nil, ErrProfile
	}
	var f fields
	out := *p
	set := func(to *string, name string, read func() string) {
		if v := n.get(name); v != nil && v.kind != 'n' {
			*to = read()
		}
	}
	set(&out.Name, "name", func() string { return f.text(n, "name", 80) })
	set(&out.Readme, "readme", func() string { return f.text(n, "readme", 80000) })
	set(&out.Avatar, "avatar_url", func() string { return f.image(n, "avatar_url") })
	set(&out.Banner, "banner_url", func() string { return f.image(n, "banner_url") })
	set(&out.Description, "short_description", func() string { return f.text(n, "short_description", 300) })
	set(&out.Type, "agent_type", func() string { return f.text(n, "agent_type", 32) })
	if v := n.get("starter_prompts"); v != nil && v.kind != 'n' {
		out.Prompts = f.texts(n, "starter_prompts", maxPrompts, maxPrompt)
	}
	if out.Name == "" {
		f.refuse("name is missing")
	}
	return &out, f.err
}

func optional(s string) *node {
	if s == "" {
		return null()
	}
	return str(s)
}

func dateNode(t time.Time) *node { return str(Timestamp{t.UTC(), false}.String()) }

func metadataNode(m []byte) *node {
	if m == nil {
		return null()
	}
	n, err := parse(m)
	if err != nil {
		return null()
	}
	return n
}

// node is the profile as its account reads it: the registration request, with times.
func (p *Profile) node() *node {
	about := object("description", p.Description)
	about.set("readme", str(p.Readme))
	about.set("avatar_url", str(p.Avatar))
	about.set("banner_url", str(p.Banner))
	about.set("starter_prompts", texts(p.Prompts))
	n := object("address", p.Address)
	n.set("name", str(p.Name))
	n.set("handle", optional(p.Handle))
	n.set("url", optional(p.URL))
	n.set("agent_type", str(cmp.Or(p.Type, "uagent")))
	n.set("profile", about)
	n.set("endpoints", endpointsNode(p.Endpoints))
	n.set("protocols", texts(p.Protocols))
	n.set("metadata", metadataNode(p.Metadata))
	n.set("created_at", dateNode(p.Created))
	n.set("last_updated", dateNode(p.Updated))
	return n
}

// node is an agent in the result of a search.
func (l *Listing) node() *node {
	n := object("address", l.Address)
	n.set("prefix", str("agent"))
	n.set("name", str(l.Name))
	n.set("description", str(l.Description))
	n.set("readme", str(l.Readme))
	n.set("status", str(l.Status))
	n.set("type", str(l.Kind))
	n.set("handle", optional(l.Handle))
	n.set("domain", null())
	n.set("avatar_href", optional(l.Avatar))
	n.set("banner_href", optional(l.Banner))
	n.set("starter_prompts", texts(l.Prompts))
	protocols := list()
	for _, d := range l.Protocols {
		one := object("name", "")
		if d == ChatProtocolDigest {
			one = object("name", "AgentChatProtocol")
		}
		one.set("version", str(""))
		one.set("digest", str(d))
		protocols.vals = append(protocols.vals, one)
	}
	n.set("protocols", protocols)
	n.set("metadata", metadataNode(l.Metadata))
	n.set("total_interactions", number(0))
	n.set("recent_interactions", number(0))
	n.set("created_at", dateNode(l.Created))
	n.set("last_updated", dateNode(l.Updated))
	return n
}

// A query is the body of POST /v1/search/agents.
type query struct {
	address       string
	words         []string
	states, kinds []string
	protocols     []string
	offset, limit int
}

func queryOf(n *node) (q query, err error) {
	if n.kind != '{' {
		return q, ErrProfile.Saying("a search is an object")
	}
	var f fields
	text := strings.ToLower(f.text(n, "search_text", 1000))
	if address, ok := strings.CutPrefix(text, "address:"); ok {
		q.address = strings.TrimSpace(address)
	} else {
		q.words = strings.Fields(text)
	}
	if filters := f.member(n, "filters", '{', "an object"); filters != nil {
		q.states = f.texts(filters, "state", 10, 32)
		q.kinds = f.texts(filters, "agent_type", 10, 32)
		q.protocols = f.texts(filters, "protocol_digest", 10, 70)
	}
	whole := func(name string, otherwise, most int) int {
		v := n.get(name)
		if v == nil || v.kind == 'n' {
			return otherwise
		}
		i, ok := asInteger(v)
		if !ok || !i.IsInt64() || i.Sign() < 0 {
			f.refuse("%s is not a number from 0 on", name)
			return 0
		}
		return int(min(i.Int64(), int64(most)))
	}
	q.offset, q.limit = whole("offset", 0, 1<<20), whole("limit", 30, 100)
	return q, f.err
}

// score is how well an agent fits, or 0. Every word must be found.
func (q *query) score(l *Listing) int {
	has := func(wanted []string, one func(string) bool) bool {
		return len(wanted) == 0 || slices.ContainsFunc(wanted, one)
	}
	if q.address != "" && q.address != l.Address ||
		!has(q.states, func(s string) bool { return s == l.Status }) ||
		!has(q.kinds, func(s string) bool { return s == l.Kind }) ||
		!has(q.protocols, func(d string) bool {
			return slices.Contains(l.Protocols, "proto:"+strings.TrimPrefix(d, "proto:"))
		}) {
		return 0
	}
	score := 1
	if len(q.words) == 0 {
		return score
	}
	places := []struct {
		text  string
		worth int
	}{{l.Name + " " + l.Handle + " " + l.Address, 8}, {l.Description, 4}, {string(l.Metadata), 2},
		{l.Readme[:min(len(l.Readme), searchedReadme)], 1}}
	for i := range places {
		places[i].text = strings.ToLower(places[i].text)
	}
	for _, w := range q.words {
		found := 0
		for _, p := range places {
			if found == 0 && strings.Contains(p.text, w) {
				found = p.worth
			}
		}
		if found == 0 {
			return 0
		}
		score += found
	}
	return score
}

// find gives the best profiles that fit, and how many fit.
func (q *query) find(all iter.Seq[Listing]) (found []Listing, total int) {
	type hit struct {
		Listing
		score int
	}
	var hits []hit
	for l := range all {
		if s := q.score(&l); s > 0 {
			hits = append(hits, hit{l, s})
		}
	}
	slices.SortFunc(hits, func(x, y hit) int {
		return cmp.Or(cmp.Compare(y.score, x.score), strings.Compare(x.Address, y.Address))
	})
	size := 0
	for _, h := range hits[min(q.offset, len(hits)):] {
		size += h.Size()
		if len(found) == q.limit || size > maxFound && len(found) > 0 {
			break
		}
		found = append(found, h.Listing)
	}
	return found, len(hits)
}
