package asp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

func inform(topic string) Information { return Information{Topic: topic} }

func TestOriginalIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	// ASP-024: odd spelling and unknown members are kept byte for byte; only the
	// trust score is replaced for recipients.
	e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("spelling")))
	odd := bytes.Replace(e.Raw(), []byte(`"topic":"spelling"`), []byte(`"topic" : "spel\u006cing"`), 1)
	odd = bytes.Replace(odd, []byte(`"trustScore":0`), []byte(`"trustScore" : 99.50`), 1)
	odd = append(odd[:len(odd)-1:len(odd)-1], []byte(`, "x-trace" : { "b" : 1, "a" : 2 } }`)...)
	r, err := w.Ingest(t.Context(), odd, Transport{}, id)
	if err != nil {
		t.Fatal(err)
	}
	records, err := w.store.Records(t.Context(), id, r.Position, 1)
	if err != nil || !bytes.Equal(records[0].Raw, odd) {
		t.Errorf("stored %s, %v", records[0].Raw, err)
	}
	want := bytes.Replace(odd, []byte("99.50"), []byte("0"), 1)
	if _, got := w.request(w.bob, "GET", "/v1/asp/sessions/"+id+"/messages/"+r.MessageID, "", nil); !bytes.Equal(got,
		want) {
		t.Errorf("delivered\n%s\nwant\n%s", got, want)
	}
	_, list := w.request(w.bob, "GET", "/v1/asp/sessions/"+id+"/messages", "", nil)
	if !bytes.Contains(list, want) {
		t.Errorf("listed %s", list)
	}
}

func TestSequencer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	first := w.say(id, w.alice, Inform, inform("first"))

	t.Run("ASP-026 exact retransmission is idempotent", func(t *testing.T) {
		before := w.head(id)
		r, err := w.ingest(first)
		if err != nil || !r.Duplicate || w.head(id) != before {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("ASP-025 equivocation", func(t *testing.T) {
		// The same content with another performative: later links would still match.
		d := w.draft(id, w.alice, Observe, inform("first"))
		d.SequenceNumber, d.PreviousHash = first.SequenceNumber, first.Integrity.PreviousHash
		if _, err := w.ingest(w.sign(w.alice, d)); !errors.Is(err, ErrEquivocation) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("sequence gap", func(t *testing.T) {
		d := w.draft(id, w.alice, Inform, inform("gap"))
		d.SequenceNumber++
		if _, err := w.ingest(w.sign(w.alice, d)); !errors.Is(err, ErrSequenceGap) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("ASP-027 messageId reuse", func(t *testing.T) {
		d := w.draft(id, w.alice, Inform, inform("reuse"))
		d.MessageID = first.MessageID
		if _, err := w.ingest(w.sign(w.alice, d)); !isCode(err, "duplicate_message_id") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("ASP-028 ASP-029 the loser of a race is told the head and can retry", func(t *testing.T) {
		late := w.draft(id, w.bob, Inform, inform("late"))
		winner := w.say(id, w.alice, Inform, inform("early"))
		_, err := w.ingest(w.sign(w.bob, late))
		if !errors.Is(err, ErrChain) || asError(err).Details["head"] != winner.Integrity.Hash {
			t.Fatalf("got %v", err)
		}
		late.PreviousHash = winner.Integrity.Hash
		if _, err := w.ingest(w.sign(w.bob, late)); err != nil {
			t.Error(err)
		}
	})
	t.Run("ASP-029 the head is for participants only", func(t *testing.T) {
		d := w.draft(id, w.carol, Inform, inform("let me in"))
		_, err := w.ingest(w.sign(w.carol, d))
		if !errors.Is(err, ErrNotParticipant) || asError(err).Details != nil {
			t.Errorf("got %v", err)
		}
	})
	t.Run("ASP-040 nothing is remembered before the signature holds", func(t *testing.T) {
		e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("good")))
		before := w.head(id)
		for name, bad := range map[string][]byte{
			"hash_mismatch": bytes.Replace(e.Raw(), []byte("good"), []byte("evil"), 1),
			"bad_signature": bytes.Replace(e.Raw(), []byte(e.Integrity.Signature[:20]), []byte("ed25519:000000000000"),
				1),
		} {
			if _, err := w.Ingest(t.Context(), bad, Transport{}, id); !isCode(err, name) {
				t.Errorf("got %v, want %s", err, name)
			}
		}
		if w.head(id) != before {
			t.Error("the head moved")
		}
		if _, err := w.ingest(e); err != nil {
			t.Errorf("the same proof with the good message: %v", err)
		}
	})
	t.Run("ASP-035 a proof serves one message", func(t *testing.T) {
		a := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("a")))
		if _, err := w.ingest(a); err != nil {
			t.Fatal(err)
		}
		b := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("b")))
		reused := bytes.Replace(b.Raw(), []byte(b.Sender.DPoPProof), []byte(a.Sender.DPoPProof), 1)
		before := w.head(id)
		if _, err := w.Ingest(t.Context(), reused, Transport{}, id); !errors.Is(err, ErrReplay) ||
			w.head(id) != before {
			t.Errorf("got %v", err)
		}
	})
	t.Run("ASP-062 orgId is checked", func(t *testing.T) {
		e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("org")))
		raw := bytes.Replace(e.Raw(), []byte(`"orgId":"org_acme"`), []byte(`"orgId":"org_evil"`), 1)
		if _, err := w.Ingest(t.Context(), raw, Transport{}, id); !isCode(err, "sender_mismatch") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("ASP-063 constraints are advisory", func(t *testing.T) {
		d := w.draft(id, w.alice, Query, Question{QueryID: "q", QueryType: "x"})
		d.Constraints = &Constraints{AllowedPerformatives: []Performative{Reject}, RequiredTrustScore: 100}
		if _, err := w.ingest(w.sign(w.alice, d)); err != nil {
			t.Fatal(err)
		}
		w.say(id, w.bob, Inform, inform("answer"))
	})
	t.Run("ASP-075 another card in the session", func(t *testing.T) {
		own, err := w.alice.Identity.Card().JSON()
		if err != nil {
			t.Fatal(err)
		}
		forged, err := testIdentity(t, aliceID, "org_other").Card().JSON()
		if err != nil {
			t.Fatal(err)
		}
		for card, want := range map[string]string{string(own): "", string(forged): "card_mismatch"} {
			d := w.draft(id, w.alice, Inform, Information{InformType: "introduction"})
			d.Context = []ContextObject{{Type: AgentCardContext, ID: "card", Version: 1, Data: json.RawMessage(card)}}
			if _, err := w.ingest(w.sign(w.alice, d)); codeOf(err) != want {
				t.Errorf("got %v, want %q", err, want)
			}
		}
	})
	t.Run("session of the path", func(t *testing.T) {
		e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("x")))
		if _, err := w.Ingest(t.Context(), e.Raw(), Transport{Agent: bobID}, id); !isCode(err, "sender_mismatch") {
			t.Errorf("got %v", err)
		}
		if _, err := w.Ingest(t.Context(), e.Raw(), Transport{}, "019cc8aa-0001-7def-8a12-000000000001"); !isCode(err,
			"session_mismatch") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("timestamp", func(t *testing.T) {
		d := w.draft(id, w.alice, Inform, inform("old"))
		d.Time = d.Time.Add(-301 * time.Second)
		if _, err := w.ingest(w.sign(w.alice, d)); !isCode(err, "dpop_iat_out_of_window") {
			t.Errorf("got %v", err)
		}
		d.Time = d.Time.Add(2 * 301 * time.Second)
		if _, err := w.ingest(w.sign(w.alice, d)); !isCode(err, "dpop_iat_out_of_window") {
			t.Errorf("got %v", err)
		}
	})
}

func TestRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("invitation", func(t *testing.T) {
		id := w.invite()
		w.refuse("invalid_transition", id, w.alice, Accept, Answer{ReferenceID: "inv"}) // ASP-057
		w.refuse("invalid_body", id, w.bob, Accept, Answer{ReferenceID: "other"})
		w.say(id, w.bob, Counter, Proposal{ReferenceID: "inv", ProposalID: "inv2", Terms: map[string]any{}})
		w.refuse("invalid_transition", id, w.bob, Accept, Answer{ReferenceID: "inv2"}) // the roles swapped
		w.say(id, w.alice, Accept, Answer{ReferenceID: "inv2"})
		if w.state(id) != Introduced {
			t.Error(w.state(id))
		}
	})
	t.Run("ASP-057 ASP-058 proposals", func(t *testing.T) {
		id := w.conversing()
		w.say(id, w.alice, Propose, Proposal{ProposalID: "p", Type: "data-exchange", Subject: "s",
			Terms:      map[string]any{},
			ValidUntil: Timestamp(w.clock.now().Add(time.Minute))})
		w.refuse("invalid_transition", id, w.alice, Accept, Answer{ReferenceID: "p"})
		w.refuse("invalid_transition", id, w.bob, Withdraw, Answer{ReferenceID: "p"})
		w.clock.add(2 * time.Minute)
		w.refuse("timeout", id, w.bob, Accept, Answer{ReferenceID: "p"})
		w.say(id, w.alice, Withdraw, Answer{ReferenceID: "p"})
		w.refuse("invalid_transition", id, w.bob, Reject, Answer{ReferenceID: "p"})
		w.refuse("invalid_body", id, w.alice, Propose, Proposal{ProposalID: "p", Type: "data-exchange", Subject: "s",
			Terms: map[string]any{}})
	})
	t.Run("CLARIFY", func(t *testing.T) {
		id := w.conversing()
		w.say(id, w.alice, Query, Question{QueryID: "q", QueryType: "price"})
		w.refuse("invalid_body", id, w.bob, Clarify, Answer{ReferenceID: "nothing", Question: "which?"})
		w.say(id, w.bob, Clarify, Answer{ReferenceID: "q", Question: "which?"})
		told := w.say(id, w.bob, Inform, Information{Topic: "rain"})
		w.say(id, w.alice, Clarify, Answer{ReferenceID: told.MessageID, Question: "where?"})
		w.say(id, w.bob, Commit, Promise{CommitmentID: "c", Terms: Terms{Obligations: []Obligation{}}})
		w.say(id, w.alice, Clarify, Answer{ReferenceID: "c", Question: "when?"})
	})
	t.Run("ASP-056 commitments", func(t *testing.T) {
		id := w.conversing()
		w.say(id, w.alice, Propose, Proposal{ProposalID: "p", Type: "data-exchange", Subject: "s",
			Terms: map[string]any{}})
		w.say(id, w.bob, Commit, Promise{CommitmentID: "c", Terms: Terms{Obligations: []Obligation{}}})
		// only the commitment is open to answers
		w.refuse("invalid_transition", id, w.bob, Accept, Answer{ReferenceID: "p"})
		w.refuse("invalid_transition", id, w.bob, Accept, Answer{ReferenceID: "c"})
		w.refuse("invalid_transition", id, w.alice, Withdraw, Answer{ReferenceID: "c"})
		w.say(id, w.bob, Withdraw, Answer{ReferenceID: "c"})
		w.say(id, w.bob, Commit, Promise{CommitmentID: "c2", Terms: Terms{Obligations: []Obligation{}}})
		w.say(id, w.alice, Accept, Answer{ReferenceID: "c2"})
		w.refuse("invalid_transition", id, w.bob, Withdraw, Answer{ReferenceID: "c2"})
		w.say(id, w.bob, Inform, Information{InformType: "fulfillment", Topic: "c2"})
		l, err := w.Session(t.Context(), id, "")
		if err != nil || l.commitment("c").Status != Withdrawn || l.commitment("c2").Status != Fulfilled ||
			l.commitment("c2").AcceptedBy != aliceID {
			t.Errorf("%+v, %v", l.Commitments, err)
		}
	})
	t.Run("disputes", func(t *testing.T) {
		id := w.executing()
		d := Dispute{DisputeID: "d", SessionID: id, CommitmentID: "c1", FiledBy: aliceID, FiledAgainst: bobID,
			Reason: "fulfillment-mismatch", Severity: 3}
		bad := d
		bad.FiledBy = carolID
		if err := w.FileDispute(t.Context(), bad); !errors.Is(err, ErrNotParticipant) {
			t.Errorf("got %v", err)
		}
		bad = d
		bad.CommitmentID = "none"
		if err := w.FileDispute(t.Context(), bad); !isCode(err, "invalid_field") {
			t.Errorf("got %v", err)
		}
		if err := w.FileDispute(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if err := w.FileDispute(t.Context(), d); !isCode(err, "invalid_field") {
			t.Errorf("twice: %v", err)
		}
		w.say(id, w.alice, Close, Closing{})
	})
	t.Run("ASP-054 nothing after the end", func(t *testing.T) {
		id := w.conversing()
		w.say(id, w.alice, Close, Closing{})
		w.refuse("session_closed", id, w.bob, Close, Closing{})
		w.refuse("session_closed", id, w.bob, Inform, inform("late"))
	})
	t.Run("ASP-059 escalation", func(t *testing.T) {
		id := w.executing()
		w.say(id, w.alice, Escalate, map[string]string{"reason": "stuck"})
		w.say(id, w.bob, Inform, Information{InformType: "escalation-resolved"})
		if w.state(id) != Executing {
			t.Error(w.state(id))
		}
	})
}

func TestMultiParty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	// ASP-073: only DELEGATE adds an agent.
	w.refuse("not_participant", id, w.carol, Inform, inform("here"))
	w.refuse("agent_not_found", id, w.alice, Delegate, Delegation{TargetAgent: eveID, Scope: "s"})
	w.say(id, w.alice, Delegate, Delegation{TargetAgent: carolID, Scope: "verify"})
	w.refuse("invalid_transition", id, w.alice, Accept, Answer{ReferenceID: w.lastID(id)})
	w.say(id, w.carol, Accept, Answer{ReferenceID: "dlg_1"}) // the target identifies a delegation without an id
	w.say(id, w.carol, Inform, inform("checked"))
	w.refuse("agent_not_found", id, w.alice, Delegate, Delegation{TargetAgent: "agent://acme.example/x/y", Scope: "s"})
}

func (w *world) lastID(session string) string {
	l, err := w.Session(context.Background(), session, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return l.Items[len(l.Items)-1].ID
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		open  func(*world) string
		after time.Duration
		want  State
	}{
		{"ASP-055 invitation", (*world).invite, 30 * time.Second, Failed},
		{"introduced", func(w *world) string {
			id := w.invite()
			w.say(id, w.bob, Accept, Answer{ReferenceID: "inv"})
			return id
		}, 300 * time.Second, Failed},
		{"conversing", (*world).conversing, time.Hour, Failed},
		{"agreeing", func(w *world) string {
			id := w.conversing()
			w.say(id, w.bob, Commit, Promise{CommitmentID: "c", Terms: Terms{Obligations: []Obligation{}}})
			return id
		}, 300 * time.Second, Conversing},
		{"executing", (*world).executing, 9*time.Hour + 30*time.Minute, Failed},
		{"escalated", func(w *world) string {
			id := w.conversing()
			w.say(id, w.bob, Escalate, map[string]string{"reason": "r"})
			return id
		}, 24 * time.Hour, Failed},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			id := c.open(w)
			before, count := w.state(id), w.head(id).Count
			w.clock.add(c.after - time.Millisecond)
			if err := w.Expire(t.Context()); err != nil || w.state(id) != before {
				t.Fatalf("too early: %s, %v", w.state(id), err)
			}
			w.clock.add(time.Millisecond)
			if err := w.Expire(t.Context()); err != nil {
				t.Fatal(err)
			}
			after, err := w.store.Records(t.Context(), id, count, 10)
			if got := w.state(id); err != nil || got != c.want || len(after) != 1 || after[0].Kind != RecordTimeout {
				t.Errorf("%s, %v, %v", got, after, err)
			}
			l, _ := w.Session(t.Context(), id, "")
			if c.name == "executing" && l.commitment("c1").Status != Breached {
				t.Errorf("commitment %+v", l.Commitments)
			}
			var buf bytes.Buffer
			if err := w.WriteTranscript(t.Context(), id, &buf); err != nil {
				t.Fatal(err)
			}
			if _, err := VerifyTranscript(&buf); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("proposedDuration", func(t *testing.T) {
		w := newWorld(t)
		id, _ := NewSessionID()
		inv := invitation("inv")
		inv.Terms = map[string]any{"proposedDuration": 60_000}
		d := w.draft(id, w.alice, Propose, inv)
		d.Recipient = &Party{bobID, "org_widgets"}
		if _, err := w.ingest(w.sign(w.alice, d)); err != nil {
			t.Fatal(err)
		}
		w.say(id, w.bob, Accept, Answer{ReferenceID: "inv"})
		w.clock.add(time.Minute)
		w.refuse("session_closed", id, w.bob, Inform, inform("late"))
	})
}

func TestTrustIsComputed(t *testing.T) {
	t.Parallel()
	// ASP-061: a claimed score of 100 has no effect.
	w := newWorld(t, func(s *Server) {
		s.Admit = func(_ context.Context, r *Request) error {
			if r.Agent.Score() < 20 {
				return Refuse("insufficient_trust_score", "")
			}
			return nil
		}
	})
	id, _ := NewSessionID()
	d := w.draft(id, w.alice, Propose, invitation("inv"))
	d.Recipient, d.TrustScore = &Party{bobID, "org_widgets"}, 100
	if _, err := w.ingest(w.sign(w.alice, d)); !isCode(err, "insufficient_trust_score") {
		t.Errorf("got %v", err)
	}
	if err := w.SetTrust(t.Context(), aliceID, TrustComponents{IdentityVerification: 100}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ingest(w.sign(w.alice, d)); err != nil {
		t.Error(err)
	}
	for score, want := range map[float64]int{0: 0, 24.9: 0, 25: 1, 49: 1, 68: 2, 72.5: 3, 85: 3, 91: 4, 92: 4, 100: 4} {
		if got := trustLevel(score); got != want {
			t.Errorf("level of %v: %d, want %d", score, got, want)
		}
	}
	var many []Endorsement
	for i := range 200 {
		many = append(many, Endorsement{Endorser: fmt.Sprint(i), OrgID: "o", Score: float64(i % 100), Value: 50})
	}
	if got := Endorse("other", many); got != 50 {
		t.Errorf("endorsed %v", got)
	}
	if got := Endorse("o", []Endorsement{{"a", "o", 90, 100}, {"b", "x", 90, 0}, {"c", "x", 29, 100}}); got != 20 {
		t.Errorf("endorsed %v", got)
	}
}

func TestInvitationRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	send := func() error {
		id, _ := NewSessionID()
		d := w.draft(id, w.alice, Propose, invitation("inv"))
		d.Recipient = &Party{bobID, "org_widgets"}
		_, err := w.ingest(w.sign(w.alice, d))
		return err
	}
	for range 10 {
		if err := send(); err != nil {
			t.Fatal(err)
		}
	}
	if err := send(); !errors.Is(err, ErrRateLimited) || asError(err).Details["retryAfter"] == nil {
		t.Errorf("got %v", err)
	}
	w.clock.add(6 * time.Second)
	if err := send(); err != nil {
		t.Error(err)
	}
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	t.Run("ASP-076 no take-over", func(t *testing.T) {
		thief := w.client(testIdentity(t, aliceID, "org_thief"))
		if err := thief.Register(ctx, thief.Identity.Card(), nil); !errors.Is(err, ErrAgentExists) {
			t.Errorf("got %v", err)
		}
		if err := thief.Register(ctx, thief.Identity.Card(), thief.Identity); !errors.Is(err, ErrAgentExists) {
			t.Errorf("got %v", err)
		}
		// Another agent's card, without its keys.
		stolen := testIdentity(t, eveID, "org_evil").Card()
		if err := thief.Register(ctx, stolen, nil); !errors.Is(err, ErrSignature) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("rotation", func(t *testing.T) {
		id := w.conversing()
		fresh := w.client(testIdentity(t, aliceID, "org_acme "))
		card := fresh.Identity.Card()
		if err := fresh.Register(ctx, card, w.alice.Identity); !isCode(err, "agent_in_session") {
			t.Errorf("got %v", err)
		}
		w.say(id, w.alice, Close, Closing{})
		w.clock.add(time.Minute)
		old := w.alice
		if err := fresh.Register(ctx, card, old.Identity); err != nil {
			t.Fatal(err)
		}
		w.clock.add(time.Minute)
		// Old transcripts verify, but the old key can no longer sign messages.
		var buf bytes.Buffer
		if err := w.WriteTranscript(ctx, id, &buf); err != nil {
			t.Fatal(err)
		}
		if _, err := VerifyTranscript(&buf); err != nil {
			t.Error(err)
		}
		if _, err := old.Card(ctx, bobID); !isCode(err, "token_invalid") && !isCode(err, "dpop_key_mismatch") {
			t.Errorf("old key: %v", err)
		}
		sid, _ := NewSessionID()
		d := w.draft(sid, old, Propose, invitation("inv"))
		d.Recipient = &Party{bobID, "org_widgets"}
		if _, err := w.ingest(w.sign(old, d)); err == nil {
			t.Error("the old key opened a session")
		}
		w.alice = fresh
		w.conversing()
	})
	t.Run("ASP-015 weak keys", func(t *testing.T) {
		card, err := testIdentity(t, eveID, "org_evil").Card().JSON()
		if err != nil {
			t.Fatal(err)
		}
		n, _ := parseJSON(card)
		weak := strings.Replace(string(card), n.get("signingPublicKey").text("x"),
			b64.EncodeToString(append([]byte{1}, make([]byte, 31)...)), 1)
		if _, err := w.Register(ctx, []byte(weak)); !errors.Is(err, ErrWeakKey) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		closed := newWorldWithout(t)
		c := closed.client(testIdentity(t, aliceID, "org_acme"))
		if err := c.Register(ctx, c.Identity.Card(), nil); !errors.Is(err, ErrRegistrationShut) {
			t.Errorf("got %v", err)
		}
		card, _ := c.Identity.Card().JSON()
		if _, err := closed.Register(ctx, card); err != nil {
			t.Fatal(err)
		}
		if err := c.Register(ctx, c.Identity.Card(), nil); err != nil {
			t.Errorf("own card again: %v", err)
		}
	})
	t.Run("removed", func(t *testing.T) {
		if err := w.Unregister(ctx, carolID); err != nil {
			t.Fatal(err)
		}
		if err := w.carol.Register(ctx, w.carol.Identity.Card(), nil); !errors.Is(err, ErrAgentExists) {
			t.Errorf("got %v", err)
		}
	})
}

func newWorldWithout(t *testing.T) *world {
	w := newWorld(t)
	other := *w
	other.Server = &Server{Now: w.clock.now}
	w.http.Config.Handler = other.Server
	return &other
}

func TestHooks(t *testing.T) {
	t.Parallel()
	var seen []*Request
	var refusals []*Refusal
	deny := false
	w := newWorld(t, func(s *Server) {
		s.Admit = func(_ context.Context, r *Request) error {
			if deny {
				return Refuse("policy_violation", "not today")
			}
			seen = append(seen, r)
			return nil
		}
		s.Refused = func(_ context.Context, r *Refusal) string {
			refusals = append(refusals, r)
			return fmt.Sprintf("ref-%d", len(refusals))
		}
	})
	id := w.conversing()
	if len(seen) != 3 || seen[2].Position != 2 || seen[2].After.State != Conversing || seen[0].Before != nil {
		t.Fatalf("%+v", seen)
	}
	if v := seen[2].Verdict; v.Assurance != "signed" || v.KeyID != w.alice.Identity.Public().ID() ||
		len(v.Checks) != 18 {
		t.Errorf("verdict %+v", v)
	}
	deny = true
	w.refuse("policy_violation", id, w.alice, Inform, inform("x"))
	deny = false
	e := w.say(id, w.alice, Inform, inform("y"))
	if r, err := w.ingest(e); err != nil || !r.Duplicate || len(seen) != 4 {
		t.Errorf("retransmission: %+v, %v", r, err)
	}
	// The reference reaches the sender.
	resp, body := w.request(w.bob, "POST", "/v1/asp/sessions/"+id+"/messages", string(JSON), []byte(`{"a":1,"a":2}`))
	if resp.StatusCode != 400 || resp.Header.Get("Parley-Ref") == "" ||
		!bytes.Contains(body, []byte(resp.Header.Get("Parley-Ref"))) {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
	}
	last := refusals[len(refusals)-1]
	if last.Agent != bobID || last.Session != id || last.Err.Code != "duplicate_key" ||
		last.Verdict.Checks[1].Code != "duplicate_key" {
		t.Errorf("refusal %+v", last)
	}
}

func TestRestart(t *testing.T) {
	t.Parallel()
	// ASP-079: a server needs only its Store after a restart.
	w := newWorld(t)
	id := w.conversing()
	old := w.say(id, w.alice, Inform, inform("before"))
	again := &Server{Store: w.Server.store, Now: w.clock.now}
	w.Server = again
	if r, err := w.ingest(old); err != nil || !r.Duplicate {
		t.Errorf("%+v, %v", r, err)
	}
	b := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("after")))
	reused := bytes.Replace(b.Raw(), []byte(b.Sender.DPoPProof), []byte(old.Sender.DPoPProof), 1)
	if _, err := w.Ingest(t.Context(), reused, Transport{}, id); !errors.Is(err, ErrReplay) {
		t.Errorf("got %v", err)
	}
	if _, err := w.ingest(b); err != nil {
		t.Error(err)
	}
}

// laggingStore is a Store with a cached session. Once it loses the answer to an Append,
// and its cache is then outdated until the next Ledger.
type laggingStore struct {
	Store
	loses, behind bool
}

func (f *laggingStore) Append(ctx context.Context, session string, expect Head, r *Record) error {
	if f.behind {
		return ErrReplay // the proof is known
	}
	err := f.Store.Append(ctx, session, expect, r)
	if err == nil && f.loses {
		f.loses, f.behind = false, true
		return errors.New("no answer")
	}
	return err
}

func (f *laggingStore) Message(ctx context.Context, session, messageID string) (*Record, error) {
	if f.behind {
		return nil, ErrNotFound
	}
	return f.Store.Message(ctx, session, messageID)
}

func (f *laggingStore) Ledger(ctx context.Context, session string) (*Ledger, error) {
	f.behind = false
	return f.Store.Ledger(ctx, session)
}

// TestSentAgain: a sender repeats a message whose outcome is unknown, and gets the receipt
// of a duplicate. If it got dpop_jti_replayed instead, it would send a new message.
func TestSentAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	store := &laggingStore{Store: w.Server.store}
	w.Server = &Server{Store: store, Now: w.clock.now}
	w.say(id, w.alice, Inform, inform("before"))
	e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("again")))
	store.loses = true
	if r, err := w.ingest(e); err == nil {
		t.Fatalf("%+v", r)
	}
	if r, err := w.ingest(e); err != nil || !r.Duplicate {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestTwoServersOneStore(t *testing.T) {
	t.Parallel()
	// ASP-028 across servers: the head in the Store decides.
	w := newWorld(t)
	id := w.conversing()
	other := &Server{Store: w.Server.store, Now: w.clock.now}
	a := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("a")))
	b := w.sign(w.bob, w.draft(id, w.bob, Inform, inform("b")))
	if _, err := w.ingest(a); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Ingest(t.Context(), b.Raw(), Transport{}, id); !errors.Is(err, ErrChain) {
		t.Errorf("got %v", err)
	}
	if _, err := w.Session(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	c := w.sign(w.bob, w.draft(id, w.bob, Inform, inform("c")))
	if _, err := other.Ingest(t.Context(), c.Raw(), Transport{}, id); err != nil {
		t.Fatal(err)
	}
	d := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("d"))) // w's own ledger is stale
	if _, err := w.ingest(d); !errors.Is(err, ErrChain) {
		t.Errorf("got %v", err)
	}
	if err := w.Notify(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w.say(id, w.alice, Inform, inform("e"))
}

// An agent that another server has just added to a session can use it at once, also at a
// server that holds the session as it was before.
func TestAddedAtAnotherServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.executing()
	one, two := &Server{Store: w.Server.store, Now: w.clock.now}, &Server{Store: w.Server.store, Now: w.clock.now}
	for _, other := range []*Server{one, two} {
		if _, err := other.Session(t.Context(), id, aliceID); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Session(t.Context(), id, carolID); !errors.Is(err, ErrNotParticipant) {
			t.Errorf("before she was added: %v", err)
		}
	}
	w.say(id, w.alice, Delegate, Delegation{TargetAgent: carolID, Scope: "verify"})
	if _, err := one.Session(t.Context(), id, carolID); err != nil {
		t.Errorf("she reads the session: %v", err)
	}
	if err := two.CloseSession(t.Context(), id, carolID, ""); err != nil {
		t.Errorf("she closes the session: %v", err)
	}
}

func TestConcurrentSenders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	const each = 20
	var group sync.WaitGroup
	for _, c := range []*Client{w.alice, w.bob} {
		s, err := c.Join(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			for i := range each {
				if _, err := s.Send(t.Context(), Inform, inform(fmt.Sprint(i))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	if got := w.head(id).Count; got != 3+2*each {
		t.Errorf("%d records", got)
	}
}

// Two messages of the same content have the same hash: a link to the second looks like a
// link to the first. A client that missed the second still fetches it.
func TestSameContentFromBoth(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.conversing()
	var sessions []*Session
	for _, c := range []*Client{w.alice, w.bob} {
		s, err := c.Join(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	for i, text := range []string{"one", "one", "two", "three", "four"} {
		if _, err := sessions[i%2].Send(t.Context(), Inform, inform(text)); err != nil {
			t.Fatal(i, err)
		}
	}
	if got := w.head(id).Count; got != 3+5 {
		t.Errorf("%d records", got)
	}
}

func TestFixedFormat(t *testing.T) {
	t.Parallel()
	// ASP-074.
	w := newWorld(t)
	id, _ := NewSessionID()
	d := w.draft(id, w.alice, Propose, invitation("inv"))
	d.Recipient, d.Format = &Party{bobID, "org_widgets"}, MessagePack
	if _, err := w.ingest(w.sign(w.alice, d)); err != nil {
		t.Fatal(err)
	}
	d = w.draft(id, w.bob, Accept, Answer{ReferenceID: "inv"})
	d.Format = JSON
	e := w.sign(w.bob, d)
	if _, err := w.ingest(e); !isCode(err, "format_mismatch") {
		t.Errorf("got %v", err)
	}
	w.say(id, w.bob, Accept, Answer{ReferenceID: "inv"})
	// And a client in that format, with export.
	alice, err := w.alice.Open(t.Context(), Invitation{To: []string{bobID}, Format: MessagePack})
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if r, err := alice.Export(t.Context(), &buf); err != nil || r.Messages != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	_, list := w.request(w.bob, "GET", "/v1/asp/sessions/"+alice.ID()+"/messages", "", nil)
	if !bytes.Contains(list, []byte(`"session-invitation"`)) {
		t.Errorf("list %s", list)
	}
	// terms.format must be the format of the invitation.
	inv := invitation("inv")
	inv.Terms = map[string]any{"format": MessagePack}
	id, _ = NewSessionID()
	d = w.draft(id, w.alice, Propose, inv)
	d.Recipient = &Party{bobID, "org_widgets"}
	if _, err := w.ingest(w.sign(w.alice, d)); !isCode(err, "format_mismatch") {
		t.Errorf("got %v", err)
	}
}

func TestMemoryStoreBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(s *Server) { s.Store = NewMemoryStore(MemoryLimits{Sessions: 2, Agents: 3}, nil) })
	a, _ := w.invite(), w.invite()
	id, _ := NewSessionID()
	d := w.draft(id, w.alice, Propose, invitation("inv"))
	d.Recipient = &Party{bobID, "org_widgets"}
	if _, err := w.ingest(w.sign(w.alice, d)); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
	w.say(a, w.alice, Close, Closing{})
	w.invite() // the session that is over makes room
	card, _ := testIdentity(t, eveID, "org_evil").Card().JSON()
	if _, err := w.Register(t.Context(), card); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
}

func TestMemoryForgetsAndBounds(t *testing.T) {
	t.Parallel()
	clock := &fakeClock{t: time.Unix(1_000_000, 0)}
	m := NewMemory(32, clock.now)
	seen := func(key string, for_ time.Duration) (bool, error) {
		return m.Seen(t.Context(), key, clock.now().Add(for_))
	}
	for i, want := range []bool{true, false} {
		if fresh, err := seen("a 1", time.Minute); fresh != want || err != nil {
			t.Fatal(i, fresh, err)
		}
	}
	if _, err := seen("a 2", time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := seen("a 3", time.Minute); !errors.Is(err, ErrFull) {
		t.Errorf("one owner takes all: %v", err)
	}
	if fresh, err := seen("b 1", time.Hour); !fresh || err != nil {
		t.Error(fresh, err)
	}
	clock.add(61 * time.Second)
	if fresh, err := seen("a 1", time.Minute); !fresh || err != nil {
		t.Error(fresh, err)
	}
	clock.add(3 * time.Hour)
	if fresh, err := seen("b 1", time.Minute); !fresh || err != nil {
		t.Error(fresh, err)
	}
	if n := m.(*memory).keys.Len(); n != 1 {
		t.Errorf("%d keys", n)
	}
}

func TestUnknownSessionsLeaveNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for range 20 {
		id, _ := NewSessionID()
		e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("x")))
		if _, err := w.ingest(e); !errors.Is(err, ErrSessionNotFound) {
			t.Fatal(err)
		}
	}
	if n := len(w.live); n != 0 {
		t.Errorf("%d sessions held", n)
	}
}

func TestCostDoesNotGrow(t *testing.T) {
	t.Parallel()
	// The size of a ledger and the calls of the Store stay constant: no message
	// needs the history.
	count := &countingStore{Store: NewMemoryStore(MemoryLimits{}, nil)}
	w := newWorld(t, func(s *Server) { s.Store = count })
	id := w.conversing()
	measure := func() (int, int) {
		count.calls = 0
		w.say(id, w.alice, Query, Question{QueryID: w.uuid(), QueryType: "x"})
		l, err := w.Session(t.Context(), id, "")
		if err != nil {
			t.Fatal(err)
		}
		b, err := jsonx.Encode(l)
		if err != nil {
			t.Fatal(err)
		}
		return count.calls, len(b)
	}
	for range maxItems {
		measure()
	}
	calls, size := measure()
	for range 300 {
		w.say(id, w.bob, Inform, inform("x"))
		measure()
	}
	if c, s := measure(); c != calls || s > size+16 {
		t.Errorf("calls %d then %d, bytes %d then %d", calls, c, size, s)
	}
}

func (w *world) uuid() string {
	id, err := NewSessionID()
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

type countingStore struct {
	Store
	calls int
}

func (c *countingStore) Append(ctx context.Context, s string, h Head, r *Record) error {
	c.calls++
	return c.Store.Append(ctx, s, h, r)
}

func (c *countingStore) Message(ctx context.Context, s, m string) (*Record, error) {
	c.calls++
	return c.Store.Message(ctx, s, m)
}

func (c *countingStore) Records(ctx context.Context, s string, from int64, n int) ([]*Record, error) {
	c.calls++
	return c.Store.Records(ctx, s, from, n)
}

func TestVerifier(t *testing.T) {
	t.Parallel()
	id := testIdentity(t, aliceID, "org_acme")
	now := time.Date(2026, 3, 7, 14, 30, 0, 0, time.UTC)
	v := &Verifier{Keys: StaticKeys{aliceID: {id.Public()}},
		Now: func() time.Time { return now }}
	session, _ := NewSessionID()
	sign := func(change func(*Draft)) *Envelope {
		d := Draft{SessionID: session, Performative: Observe, Body: struct{}{}, Time: now}
		if change != nil {
			change(&d)
		}
		e, err := d.Sign(id)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	e := sign(nil)
	got, err := v.Verify(t.Context(), e.Raw(), Transport{Agent: aliceID})
	if err != nil || got.Verdict.Assurance != "signed" {
		t.Fatal(got, err)
	}
	if _, err := v.Verify(t.Context(), e.Raw(), Transport{}); !errors.Is(err, ErrReplay) {
		t.Errorf("replay: %v", err)
	}
	if _, err := v.Verify(t.Context(), sign(nil).Raw(), Transport{AccessToken: "t"}); !isCode(err,
		"dpop_ath_mismatch") {
		t.Errorf("token: %v", err) // ASP-039
	}
	if _, err := v.Verify(t.Context(), sign(func(d *Draft) { d.AccessToken = "t" }).Raw(),
		Transport{AccessToken: "t"}); err != nil {
		t.Errorf("token: %v", err)
	}
	if _, err := v.Verify(t.Context(), sign(nil).Raw(), Transport{Agent: bobID}); !isCode(err, "sender_mismatch") {
		t.Errorf("agent: %v", err)
	}
	if _, err := new(Verifier).Verify(t.Context(), sign(nil).Raw(), Transport{}); !errors.Is(err, ErrUnknownKey) {
		t.Errorf("zero value: %v", err)
	}
	// A peer that does not normalise gets the reason.
	nfd := sign(func(d *Draft) { d.Body = map[string]string{"note": "cafe\u0301"} })
	plain, err := jsonx.Canonicalize(nfd.root.get("content").raw)
	if err != nil {
		t.Fatal(err)
	}
	raw := strings.Replace(string(nfd.Raw()), nfd.Integrity.Hash, hashOf(plain), 1)
	if _, err := v.Verify(t.Context(), []byte(raw), Transport{}); !errors.Is(err, ErrHash) ||
		asError(err).Details["detail"] != "non_nfc_canonicalisation" {
		t.Errorf("JCS peer: %v", err)
	}
	if verdict := VerdictOf(err); verdict.Assurance != "unsigned" {
		t.Errorf("%+v", verdict)
	}
}

// ASP-012: a signature has the prescribed form; ASP-010: so has the hash.
func TestSigningForm(t *testing.T) {
	e, err := Draft{SessionID: "019cc8aa-0001-7def-8a12-000000000001", Performative: Observe,
		Body: map[string]int{}}.Sign(testIdentity(t, aliceID, "o"))
	if err != nil {
		t.Fatal(err)
	}
	if !validSignature(e.Integrity.Signature) || !validHash(e.Integrity.Hash) {
		t.Errorf("%+v", e.Integrity)
	}
}

// Every hole of the digest's §13 has a test. The holes marked "file" are cases of the
// vectors.
func TestHoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	t.Run("unsigned members: the transcript sees them", func(t *testing.T) {
		id := w.conversing()
		d := w.draft(id, w.alice, Inform, inform("to bob"))
		d.Recipient, d.Constraints = &Party{bobID, "org_widgets"}, &Constraints{MaxTokenBudget: 7}
		e := w.sign(w.alice, d)
		if _, err := w.ingest(e); err != nil {
			t.Fatal(err)
		}
		for _, change := range [][2]string{{`"trustScore":0`, `"trustScore":9`}, {`"messageId":"0`, `"messageId":"1`},
			{`"orgId":"org_acme","trustScore"`, `"orgId":"org_evil","trustScore"`},
			{`"recipient":{"agentId":"` + bobID, `"recipient":{"agentId":"` + carolID},
			{`"maxTokenBudget":7`, `"maxTokenBudget":8`}, {e.Sender.DPoPProof, w.sign(w.alice, d).Sender.DPoPProof}} {
			var buf bytes.Buffer
			if err := w.WriteTranscript(t.Context(), id, &buf); err != nil {
				t.Fatal(err)
			}
			text := strings.Replace(buf.String(), change[0], change[1], 1)
			if _, err := VerifyTranscript(strings.NewReader(text)); !errors.Is(err, ErrTranscript) ||
				text == buf.String() {
				t.Errorf("%v passes", change)
			}
		}
	})
	t.Run("the same content under another performative", func(t *testing.T) {
		id := w.conversing()
		w.say(id, w.alice, Propose, Proposal{ProposalID: "p", Type: "data-exchange", Subject: "s",
			Terms: map[string]any{}})
		d := w.draft(id, w.bob, Accept, Answer{ReferenceID: "p"})
		if _, err := w.ingest(w.sign(w.bob, d)); err != nil {
			t.Fatal(err)
		}
		d.Performative = Reject // hash and links stay the same
		if _, err := w.ingest(w.sign(w.bob, d)); !errors.Is(err, ErrEquivocation) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("duplicate-content-removal", func(t *testing.T) {
		id := w.conversing()
		w.say(id, w.alice, Inform, inform("same"))
		w.say(id, w.alice, Inform, inform("same"))
		var buf bytes.Buffer
		if err := w.WriteTranscript(t.Context(), id, &buf); err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(buf.String(), "\n")
		cut := strings.Join(slices.Delete(lines, 5, 6), "")
		if _, err := VerifyTranscript(strings.NewReader(cut)); !errors.Is(err, ErrTranscript) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a proof without a token does not pass where a token was used", func(t *testing.T) {
		id := w.conversing()
		e := w.sign(w.alice, w.draft(id, w.alice, Inform, inform("x")))
		resp, body := w.request(w.alice, "POST", "/v1/asp/sessions/"+id+"/messages", string(JSON), e.Raw())
		if resp.StatusCode != http.StatusUnauthorized || reason(t, body) != "dpop_ath_mismatch" {
			t.Errorf("%d %s", resp.StatusCode, body)
		}
	})
	t.Run("the invitation's recipient must be known and another", func(t *testing.T) {
		for to, want := range map[string]string{aliceID: "invalid_field", eveID: "agent_not_found",
			"": "missing_field"} {
			id, _ := NewSessionID()
			d := w.draft(id, w.alice, Propose, invitation("inv"))
			if to != "" {
				d.Recipient = &Party{to, "o"}
			}
			if _, err := w.ingest(w.sign(w.alice, d)); codeOf(err) != want {
				t.Errorf("%q: %v, want %s", to, err, want)
			}
		}
	})
}
