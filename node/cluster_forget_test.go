package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/testcluster"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
)

// TestForgetAtTwoHubsAtOnce: while one hub of a cluster erases the messages of an agent,
// an operator has the other hub forget another agent. Both are forgotten: their messages
// are in no stream, and in neither hub's index.
func TestForgetAtTwoHubsAtOnce(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	servers := 3
	if testing.Short() {
		servers = 1
	}
	engine := Engine{URL: strings.Join(testcluster.Start(t, servers).URLs, ","), Replicas: servers, Partitions: 2}
	root := t.TempDir()
	hub := func(name string) *Node {
		return running(t, Config{Name: name, Data: filepath.Join(root, name), Durability: "replicated", Engine: engine,
			PublicURL: "https://parley.test", Passphrase: []byte("of both"), PassphraseWork: 4,
			Limits: Limits{SenderRate: -1}})
	}
	one, two := hub("one"), hub("two")
	said := map[string]string{"many": "quincunx", "few": "zeugma", "kept": "ibis"}
	for name := range said {
		if _, err := one.Admin().AddAgent(ctx, everything, admin.NewAgent{Name: name, Inbox: true}); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, func() bool { _, err := two.Admin().Agent(ctx, everything, name, 0); return err == nil })
	}
	// Each hub records messages of both agents, and indexes all of them.
	for i := range 150 {
		notice(t, one, "many", fmt.Sprintf("%s %d %s", said["many"], i, strings.Repeat("x", 500)))
		if i%10 == 0 {
			for _, n := range []*Node{one, two} {
				notice(t, n, "few", fmt.Sprintf("%s %d", said["few"], i))
				notice(t, n, "kept", fmt.Sprintf("%s %d", said["kept"], i))
				notice(t, n, "many", fmt.Sprintf("%s %d at %s", said["many"], i, n.c.Name))
			}
		}
	}
	for name, word := range said {
		eventually(ctx, t, func() bool { // the inbox is read
			if _, err := one.Admin().Collect(ctx, everything, name, 100, 0); err != nil {
				t.Fatal(err)
			}
			return len(one.journal.Deliveries(journal.Filter{To: name})) == 0
		})
		for _, n := range []*Node{one, two} {
			eventually(ctx, t, func() bool {
				return len(n.journal.Deliveries(journal.Filter{To: name})) == 0 && found(t, n, word) > 0
			})
		}
		if len(streamsWith(t, engine.URL, word)) == 0 {
			t.Fatalf("%q should be in a stream", word)
		}
	}

	type forgotten struct {
		admin.Forgotten
		err error
	}
	forget := func(n *Node, name string) <-chan forgotten {
		out := make(chan forgotten, 1)
		go func() {
			f, err := n.Admin().Forget(context.WithoutCancel(ctx), everything, admin.Forget{Agent: name})
			out <- forgotten{f, err}
		}()
		return out
	}
	many := forget(one, "many")
	eventually(ctx, t, func() bool {
		list, err := two.Admin().Erasures(ctx, everything)
		return err == nil && len(list) == 1
	})
	few := forget(two, "few")
	for name, done := range map[string]<-chan forgotten{"many": many, "few": few} {
		if f := <-done; f.err != nil || f.Kept() != 0 || f.Erased == 0 {
			t.Errorf("%s: %+v", name, f)
		}
	}
	list, err := one.Admin().Erasures(ctx, everything)
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v %v", list, err)
	}
	if list[0].Ended.IsZero() || list[1].Ended.IsZero() || !list[1].Begun.Before(list[0].Ended) {
		t.Errorf("they were not at the same time, or have not ended: %+v", list)
	}
	for name, word := range said {
		gone := name != "kept"
		if left := streamsWith(t, engine.URL, word); gone != (len(left) == 0) {
			t.Errorf("%q is in the streams %v", word, left)
		}
		for _, n := range []*Node{one, two} {
			// The other hub's index follows.
			eventually(ctx, t, func() bool { return gone == (found(t, n, word) == 0) })
			eventually(ctx, t, func() bool { return gone == (len(mentioned(t, n.c.Data, word)) == 0) })
		}
	}
}

// found counts the messages that a hub finds by a word.
func found(t *testing.T, n *Node, word string) int {
	t.Helper()
	page, err := n.Admin().Messages(t.Context(), everything, index.Filter{Text: word})
	if err != nil {
		t.Fatal(err)
	}
	return len(page.Messages)
}

// streamsWith names the streams of a cluster that hold a message with a word. A stream whose leader
// is being elected does not answer, or not in time, so it is asked again.
func streamsWith(t *testing.T, url, word string) (out []string) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t.Context(), t, func() bool {
		out, err = searchStreams(t.Context(), js, word)
		return !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, context.DeadlineExceeded)
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func searchStreams(ctx context.Context, js jetstream.JetStream, word string) (out []string, err error) {
	names := js.StreamNames(ctx)
	for name := range names.Name() {
		s, err := js.Stream(ctx, name)
		if err != nil {
			return nil, err
		}
		at := s.CachedInfo().State
		for seq := max(1, at.FirstSeq); seq <= at.LastSeq; seq++ {
			m, err := s.GetMsg(ctx, seq)
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if mentions(m.Data, word, 3) || mentions([]byte(m.Subject+fmt.Sprint(m.Header)), word, 3) {
				out = append(out, name)
				break
			}
		}
	}
	return out, names.Err()
}
