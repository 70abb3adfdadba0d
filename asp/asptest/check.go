package asptest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/checks"
)

// Each error of these functions names every rule that was broken. The clock of a memory
// must be that of the system.

// TestMemory checks memories; open gives an empty one each time.
func TestMemory(open func() asp.Memory) error {
	return checks.CheckMemory(func() checks.Memory { return open() }, proofKey)
}

// proofKey is a key in the form of [asp.Proof.ReplayKey].
func proofKey(i int) string { return fmt.Sprintf("agent://test.example/a jti-%d", i) }

// TestKeys checks a source of keys that knows the given agents.
func TestKeys(k asp.Keys, known ...string) error {
	one := func(ctx context.Context, id string) error {
		list, err := k.Keys(ctx, id)
		if err != nil || len(list) == 0 {
			return fmt.Errorf("%s has %d keys, %w", id, len(list), err)
		}
		for i, key := range list {
			if _, err := asp.SigningKey(key.Signing); err != nil {
				return fmt.Errorf("key %d of %s: %w", i, id, err)
			}
			if i > 0 && key.NotBefore.Before(list[i-1].NotBefore) {
				return fmt.Errorf("key %d of %s is older than the one before it", i, id)
			}
		}
		return nil
	}
	return checks.Run(
		checks.Check{Name: "each known agent has acceptable keys, oldest first", Run: func(ctx context.Context) error {
			for _, id := range known {
				if err := one(ctx, id); err != nil {
					return err
				}
			}
			return nil
		}},
		checks.Check{Name: "an unknown agent has no keys, and no error", Run: func(ctx context.Context) error {
			if list, err := k.Keys(ctx, "agent://unknown.example/a"); err != nil || len(list) > 0 {
				return fmt.Errorf("it has %d keys, %w", len(list), err)
			}
			return nil
		}},
		checks.Check{Name: "calls may be concurrent", Run: func(ctx context.Context) error {
			return checks.Together(8*len(known), func(i int) error { return one(ctx, known[i%len(known)]) })
		}},
	)
}

// sessionID is the id of one of the sessions of a check, in the order of the numbers.
func sessionID(i int) string { return fmt.Sprintf("01900000-0000-7000-8000-%012d", i) }

// TestClientStore checks stores of clients; open gives an empty one each time.
func TestClientStore(open func() asp.ClientStore) error {
	has := func(ctx context.Context, s asp.ClientStore, session, want string) error {
		b, err := s.Load(ctx, session)
		if err != nil || string(b) != want {
			return fmt.Errorf("session %s holds %q, %w; want %q", session, b, err, want)
		}
		return nil
	}
	save := func(ctx context.Context, s asp.ClientStore, session, text string) error {
		return errors.Join(s.Save(ctx, session, []byte(text)), has(ctx, s, session, text))
	}
	return checks.Run(
		checks.Check{Name: "an unknown session is ErrNotFound", Run: func(ctx context.Context) error {
			if b, err := open().Load(ctx, sessionID(1)); !errors.Is(err, asp.ErrNotFound) {
				return fmt.Errorf("it holds %q, %w", b, err)
			}
			return nil
		}},
		checks.Check{Name: "a document is kept as it was saved last", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(save(ctx, s, sessionID(1), `{"n":100}`), save(ctx, s, sessionID(1), `{}`))
		}},
		checks.Check{Name: "sessions are kept apart", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(save(ctx, s, sessionID(1), "1"), save(ctx, s, sessionID(2), "2"),
				has(ctx, s, sessionID(1), "1"))
		}},
		checks.Check{Name: "the caller may use its bytes again", Run: func(ctx context.Context) error {
			s, b := open(), []byte("saved")
			err := s.Save(ctx, sessionID(1), b)
			copy(b, "other")
			return errors.Join(err, has(ctx, s, sessionID(1), "saved"))
		}},
		checks.Check{Name: "calls may be concurrent", Run: func(ctx context.Context) error {
			s := open()
			return checks.Together(16, func(i int) error { return save(ctx, s, sessionID(i), fmt.Sprint(i)) })
		}},
	)
}

// entry makes the record of a session at a position.
func entry(session string, position int64, state asp.State, participants ...string) *asp.Record {
	head := asp.Head{Hash: fmt.Sprintf("sha256:%064d", position), Count: position + 1}
	l := &asp.Ledger{ID: session, Version: asp.Version, Format: asp.JSON, State: state, Head: head, Messages: head.Count}
	for _, p := range participants {
		l.Participants = append(l.Participants, asp.Participant{AgentID: p, OrgID: "org_test"})
	}
	return &asp.Record{Session: session, Position: position, Kind: asp.RecordMessage, Time: time.Unix(1767225600, 0).UTC(),
		To: state, Raw: fmt.Appendf(nil, `{"n":%d}`, position), Format: asp.JSON,
		MessageID: fmt.Sprintf("01900000-0000-7000-9000-%012d", position), Sender: participants[0], Ledger: l}
}

// head is the head of a session with so many records.
func head(count int64) asp.Head {
	if count == 0 {
		return asp.Head{}
	}
	return entry("", count-1, "", "").Ledger.Head
}

// TestStore checks stores of servers, also as memories; open gives an empty one each time.
func TestStore(open func() asp.Store) error {
	const alice, bob = "agent://test.example/alice", "agent://test.example/bob"
	s1 := sessionID(1)
	add := func(ctx context.Context, s asp.Store, session string, n int64, state asp.State, who ...string) error {
		if len(who) == 0 {
			who = []string{alice, bob}
		}
		return s.Append(ctx, session, head(n), entry(session, n, state, who...))
	}
	holds := func(ctx context.Context, s asp.Store, session string, n int64) error {
		l, err := s.Ledger(ctx, session)
		if err != nil || l.Head != head(n) {
			return fmt.Errorf("session %s: its ledger is %+v, %w; want head %+v", session, l, err, head(n))
		}
		list, err := s.Records(ctx, session, 0, 100)
		if err != nil || int64(len(list)) != n {
			return fmt.Errorf("session %s has %d records, %w; want %d", session, len(list), err, n)
		}
		for i, r := range list {
			if want := entry(session, int64(i), "", alice); r.Position != want.Position || string(r.Raw) != string(want.Raw) ||
				r.MessageID != want.MessageID {
				return fmt.Errorf("record %d is %+v", i, r)
			}
		}
		return nil
	}
	conflict := func(err error) error {
		if !errors.Is(err, asp.ErrConflict) {
			return fmt.Errorf("it gives %w, want ErrConflict", err)
		}
		return nil
	}
	sessions := func(ctx context.Context, s asp.Store, q asp.LedgerQuery, after string, limit int, want ...string) error {
		list, err := s.Ledgers(ctx, q, after, limit)
		var got []string
		for _, l := range list {
			got = append(got, l.ID)
		}
		if err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("Ledgers(%+v, %q, %d) gives %q, %w; want %q", q, after, limit, got, err, want)
		}
		return nil
	}
	list := []checks.Check{
		{Name: "a session is its records in order, and its newest ledger", Run: func(ctx context.Context) error {
			s := open()
			for n := range int64(3) {
				if err := errors.Join(add(ctx, s, s1, n, asp.Conversing), holds(ctx, s, s1, n+1)); err != nil {
					return err
				}
			}
			part, err := s.Records(ctx, s1, 1, 1)
			if err != nil || len(part) != 1 || part[0].Position != 1 {
				return fmt.Errorf("Records from 1, at most 1, gives %v, %w", part, err)
			}
			if end, err := s.Records(ctx, s1, 3, 10); err != nil || len(end) > 0 {
				return fmt.Errorf("Records from the end gives %v, %w", end, err)
			}
			return nil
		}},
		{Name: "what is unknown is ErrNotFound", Run: func(ctx context.Context) error {
			s := open()
			_, ledger := s.Ledger(ctx, s1)
			err := add(ctx, s, s1, 0, asp.Invited)
			_, message := s.Message(ctx, s1, "01900000-0000-7000-9000-000000000009")
			_, agent := s.Agent(ctx, alice)
			for _, e := range []error{ledger, message, agent} {
				if !errors.Is(e, asp.ErrNotFound) {
					err = errors.Join(err, fmt.Errorf("the error is %w", e))
				}
			}
			return err
		}},
		{Name: "a message is found by its id", Run: func(ctx context.Context) error {
			s := open()
			if err := errors.Join(add(ctx, s, s1, 0, asp.Invited), add(ctx, s, s1, 1, asp.Introduced)); err != nil {
				return err
			}
			r, err := s.Message(ctx, s1, entry(s1, 1, "", alice).MessageID)
			if err != nil || r.Position != 1 {
				return fmt.Errorf("it is %+v, %w", r, err)
			}
			return nil
		}},
		{Name: "an append at another head is ErrConflict and changes nothing", Run: func(ctx context.Context) error {
			s := open()
			return errors.Join(conflict(add(ctx, s, s1, 1, asp.Invited)), add(ctx, s, s1, 0, asp.Invited),
				conflict(add(ctx, s, s1, 0, asp.Invited)), conflict(add(ctx, s, s1, 2, asp.Invited)), holds(ctx, s, s1, 1))
		}},
		{Name: "of concurrent appends at one head one succeeds", Run: func(ctx context.Context) error {
			s := open()
			if err := add(ctx, s, s1, 0, asp.Invited); err != nil {
				return err
			}
			var won atomic.Int64
			err := checks.Together(8, func(int) error {
				err := add(ctx, s, s1, 1, asp.Introduced)
				if err == nil {
					won.Add(1)
					return nil
				}
				return conflict(err)
			})
			if won.Load() != 1 {
				err = errors.Join(err, fmt.Errorf("%d succeeded", won.Load()))
			}
			return errors.Join(err, holds(ctx, s, s1, 2))
		}},
		{Name: "a proof is used once, with its record", Run: func(ctx context.Context) error {
			s := open()
			proved := func(n int64, key int) error {
				r := entry(s1, n, asp.Conversing, alice, bob)
				r.Proof, r.ProofUntil = proofKey(key), time.Now().Add(time.Hour)
				return s.Append(ctx, s1, head(n), r)
			}
			if err := errors.Join(proved(0, 1), conflict(proved(0, 2)), proved(1, 2)); err != nil {
				return err
			}
			if err := proved(2, 1); !errors.Is(err, asp.ErrReplay) {
				return fmt.Errorf("the second use gives %w, want ErrReplay", err)
			}
			if fresh, err := s.Seen(ctx, proofKey(1), time.Now().Add(time.Hour)); fresh || err != nil {
				return fmt.Errorf("Seen gives fresh=%v, %w for the proof of a record", fresh, err)
			}
			return holds(ctx, s, s1, 2)
		}},
		{Name: "sessions are listed in the order of their ids", Run: func(ctx context.Context) error {
			s := open()
			if err := errors.Join(add(ctx, s, sessionID(2), 0, asp.Conversing, alice, bob),
				add(ctx, s, sessionID(1), 0, asp.Conversing, alice), add(ctx, s, sessionID(3), 0, asp.Closed, bob)); err != nil {
				return err
			}
			return errors.Join(sessions(ctx, s, asp.LedgerQuery{}, "", 10, sessionID(1), sessionID(2), sessionID(3)),
				sessions(ctx, s, asp.LedgerQuery{}, "", 2, sessionID(1), sessionID(2)),
				sessions(ctx, s, asp.LedgerQuery{}, sessionID(2), 10, sessionID(3)),
				sessions(ctx, s, asp.LedgerQuery{Participant: alice}, "", 10, sessionID(1), sessionID(2)),
				sessions(ctx, s, asp.LedgerQuery{Participant: bob, Live: true}, "", 10, sessionID(2)))
		}},
	}
	list = append(list, agentChecks(open)...)
	return errors.Join(checks.Run(list...), TestMemory(func() asp.Memory { return open() }))
}

// agentChecks check the agents of a store.
func agentChecks(open func() asp.Store) []checks.Check {
	const alice, bob, carol = "agent://test.example/alice", "agent://test.example/bob", "agent://test.example/carol"
	agent := func(id string, revision int64, capability string) (*asp.Agent, error) {
		i, err := asp.GenerateIdentity(id, "org_test")
		if err != nil {
			return nil, err
		}
		card := i.Card()
		card.Capabilities = []string{capability}
		b, err := card.JSON()
		return &asp.Agent{ID: id, Revision: revision, Cards: []asp.CardVersion{{Card: json.RawMessage(b)}}}, err
	}
	put := func(ctx context.Context, s asp.Store, id string, revision int64, capability string) error {
		a, err := agent(id, revision, capability)
		if err != nil {
			return err
		}
		return s.PutAgent(ctx, a)
	}
	found := func(ctx context.Context, s asp.Store, q asp.AgentQuery, after string, limit int, want ...string) error {
		list, err := s.Agents(ctx, q, after, limit)
		var got []string
		for _, a := range list {
			got = append(got, a.ID)
		}
		if err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("Agents(%+v, %q, %d) gives %q, %w; want %q", q, after, limit, got, err, want)
		}
		return nil
	}
	return []checks.Check{
		{Name: "an agent is written at its next revision only", Run: func(ctx context.Context) error {
			s := open()
			if err := errors.Join(put(ctx, s, alice, 1, "a"), put(ctx, s, alice, 2, "b")); err != nil {
				return err
			}
			for _, revision := range []int64{1, 2, 4} {
				if err := put(ctx, s, alice, revision, "c"); !errors.Is(err, asp.ErrConflict) {
					return fmt.Errorf("revision %d gives %w, want ErrConflict", revision, err)
				}
			}
			if err := put(ctx, s, bob, 2, "a"); !errors.Is(err, asp.ErrConflict) {
				return fmt.Errorf("revision 2 of a new agent gives %w, want ErrConflict", err)
			}
			a, err := s.Agent(ctx, alice)
			if err != nil {
				return err
			}
			card, err := a.Card()
			if err != nil || a.Revision != 2 || !slices.Equal(card.Capabilities, []string{"b"}) {
				return fmt.Errorf("the agent is %+v, %w", a, err)
			}
			return nil
		}},
		{Name: "agents are found in the order of their ids", Run: func(ctx context.Context) error {
			s := open()
			gone, err := agent("agent://test.example/gone", 1, "x")
			if err != nil {
				return err
			}
			gone.Removed = true
			return errors.Join(put(ctx, s, carol, 1, "x"), put(ctx, s, alice, 1, "x"), put(ctx, s, bob, 1, "y"),
				s.PutAgent(ctx, gone),
				found(ctx, s, asp.AgentQuery{}, "", 10, alice, bob, carol), found(ctx, s, asp.AgentQuery{}, "", 2, alice, bob),
				found(ctx, s, asp.AgentQuery{}, bob, 10, carol),
				found(ctx, s, asp.AgentQuery{Capability: "x"}, "", 10, alice, carol),
				found(ctx, s, asp.AgentQuery{Name: "bob"}, "", 10, bob),
				found(ctx, s, asp.AgentQuery{MinTrust: 101}, "", 10))
		}},
	}
}
