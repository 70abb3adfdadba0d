package agh

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

type vectorFile struct {
	Description string       `json:"description"`
	Source      string       `json:"source"`
	Cases       []vectorCase `json:"cases"`
}

// vectorCase is one case. Hub is only in envelope-parse; other members are
// information.
type vectorCase struct {
	Name   string          `json:"name"`
	Input  json.RawMessage `json:"input"`
	Expect json.RawMessage `json:"expect"`
	Hub    *struct {
		OK         *bool  `json:"ok"`
		ReasonCode Reason `json:"reason_code"`
	} `json:"hub"`
}

// TestVectors runs every case of every file of the vectors; PARLEY_VECTORS
// names another tree that holds agh/*.json.
//
// The step files run the router as the hub configures it, but without Inbound.May,
// by which the hub's NATS binds senders to users.
func TestVectors(t *testing.T) {
	root := os.Getenv("PARLEY_VECTORS")
	if root == "" {
		root = "../testdata/vectors"
	}
	files, err := filepath.Glob(filepath.Join(root, "agh", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %s: %v", root, err)
	}
	runners := map[string]func(*testing.T, vectorCase){
		"envelope-parse.json":    vectorParse,
		"direct-id.json":         vectorDirectID,
		"nats-subject.json":      vectorSubject,
		"capability-digest.json": vectorDigest,
		"router.json":            vectorSteps,
		"work-lifecycle.json":    vectorSteps,
		"discovery.json":         vectorSteps,
		"outbound.json":          vectorSteps,
		"trust-sign.json":        vectorSign,
		"trust-verify.json":      vectorVerify,
		"jcs.json":               vectorJCS,
	}
	for _, file := range files {
		name := filepath.Base(file)
		run, ok := runners[name]
		if !ok {
			t.Errorf("unknown vector file %s", name)
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var f vectorFile
		if err := json.Unmarshal(b, &f); err != nil || len(f.Cases) == 0 {
			t.Fatalf("%s: %d cases, %v", name, len(f.Cases), err)
		}
		for _, c := range f.Cases {
			t.Run(name+"/"+c.Name, func(t *testing.T) { run(t, c) })
		}
	}
}

// decodeKnown decodes strictly: the runner cannot run a case with unknown members.
func decodeKnown(t *testing.T, b []byte, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatalf("unknown shape: %v", err)
	}
}

func at(unix int64) func() time.Time { return func() time.Time { return time.Unix(unix, 0) } }

func vectorParse(t *testing.T, c vectorCase) {
	var in struct {
		Now          int64   `json:"now"`
		MaxReplayAge int64   `json:"max_replay_age"`
		Raw          *string `json:"raw"`
		RawB64       []byte  `json:"raw_b64"`
	}
	var want struct {
		OK         bool    `json:"ok"`
		Emitted    *string `json:"emitted"`
		EmittedB64 []byte  `json:"emitted_b64"`
		ErrorClass string  `json:"error_class"`
		ReasonCode Reason  `json:"reason_code"`
	}
	decodeKnown(t, c.Input, &in)
	decodeKnown(t, c.Expect, &want)
	raw := in.RawB64
	if in.Raw != nil {
		raw = []byte(*in.Raw)
	}
	ok, reason := want.OK, want.ReasonCode
	if c.Hub != nil && c.Hub.OK != nil {
		ok = *c.Hub.OK
		if c.Hub.ReasonCode != "" {
			reason = c.Hub.ReasonCode
		}
	}
	v := Verifier{Now: at(in.Now), Limits: Limits{MaxReplayAge: in.MaxReplayAge}}
	got, err := v.Verify(context.Background(), raw)
	if (err == nil) != ok {
		t.Fatalf("got error %v, want ok %v", err, ok)
	}
	if !ok {
		if reason != "" && ReasonOf(err) != reason {
			t.Errorf("reason %q, want %q (%v)", ReasonOf(err), reason, err)
		}
		return
	}
	if !bytes.Equal(got.Envelope.Raw(), raw) {
		t.Error("raw bytes changed")
	}
	if want.Emitted == nil && want.EmittedB64 == nil {
		return // the reference refuses it
	}
	emitted, err := got.Envelope.Encode()
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	ref := want.EmittedB64
	if want.Emitted != nil {
		ref = []byte(*want.Emitted)
	}
	if a, b := flat(t, asTree(t, ref)), flat(t, asTree(t, emitted)); a != b {
		t.Errorf("emitted\n%s, want\n%s", b, a)
	}
}

// asTree gives an envelope as a tree with number texts, without a null to, which the
// reference leaves out.
func asTree(t *testing.T, b []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	if m["to"] == nil {
		delete(m, "to")
	}
	return m
}

func flat(t *testing.T, tree map[string]any) string {
	t.Helper()
	b, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func vectorDirectID(t *testing.T, c vectorCase) {
	var in struct {
		WorkspaceID string `json:"workspace_id"`
		Channel     string `json:"channel"`
		PeerA       string `json:"peer_a"`
		PeerB       string `json:"peer_b"`
	}
	var want struct {
		OK         bool   `json:"ok"`
		DirectID   string `json:"direct_id"`
		PeerA      string `json:"peer_a"`
		PeerB      string `json:"peer_b"`
		ErrorClass string `json:"error_class"`
	}
	decodeKnown(t, c.Input, &in)
	decodeKnown(t, c.Expect, &want)
	for _, peers := range [][2]string{{in.PeerA, in.PeerB}, {in.PeerB, in.PeerA}} {
		got, err := DirectID(in.WorkspaceID, in.Channel, peers[0], peers[1])
		if (err == nil) != want.OK || got != want.DirectID {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

func vectorSubject(t *testing.T, c vectorCase) {
	var in struct {
		WorkspaceID string  `json:"workspace_id"`
		Channel     string  `json:"channel"`
		PeerID      *string `json:"peer_id"`
	}
	var want struct {
		Broadcast      string `json:"broadcast_subject"`
		BroadcastError string `json:"broadcast_error"`
		Token          string `json:"route_token"`
		TokenError     string `json:"route_token_error"`
		Peer           string `json:"peer_subject"`
		PeerError      string `json:"peer_subject_error"`
	}
	decodeKnown(t, c.Input, &in)
	decodeKnown(t, c.Expect, &want)
	check := func(what, got string, err error, want, wantErr string) {
		if got != want || (err != nil) != (wantErr != "") {
			t.Errorf("%s: got %q, %v; want %q, %q", what, got, err, want, wantErr)
		}
	}
	s, err := BroadcastSubject(in.WorkspaceID, in.Channel)
	check("broadcast", s, err, want.Broadcast, want.BroadcastError)
	if in.PeerID == nil {
		return
	}
	s, err = routeToken(*in.PeerID)
	check("token", s, err, want.Token, want.TokenError)
	s, err = PeerSubject(in.WorkspaceID, in.Channel, *in.PeerID)
	check("peer", s, err, want.Peer, want.PeerError)
}

func vectorDigest(t *testing.T, c vectorCase) {
	var in struct {
		Capability json.RawMessage `json:"capability"`
	}
	var want struct {
		Digest     string  `json:"digest"`
		Preimage   string  `json:"preimage"`
		OK         *bool   `json:"ok"`
		ErrorClass *string `json:"error_class"`
	}
	decodeKnown(t, c.Input, &in)
	decodeKnown(t, c.Expect, &want)
	k, _, err := decodeCapability(in.Capability) // checking its digest is another operation
	if err == nil {
		_, err = k.Digest()
	}
	if want.Digest == "" {
		if err == nil {
			t.Error("accepted")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	pre, err := k.preimage()
	if err != nil || string(pre) != want.Preimage {
		t.Errorf("preimage %s, %v\n    want %s", pre, err, want.Preimage)
	}
	if got, err := k.Digest(); err != nil || got != want.Digest {
		t.Errorf("digest %s, %v; want %s", got, err, want.Digest)
	}
}

func vectorJCS(t *testing.T, c vectorCase) {
	var in struct {
		Raw string `json:"raw"`
	}
	var want struct {
		Canonical string `json:"canonical"`
		Error     bool   `json:"error"`
	}
	decodeKnown(t, c.Input, &in)
	decodeKnown(t, c.Expect, &want)
	got, err := canonicalize([]byte(in.Raw))
	if (err != nil) != want.Error || string(got) != want.Canonical {
		t.Errorf("got %s, %v; want %s", got, err, want.Canonical)
	}
}

func vectorSign(t *testing.T, c vectorCase) {
	var in struct {
		SeedHex    string         `json:"seed_hex"`
		Nickname   string         `json:"nickname"`
		Envelope   string         `json:"envelope"`
		ExtraProof map[string]any `json:"extra_proof"`
	}
	var want struct {
		From            string `json:"from"`
		KeyID           string `json:"key_id"`
		Pubkey          string `json:"pubkey"`
		Canonical       string `json:"canonical"`
		CanonicalSHA256 string `json:"canonical_sha256"`
		Sig             string `json:"sig"`
	}
	decodeKnown(t, c.Input, &in)
	decodeKnown(t, c.Expect, &want)
	seed, err := hex.DecodeString(in.SeedHex)
	if err != nil {
		t.Fatal(err)
	}
	id, err := IdentityFromSeed(in.Nickname, seed)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := id.signJSON([]byte(in.Envelope), in.ExtraProof)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		From  string
		Proof struct {
			KeyID  string `json:"key_id"`
			Pubkey string
			Sig    string
		}
	}
	if err := json.Unmarshal(signed, &got); err != nil {
		t.Fatal(err)
	}
	covered, err := SignedBytes(signed)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(covered)
	for _, x := range [][3]string{{"from", got.From, want.From}, {"key_id", got.Proof.KeyID, want.KeyID},
		{"pubkey", got.Proof.Pubkey, want.Pubkey},
		{"canonical", string(covered), want.Canonical}, {"sha256", hex.EncodeToString(sum[:]), want.CanonicalSHA256},
		{"sig", got.Proof.Sig, want.Sig}} {
		if x[1] != x[2] {
			t.Errorf("%s\n got %s\nwant %s", x[0], x[1], x[2])
		}
	}
}

func vectorVerify(t *testing.T, c vectorCase) {
	type state struct {
		Trust      Trust  `json:"trust"`
		ReasonCode Reason `json:"reason_code"`
	}
	var in struct {
		Now    int64   `json:"now"`
		Raw    *string `json:"raw"`
		RawB64 string  `json:"raw_b64"`
	}
	var want struct {
		state
		AnyOf []state `json:"any_of"`
	}
	decodeKnown(t, c.Input, &in)
	decodeKnown(t, c.Expect, &want)
	raw, err := base64.StdEncoding.DecodeString(in.RawB64)
	if err != nil {
		t.Fatal(err)
	}
	if in.Raw != nil {
		raw = []byte(*in.Raw)
	}
	v := Verifier{Trust: true, Now: at(in.Now)}
	got, err := v.Verify(context.Background(), raw)
	allowed := append(want.AnyOf, want.state)
	if !slices.ContainsFunc(allowed, func(s state) bool {
		return s.Trust == trustOf(got, err) && (s.ReasonCode == "" || s.ReasonCode == ReasonOf(err))
	}) {
		t.Errorf("got %s, %v; want %+v", trustOf(got, err), err, allowed)
	}
}

type stepInput struct {
	Now           int64 `json:"now"`
	GreetInterval int64 `json:"greet_interval"`
	MaxReplayAge  int64 `json:"max_replay_age"`
	Locals        []struct {
		SessionID   string            `json:"session_id"`
		WorkspaceID string            `json:"workspace_id"`
		Channel     string            `json:"channel"`
		PeerID      string            `json:"peer_id"`
		DisplayName string            `json:"display_name"`
		Catalog     []json.RawMessage `json:"catalog"`
	} `json:"locals"`
	Steps []stepIn `json:"steps"`
}

type stepIn struct {
	At     int64   `json:"at"`
	Raw    *string `json:"raw"`
	RawB64 []byte  `json:"raw_b64"`
	Send   *struct {
		SessionID   string          `json:"session_id"`
		ID          string          `json:"id"`
		WorkspaceID string          `json:"workspace_id"`
		Kind        Kind            `json:"kind"`
		Channel     string          `json:"channel"`
		Surface     Surface         `json:"surface"`
		ThreadID    string          `json:"thread_id"`
		DirectID    string          `json:"direct_id"`
		To          string          `json:"to"`
		WorkID      string          `json:"work_id"`
		ReplyTo     string          `json:"reply_to"`
		TraceID     string          `json:"trace_id"`
		CausationID string          `json:"causation_id"`
		ExpiresAt   int64           `json:"expires_at"`
		Body        json.RawMessage `json:"body"`
		Ext         json.RawMessage `json:"ext"`
	} `json:"send"`
	Presence *struct {
		WorkspaceID string `json:"workspace_id"`
		Channel     string `json:"channel"`
	} `json:"presence"`
}

type stepWant struct {
	Outcome     Outcome  `json:"outcome"`
	ReasonCode  Reason   `json:"reason_code"`
	ErrorClass  string   `json:"error_class"`
	OK          *bool    `json:"ok"`
	DeliveredTo []string `json:"delivered_to"`
	PeerEvents  []struct {
		Event  string `json:"event"`
		PeerID string `json:"peer_id"`
	} `json:"peer_events"`
	Published []struct {
		Subject string `json:"subject"`
		Payload string `json:"payload"`
	} `json:"published"`
	Works map[string]struct {
		State     WorkState `json:"state"`
		Initiator string    `json:"initiator"`
		Target    string    `json:"target"`
	} `json:"works"`
	Peers []struct {
		PeerID string        `json:"peer_id"`
		Local  bool          `json:"local"`
		State  PresenceState `json:"presence_state"`
		Age    int64         `json:"last_seen_age_seconds"`
	} `json:"peers"`
}

// sendErrors maps the classes of the send steps to sentinels.
var sendErrors = map[string][]error{
	"target_peer_not_found": {ErrNotTarget},
	"work_not_found":        {ErrWorkUnknown},
	"work_closed":           {ErrWorkClosed},
	"invalid_body":          {ErrMalformed, ErrScreened},
	"invalid_field":         {ErrMalformed},
	"missing_field":         {ErrMalformed, ErrWorkTarget},
	"invalid_kind":          {ErrUnsupportedKind},
	"verification_failed":   {ErrDigest, ErrPrivileged},
	"expired":               {ErrStale},
}

func vectorSteps(t *testing.T, c vectorCase) {
	var in stepInput
	var want struct {
		Steps []stepWant `json:"steps"`
	}
	decodeKnown(t, c.Input, &in)
	decodeKnown(t, c.Expect, &want)
	if len(in.Steps) != len(want.Steps) {
		t.Fatalf("%d steps, %d answers", len(in.Steps), len(want.Steps))
	}
	now := in.Now
	works := &WorkTable{}
	r := &Router{Screen: true, Works: works,
		Presence: &Presence{Interval: time.Duration(in.GreetInterval) * time.Second},
		Verifier: Verifier{Now: func() time.Time { return time.Unix(now, 0) },
			Limits: Limits{MaxReplayAge: in.MaxReplayAge}}}
	sessions := map[string]*Local{}
	for _, l := range in.Locals {
		local := &Local{WorkspaceID: l.WorkspaceID, Channel: l.Channel}
		for _, doc := range l.Catalog {
			k, err := DecodeCapability(doc)
			if err != nil {
				t.Fatal(err)
			}
			local.Catalog = append(local.Catalog, *k)
		}
		var err error
		if local.Card, err = NewCard(l.PeerID, l.DisplayName, local.Catalog); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Host(local); err != nil {
			t.Fatal(err)
		}
		sessions[l.SessionID] = local
	}
	for i, step := range in.Steps {
		w := want.Steps[i]
		now = step.At
		var published []Outgoing
		switch {
		case step.Raw != nil || step.RawB64 != nil:
			raw := step.RawB64
			if step.Raw != nil {
				raw = []byte(*step.Raw)
			}
			res := r.Receive(context.Background(), Inbound{Raw: raw})
			published = res.Published
			if res.Outcome != w.Outcome {
				t.Errorf("step %d: outcome %s (%v), want %s", i, res.Outcome, res.Err, w.Outcome)
			}
			if w.ReasonCode != "" && ReasonOf(res.Err) != w.ReasonCode {
				t.Errorf("step %d: reason %s (%v), want %s", i, ReasonOf(res.Err), res.Err, w.ReasonCode)
			}
			if !slices.Equal(res.Deliver, w.DeliveredTo) {
				t.Errorf("step %d: delivered to %v, want %v", i, res.Deliver, w.DeliveredTo)
			}
			var events []string
			for _, e := range res.Events {
				events = append(events, map[bool]string{true: "joined ", false: "left "}[e.Joined]+e.PeerID)
			}
			var wantEvents []string
			for _, e := range w.PeerEvents {
				wantEvents = append(wantEvents, e.Event+" "+e.PeerID)
			}
			if !slices.Equal(events, wantEvents) {
				t.Errorf("step %d: events %v, want %v", i, events, wantEvents)
			}
		case step.Send != nil:
			s := step.Send
			l := sessions[s.SessionID]
			e := &Envelope{ID: s.ID, Kind: s.Kind, Channel: s.Channel, Surface: s.Surface, ThreadID: s.ThreadID,
				DirectID: s.DirectID, To: s.To,
				WorkID: s.WorkID, ReplyTo: s.ReplyTo, TraceID: s.TraceID, CausationID: s.CausationID,
				ExpiresAt: s.ExpiresAt, Body: s.Body, Ext: s.Ext}
			if l != nil {
				e.WorkspaceID, e.From = l.WorkspaceID, l.Card.PeerID
			}
			res, err := r.Send(context.Background(), e)
			published = res.Published
			if w.OK == nil {
				t.Fatalf("step %d: no answer to a send", i)
			}
			if (err == nil) != *w.OK {
				t.Errorf("step %d: got %v, want ok %v", i, err, *w.OK)
			}
			if classes := sendErrors[w.ErrorClass]; err != nil && classes != nil &&
				!slices.ContainsFunc(classes, func(is error) bool { return errors.Is(err, is) }) {
				t.Errorf("step %d: got %v, want %s", i, err, w.ErrorClass)
			}
		case step.Presence != nil:
			peers := r.Peers(step.Presence.WorkspaceID, step.Presence.Channel)
			if len(peers) != len(w.Peers) {
				t.Fatalf("step %d: %d peers, want %d", i, len(peers), len(w.Peers))
			}
			for j, p := range peers {
				wp := w.Peers[j]
				age := int64(0)
				if p.State != PresenceLocal {
					age = now - p.LastSeen.Unix()
				}
				if p.Card.PeerID != wp.PeerID || p.State != wp.State || age != wp.Age ||
					wp.Local != (p.State == PresenceLocal) {
					t.Errorf("step %d: peer %+v aged %d, want %+v", i, p, age, wp)
				}
			}
		default:
			t.Fatalf("step %d: unknown operation", i)
		}
		checkPublished(t, i, published, w)
		if len(works.works) != len(w.Works) {
			t.Errorf("step %d: %d works, want %d", i, len(works.works), len(w.Works))
		}
		for _, got := range works.works {
			x, ok := w.Works[got.WorkspaceID+"/"+got.WorkID]
			if !ok || got.State != x.State || got.Initiator != x.Initiator || got.Target != x.Target {
				t.Errorf("step %d: work %+v, want %+v", i, got, x)
			}
		}
	}
}

// checkPublished compares published messages as JSON.
func checkPublished(t *testing.T, step int, got []Outgoing, want stepWant) {
	t.Helper()
	for i, w := range want.Published {
		if i >= len(got) {
			t.Errorf("step %d: not published: %s", step, w.Payload)
			continue
		}
		g := got[i]
		if g.Subject != w.Subject {
			t.Errorf("step %d: subject %s, want %s", step, g.Subject, w.Subject)
		}
		ref, ours := asTree(t, []byte(w.Payload)), asTree(t, g.Data)
		if id, _ := ours["id"].(string); ref["id"] == "<generated>" && id != "" {
			ref["id"] = id
		}
		if a, b := flat(t, ref), flat(t, ours); a != b {
			t.Errorf("step %d: published\n%s, want\n%s", step, b, a)
		}
	}
	for _, g := range got[min(len(got), len(want.Published)):] {
		t.Errorf("step %d: published too much: %s", step, g.Data)
	}
}
