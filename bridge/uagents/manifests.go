package uagents

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/parley-hub/parley/policy"
	protocol "github.com/parley-hub/parley/uagents"
)

// storedManifest is a manifest in the state. Earlier releases wrote the manifest alone.
type storedManifest struct {
	Source   string          `json:"source,omitempty"`
	Manifest json.RawMessage `json:"manifest"`
}

// published is the index of a manifest.
type published struct {
	digest   string
	source   string
	until    time.Time
	models   map[string]publishedModel // by digest
	requests map[string][]string       // digest of a request: digests of its answers
	size     int64
}

type publishedModel struct {
	name   string
	schema []byte
}

func (m publishedModel) model() *protocol.Model {
	model, err := protocol.ParseModel(m.schema)
	if err != nil {
		return nil // impossible: newPublished encoded the model
	}
	return model
}

// description is the doc string of the class, shortened.
func (m publishedModel) description() string {
	model := m.model()
	if model == nil {
		return ""
	}
	return shortened(model.Description())
}

const maxDescription = 500

// shortened cuts a text to the length of a description.
func shortened(text string) string {
	if r := []rune(text); len(r) > maxDescription {
		return string(r[:maxDescription-1]) + "…"
	}
	return text
}

// newPublished makes the index of a manifest. The index keeps no part of the text alive.
func newPublished(m *protocol.Manifest, source string, until time.Time) (*published, error) {
	p := &published{digest: m.Digest(), source: source, until: until,
		models: map[string]publishedModel{}, requests: map[string][]string{}, size: 512}
	names := map[string]string{}
	for _, model := range m.Models() {
		schema, err := model.Schema()
		if err != nil {
			return nil, err
		}
		digest := model.Digest()
		names[digest] = digest
		p.models[digest] = publishedModel{strings.Clone(model.Name()), schema}
		p.size += int64(len(schema)+len(model.Name())) + 384
	}
	for request, responses := range m.Requests() {
		answers := make([]string, 0, len(responses))
		for _, r := range responses {
			answers = append(answers, names[r])
		}
		p.requests[names[request]] = answers
		p.size += 128 + 16*int64(len(answers))
	}
	return p, nil
}

func readManifest(b []byte) (s storedManifest, m *protocol.Manifest, err error) {
	err = json.Unmarshal(b, &s)
	if err == nil && s.Manifest == nil {
		s.Manifest = b
	}
	switch {
	case err != nil:
	case len(s.Manifest) > maxManifest:
		err = protocol.ErrTooLarge
	default:
		if m, err = protocol.ParseManifest(s.Manifest); err == nil {
			m = m.Bound()
		}
	}
	return s, m, err
}

// weighManifests counts the manifests of records in the guests' budget, unless an
// enrolled agent names them.
func (a *almanac) weighManifests(records ...*registration) {
	for _, r := range records {
		if r == nil {
			continue
		}
		for _, digest := range r.Protocols {
			a.weighManifest(digest)
		}
	}
}

func (a *almanac) weighManifest(digest string) {
	a.mu.RLock()
	p, enrolled := a.published[digest], a.enrolled[digest] > 0
	a.mu.RUnlock()
	if p == nil || enrolled {
		a.manifestBudget.Drop(digest)
	} else {
		a.manifestBudget.Restore(digest, p.source, p.size)
	}
}

// manifestKept is the lifetime of a manifest after its last publication. A publication
// within a day of the last one changes nothing.
const manifestKept = 30 * 24 * time.Hour

// PutManifest implements [protocol.AlmanacStore]. When there is no room, it removes the
// oldest manifest that no registered agent names.
func (a *almanac) PutManifest(ctx context.Context, m *protocol.Manifest) error {
	digest := m.Digest()
	if a.b.standIns.manifest(digest) != nil {
		return nil
	}
	text, err := m.JSON()
	if err != nil {
		return err
	}
	caller, now := policy.SourceOf(ctx), a.b.c.Now()
	source, until := caller, now.Add(manifestKept)
	a.mu.RLock()
	known, guest := a.published[digest], a.enrolled[digest] == 0
	a.mu.RUnlock()
	if known != nil {
		if known.until.Sub(now) > manifestKept-24*time.Hour {
			a.manifestBudget.Use(digest)
			return nil
		}
		source = known.source
	}
	p, err := newPublished(m, source, until)
	if err != nil {
		return err
	}
	b, err := json.Marshal(storedManifest{Source: source, Manifest: text})
	if err != nil {
		return err
	}
	if guest {
		if err := a.manifestBudget.Write(caller, writeCost(len(b))); err != nil {
			return err
		}
	}
	if known == nil {
		if err := a.makeRoom(ctx, guest, source); err != nil {
			return err
		}
	}
	if guest {
		if err := a.manifestBudget.Keep(digest, source, p.size); err != nil {
			return err
		}
	}
	if _, err := a.manifests.Put(ctx, digest, b, until); err != nil {
		a.weighManifest(digest)
		return err
	}
	a.addManifest(p)
	if guest && !a.manifestBudget.Has(digest) {
		return cmp.Or(a.removeManifest(ctx, digest), error(protocol.ErrBusy)) // the manifest was evicted meanwhile
	}
	return nil
}

// makeRoom removes a manifest if there is no room for another. A source that has a
// quarter of the guests' share loses one of its own.
func (a *almanac) makeRoom(ctx context.Context, guest bool, source string) error {
	most := maxManifests / 2
	a.mu.RLock()
	same := 0
	for _, p := range a.published {
		if p.source == source {
			same++
		}
	}
	share := guest && source != "" && same >= most/4
	full := share || len(a.digests) >= maxManifests || guest && a.manifestBudget.Len() >= most
	victim := ""
	for _, d := range a.digests {
		if full && len(a.byProtocol[d]) == 0 && (!share || a.published[d].source == source) {
			victim = d
			break
		}
	}
	a.mu.RUnlock()
	switch {
	case victim != "":
		return a.removeManifest(ctx, victim)
	case full:
		return protocol.ErrFull
	}
	return nil
}

func (a *almanac) removeManifest(ctx context.Context, digest string) error {
	if err := a.manifests.Delete(ctx, digest, 0); err != nil {
		return err
	}
	a.forget(digest)
	return nil
}

// forget drops a manifest from the index.
func (a *almanac) forget(digest string) {
	a.mu.Lock()
	if p := a.published[digest]; p != nil {
		delete(a.published, digest)
		a.digests = slices.DeleteFunc(a.digests, func(d string) bool { return d == digest })
		for model := range p.models {
			rest := slices.DeleteFunc(a.byModel[model], func(d string) bool { return d == digest })
			a.byModel[model] = rest
			if len(rest) == 0 {
				delete(a.byModel, model)
			}
		}
	}
	a.mu.Unlock()
	a.manifestBudget.Drop(digest)
}

func (a *almanac) addManifest(p *published) {
	a.mu.Lock()
	var naming []*registration
	if known := a.published[p.digest]; known == nil {
		a.published[p.digest] = p
		a.digests = append(a.digests, p.digest)
		for model := range p.models {
			if classOf(model) == other {
				a.byModel[model] = append(a.byModel[model], p.digest)
			}
		}
		for key := range a.byProtocol[p.digest] {
			naming = append(naming, a.byKey[key])
		}
	} else if known.until.Before(p.until) {
		a.published[p.digest] = p // the same content
	}
	a.mu.Unlock()
	a.weighManifest(p.digest)
	for _, r := range naming {
		a.b.standIns.enqueueRecord(r.Address)
	}
}

// Manifest implements [protocol.AlmanacStore]. Manifests of the hub's own agents come
// first.
func (a *almanac) Manifest(ctx context.Context, digest string) (*protocol.Manifest, error) {
	if m := a.b.standIns.manifest(digest); m != nil {
		return m, nil
	}
	a.mu.RLock()
	known := a.published[digest] != nil
	a.mu.RUnlock()
	if !known {
		return nil, nil
	}
	a.manifestBudget.Use(digest)
	row, err := a.manifests.Get(ctx, digest)
	if err != nil || row.Revision == 0 {
		return nil, err
	}
	_, m, err := readManifest(row.Value)
	return m, err
}

// protocol is the index of a protocol that an agent names; nil if the manifest is
// unknown.
func (a *almanac) protocol(digest string) *published {
	if m := a.b.standIns.manifest(digest); m != nil {
		if p, err := newPublished(m, "", time.Time{}); err == nil {
			return p
		}
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.published[digest]
}

// model finds the model of a digest from any publisher: the digest binds the whole
// schema. Use model only to validate content; modelOf and answers choose the models of
// requests and answers.
func (a *almanac) model(digest string) *protocol.Model {
	return a.find(digest, func(string) bool { return true })
}

// modelOf finds a model of a protocol that one of the addresses or an enrolled agent
// names.
func (a *almanac) modelOf(digest string, addresses ...string) *protocol.Model {
	return a.find(digest, func(proto string) bool {
		return a.enrolled[proto] > 0 ||
			slices.ContainsFunc(addresses, func(address string) bool { return a.names(address, proto) })
	})
}

// names reports whether an address names a protocol in its registration. The
// caller holds the lock.
func (a *almanac) names(address, proto string) bool {
	for _, network := range networks {
		if a.byProtocol[proto][recordKey(network, address)] {
			return true
		}
	}
	return false
}

func (a *almanac) find(digest string, counts func(proto string) bool) *protocol.Model {
	a.mu.RLock()
	var found publishedModel
	if i := slices.IndexFunc(a.byModel[digest], counts); i >= 0 {
		found = a.published[a.byModel[digest][i]].models[digest]
	}
	a.mu.RUnlock()
	if found.schema == nil {
		return nil
	}
	return found.model()
}

// answers gives the models that may answer a request: from the protocols that the
// requester names, then from those of enrolled agents.
func (a *almanac) answers(request, requester string) []*protocol.Model {
	a.mu.RLock()
	var own, enrolled []publishedModel
	for _, d := range a.byModel[request] {
		to := &enrolled
		if a.names(requester, d) {
			to = &own
		} else if a.enrolled[d] == 0 {
			continue
		}
		p := a.published[d]
		for _, r := range p.requests[request] {
			if r != protocol.ErrorMessageDigest {
				*to = append(*to, p.models[r])
			}
		}
	}
	a.mu.RUnlock()
	var out []*protocol.Model
	for _, t := range append(own, enrolled...) {
		if m := t.model(); m != nil {
			out = append(out, m)
		}
	}
	return out
}

// requestOf finds a request of a protocol by its name or digest.
func (p *published) requestOf(skill string) (digest string, model *protocol.Model) {
	for _, request := range slices.Sorted(maps.Keys(p.requests)) {
		if m, ok := p.models[request]; ok && (m.name == skill || request == skill) {
			return request, m.model()
		}
	}
	return "", nil
}
