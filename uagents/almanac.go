package uagents

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// An AlmanacServer is the HTTP API of the Almanac that agents register with
// and resolve addresses through: everything under /v1/almanac. A registration
// counts when the agent's own key signed it recently, and later than the stored one, so
// that no other agent can take a name over or bring an old endpoint back.
type AlmanacServer struct {
	Store AlmanacStore // must be set; [MemoryAlmanac] is one
	Now   func() time.Time
	// Allow may refuse a fresh attestation with a valid signature; its error is sent
	// to the client.
	Allow func(ctx context.Context, a *Attestation, address string) error
	// Changed is called for every accepted registration and status update.
	Changed func(ctx context.Context, r Record)

	Lifetime     time.Duration // of a registration; default 3 h (agents refresh after 1 h)
	MaxAge       time.Duration // oldest timestamp accepted; default 5 min
	Skew         time.Duration // how far ahead a timestamp may be; default 30 s
	MaxRecord    int           // bytes of an attestation; default 64 KiB
	MaxManifest  int           // bytes of a manifest; default 256 KiB
	MaxBody      int           // bytes of a batch; default 1 MiB
	MaxBatch     int           // attestations of a batch; default 100
	MaxEndpoints int           // of an agent; default 20
	MaxProtocols int           // of an agent; default 200
	MaxResults   int           // of a search; default 100, fewer where the answer would exceed 512 KiB

	once sync.Once
	mux  *http.ServeMux
}

func (s *AlmanacServer) start() {
	s.once.Do(func() {
		s.mux = http.NewServeMux()
		s.mux.Handle("POST "+almanacAPI+"/agents", withBody(s.maxRecord(), s.register))
		s.mux.HandleFunc("POST "+almanacAPI+"/agents/batch", s.batch)
		s.mux.Handle("POST "+almanacAPI+"/agents/{address}/status", withBody(s.maxRecord(), s.status))
		s.mux.Handle("GET "+almanacAPI+"/agents/{address}", answerer(s.agent))
		s.mux.Handle("GET "+almanacAPI+"/domains/{name}", answerer(s.domain))
		s.mux.Handle("GET /v2/almanac/resolve/{identifier}", answerer(s.resolve))
		s.mux.Handle("POST "+almanacAPI+"/manifests", withBody(cmp.Or(s.MaxManifest, 256<<10), s.manifest))
		s.mux.Handle("GET "+almanacAPI+"/manifests/protocols/{digest}", answerer(s.getManifest))
		s.mux.Handle("POST "+almanacAPI+"/search", withBody(s.maxRecord(), s.search))
		s.mux.Handle("/", answerer(noSuchPath))
	})
}

// ServeHTTP implements http.Handler.
func (s *AlmanacServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.start()
	onlyJSON(s.mux).ServeHTTP(w, r)
}

func (s *AlmanacServer) maxRecord() int { return cmp.Or(s.MaxRecord, 64<<10) }

func (s *AlmanacServer) register(r *http.Request, n *node) (*node, error) {
	a, err := attestationOf(n, false)
	if err != nil {
		return nil, err
	}
	return nothing(), s.Register(r.Context(), a)
}

// batch judges each attestation on its own. The answer lists the results in order;
// its status is an error only when all failed. UAG-072.
func (s *AlmanacServer) batch(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(w, r, cmp.Or(s.MaxBody, 1<<20))
	var all [][]byte
	if err == nil {
		all, err = attestations(body, cmp.Or(s.MaxBatch, 100))
	}
	if err != nil {
		writeDetail(w, err)
		return
	}
	results, failed := list(), 0
	for _, one := range all {
		identifier, err := "", error(ErrTooLarge)
		if len(one) <= s.maxRecord() {
			var a *Attestation
			if a, err = decodeAttestation(one, false); err == nil {
				identifier = a.Identifier
				err = s.Register(r.Context(), a)
			}
		}
		result := object("agent_identifier", identifier)
		result.set("success", boolean(err == nil))
		if err != nil {
			failed++
			result.set("detail", str(AsError(err).Text))
		}
		results.vals = append(results.vals, result)
	}
	status := http.StatusOK
	if failed > 0 && failed == len(all) {
		status = http.StatusBadRequest
	}
	out := &node{kind: '{'}
	out.set("results", results)
	writeJSON(w, status, out)
}

// attestations splits a batch of at most max attestations without a tree of the whole
// text.
func attestations(b []byte, max int) (all [][]byte, err error) {
	if err := jsonx.Valid(b, maxSchemaDepth); err != nil {
		return nil, ErrMalformed.Because(err)
	}
	from, to := jsonx.Find(b, "attestations")
	if !jsonx.Elements(b[from:to], func(one jsonx.Value) bool {
		all = append(all, one)
		return len(all) <= max
	}) {
		return nil, ErrAttestation.Because(errors.New("attestations are missing"))
	}
	if len(all) > max {
		return nil, ErrTooLarge
	}
	return all, nil
}

// fresh checks signature and time of an attestation and gives network, address
// and timestamp.
func (s *AlmanacServer) fresh(ctx context.Context, a *Attestation) (network, address string, at uint64, err error) {
	if err := a.VerifySignature(); err != nil {
		return "", "", 0, err
	}
	id, err := resolveAddress(a.Identifier)
	if err != nil {
		return "", "", 0, err
	}
	at, ok := a.Timestamp.Uint64()
	now := clock(s.Now)
	oldest := now.Add(-cmp.Or(s.MaxAge, 5*time.Minute)).Unix()
	newest := now.Add(cmp.Or(s.Skew, 30*time.Second)).Unix()
	if !ok || int64(at) < oldest || at > uint64(max(0, newest)) {
		return "", "", 0, ErrOldAttestation
	}
	if s.Allow != nil {
		if err := s.Allow(ctx, a, id.Address); err != nil {
			return "", "", 0, err
		}
	}
	return cmp.Or(id.Prefix, "agent"), id.Address, at, nil
}

// Register takes a registration. A repeated one has no effect and no error, since the
// reference repeats a request whose answer it missed; any other must be newer than the
// stored one.
func (s *AlmanacServer) Register(ctx context.Context, a *Attestation) error {
	if a.Active != nil {
		return ErrAttestation
	}
	if len(a.Endpoints) > cmp.Or(s.MaxEndpoints, 20) || len(a.Protocols) > cmp.Or(s.MaxProtocols, 200) {
		return ErrTooLarge
	}
	for _, e := range a.Endpoints {
		if !usable(e.URL) {
			return ErrAttestation.Because(errors.New("endpoint is not an http URL"))
		}
	}
	for _, p := range a.Protocols {
		if !IsProtocolDigest(p) {
			return ErrAttestation.Because(errors.New("protocol is not a digest"))
		}
	}
	statement, err := a.SignedText()
	if err != nil {
		return err
	}
	if len(statement) > s.maxRecord() {
		return ErrTooLarge
	}
	network, address, at, err := s.fresh(ctx, a)
	if err != nil {
		return err
	}
	signed := sha256.Sum256(statement)
	return s.change(ctx, network, address, func(old *Record) (*Record, error) {
		// The texts are copied: they may be parts of a long body.
		r := Record{Network: strings.Clone(network), Address: strings.Clone(address), Active: true}
		if old != nil {
			if at < old.Registered || at == old.Registered && !bytes.Equal(signed[:], old.Signed) {
				return nil, ErrOldAttestation
			}
			if at == old.Registered {
				return old, nil
			}
			r.Active, r.Updated = old.Active, old.Updated
		}
		for _, e := range a.Endpoints {
			r.Endpoints = append(r.Endpoints, Endpoint{strings.Clone(e.URL), e.Weight})
		}
		for _, p := range a.Protocols {
			r.Protocols = append(r.Protocols, strings.Clone(p))
		}
		r.Metadata = a.Metadata()
		r.Registered, r.Signed = at, signed[:]
		r.Expires = clock(s.Now).Add(cmp.Or(s.Lifetime, 3*time.Hour))
		return &r, nil
	})
}

// change updates a record, and calls Changed unless the record stays the same.
func (s *AlmanacServer) change(ctx context.Context, network, address string,
	next func(old *Record) (*Record, error)) error {
	var taken *Record
	err := s.Store.Update(ctx, network, address, func(old *Record) (*Record, error) {
		r, err := next(old)
		if err == nil && r != old {
			taken = r
		}
		return r, err
	})
	if err == nil && taken != nil && s.Changed != nil {
		s.Changed(ctx, *taken)
	}
	return err
}

func (s *AlmanacServer) status(r *http.Request, n *node) (*node, error) {
	a, err := attestationOf(n, true)
	if err != nil {
		return nil, err
	}
	if ParseIdentifier(a.Identifier).Address != r.PathValue("address") {
		return nil, ErrOtherAgent
	}
	return nothing(), s.SetStatus(r.Context(), a)
}

// SetStatus takes a status update of a registered agent.
func (s *AlmanacServer) SetStatus(ctx context.Context, a *Attestation) error {
	if a.Active == nil {
		return ErrAttestation
	}
	network, address, at, err := s.fresh(ctx, a)
	if err != nil {
		return err
	}
	return s.change(ctx, network, address, func(old *Record) (*Record, error) {
		switch {
		case old == nil || !old.Expires.After(clock(s.Now)):
			return nil, ErrNotFound
		case at < old.Updated, at == old.Updated && *a.Active != old.Active:
			return nil, ErrOldAttestation
		case at == old.Updated:
			return old, nil
		}
		r := *old
		r.Active, r.Updated = *a.Active, at
		return &r, nil
	})
}

// networks gives the networks that a prefix query asks for.
func networks(r *http.Request) []string {
	switch p := r.URL.Query().Get("prefix"); p {
	case "":
		return []string{"agent", "test-agent"}
	case "agent", "test-agent":
		return []string{p}
	}
	return nil
}

func (s *AlmanacServer) agent(_ http.ResponseWriter, r *http.Request) (*node, error) {
	return s.show(r.Context(), networks(r), r.PathValue("address"))
}

// resolve finds an agent by address or name, for the library's command line.
func (s *AlmanacServer) resolve(_ http.ResponseWriter, r *http.Request) (*node, error) {
	id, in := ParseIdentifier(r.PathValue("identifier")), networks(r)
	if _, err := ParseAddress(id.Address); id.Address != "" && err != nil || !id.Valid() {
		return nil, ErrAddress
	}
	for _, network := range in {
		if id.Address != "" {
			break
		}
		d, err := s.liveDomain(r.Context(), network, id.Name)
		if err != nil {
			return nil, err
		}
		if d != nil && len(d.Agents) > 0 {
			id.Address, in = d.Agents[0].Address, []string{network, "agent"}
		}
	}
	return s.show(r.Context(), in, id.Address)
}

// liveDomain gives a name's entry that has not expired, or nil.
func (s *AlmanacServer) liveDomain(ctx context.Context, network, name string) (*Domain, error) {
	d, err := s.Store.Domain(ctx, network, name)
	if err != nil || d == nil || !d.Expires.IsZero() && !d.Expires.After(clock(s.Now)) {
		return nil, err
	}
	return d, nil
}

// show gives the first live record of an address.
func (s *AlmanacServer) show(ctx context.Context, networks []string, address string) (*node, error) {
	for _, network := range networks {
		rec, err := s.Store.Get(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if rec != nil && rec.Expires.After(clock(s.Now)) {
			return recordNode(rec), nil
		}
	}
	return nil, ErrNotFound
}

// KindOf gives the reference's type of an agent with these endpoints: mailbox, proxy
// or custom.
func KindOf(endpoints []Endpoint) string {
	for _, e := range endpoints {
		switch {
		case strings.HasSuffix(e.URL, agentsAPI+"/mailbox/submit"):
			return "mailbox"
		case strings.HasSuffix(e.URL, agentsAPI+"/proxy/submit"):
			return "proxy"
		}
	}
	return "custom"
}

func recordNode(rec *Record) *node {
	status := "offline"
	if rec.Active {
		status = "active"
	}
	n := object("status", status)
	n.set("type", str(KindOf(rec.Endpoints)))
	n.set("address", str(rec.Address))
	n.set("prefix", str(rec.Network))
	n.set("endpoints", endpointsNode(rec.Endpoints))
	protocols := list()
	for _, p := range rec.Protocols { // bare digests, as the library's command line compares them
		protocols.vals = append(protocols.vals, str(strings.TrimPrefix(p, "proto:")))
	}
	n.set("protocols", protocols)
	n.set("expiry", dateNode(rec.Expires))
	n.set("domain_name", null())
	n.set("metadata", metadataNode(rec.Metadata))
	return n
}

func (s *AlmanacServer) domain(_ http.ResponseWriter, r *http.Request) (*node, error) {
	for _, network := range networks(r) {
		d, err := s.liveDomain(r.Context(), network, r.PathValue("name"))
		if err != nil {
			return nil, err
		}
		if d == nil {
			continue
		}
		n := object("name", d.Name)
		n.set("status", str(cmp.Or(d.Status, "Registered")))
		n.set("expiry", null())
		if !d.Expires.IsZero() {
			n.set("expiry", dateNode(d.Expires))
		}
		agents := list()
		for _, a := range d.Agents {
			if a.Weight > 0 {
				one := object("address", a.Address)
				one.set("weight", &node{kind: '0', text: pyFloat(a.Weight)})
				agents.vals = append(agents.vals, one)
			}
		}
		n.set("assigned_agents", agents)
		return n, nil
	}
	return nil, ErrNotFound
}

// manifest stores a protocol manifest after checking its claims. UAG-062.
func (s *AlmanacServer) manifest(r *http.Request, n *node) (*node, error) {
	m, err := manifestOfNode(n)
	if err != nil {
		return nil, err
	}
	if err := m.Verify(); err != nil {
		return nil, err
	}
	return object("digest", m.digest), s.Store.PutManifest(r.Context(), m.Bound())
}

func (s *AlmanacServer) getManifest(_ http.ResponseWriter, r *http.Request) (*node, error) {
	m, err := s.Store.Manifest(r.Context(), "proto:"+strings.TrimPrefix(r.PathValue("digest"), "proto:"))
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		return nil, ErrNotFound
	}
	return m.root, nil
}

// search finds the agents of a protocol.
func (s *AlmanacServer) search(r *http.Request, n *node) (*node, error) {
	text := n.get("text")
	if text == nil || text.kind != '"' {
		return nil, ErrAttestation.Saying("text is missing")
	}
	out := list()
	digest := "proto:" + strings.TrimPrefix(text.text, "proto:")
	if !IsProtocolDigest(digest) {
		return out, nil
	}
	found, err := s.Store.ByProtocol(r.Context(), digest, cmp.Or(s.MaxResults, 100))
	if err != nil {
		return nil, err
	}
	size := 0
	for _, rec := range found {
		if !rec.Expires.After(clock(s.Now)) {
			continue
		}
		size += 512 + len(rec.Metadata)
		if size > 512<<10 {
			break
		}
		out.vals = append(out.vals, recordNode(rec))
	}
	return out, nil
}
