package journal

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley"
)

// slowLeader plays the leader of one stream, which has a record only when it was
// asked for its end so often.
type slowLeader struct {
	mu   sync.Mutex
	asks int
	seq  uint64
	data []byte
}

func (s *slowLeader) there() bool { return s.asks == 0 }

// ended counts a question for the end.
func (s *slowLeader) ended() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.there() {
		return fmt.Sprintf(`{"state":{"last_seq":%d}}`, s.seq)
	}
	s.asks--
	return fmt.Sprintf(`{"state":{"last_seq":%d}}`, s.seq-1)
}

func (s *slowLeader) message(subject string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.there() {
		return `{"error":{"code":404,"err_code":10037,"description":"no message found"}}`
	}
	return fmt.Sprintf(`{"message":{"subject":%q,"seq":%d,"data":%q}}`, subject, s.seq, base64.StdEncoding.EncodeToString(s.data))
}

// lagging is a journal of one partition that has seen a record to which the
// stream's leader comes only after so many questions.
func lagging(t *testing.T, asks int) (j *Journal, r *Record) {
	t.Helper()
	nc := engineless(t)

	j = &Journal{cfg: Config{URL: "shared"}, prefix: "P", partitions: 1}
	if err := j.cfg.complete(); err != nil {
		t.Fatal(err)
	}
	j.ctx, j.cancel = context.WithCancel(t.Context())
	p := newPartition(j, 0)
	p.writer = newWriter(j, p, j.logStream(0), false)
	j.parts = []*partition{p}
	l := &link{nc: nc, down: make(chan struct{}), fail: new(sync.Once)}
	l.side = l
	j.link.Store(l)
	j.rebuilt = true

	e := &Entry{Scope: "s", Message: request(t, "alice", "bob"), Chain: &ChainLink{Name: "c", After: 3}}
	sealed, err := j.seal(e, p)
	if err != nil {
		t.Fatal(err)
	}
	leader := &slowLeader{asks: asks, seq: 7, data: encode(sealed)}
	subject := p.chainSubject("c")
	for api, answer := range map[string]func() string{
		"INFO":    leader.ended,
		"MSG.GET": func() string { return leader.message(subject) },
	} {
		plays(t, nc, "$JS.API.STREAM."+api+"."+j.logStream(0), answer)
	}
	// A replica that is asked for pages has nothing yet.
	if _, err := nc.Subscribe("$JS.API.DIRECT.GET.>", func(m *nats.Msg) {
		end := nats.NewMsg(m.Reply)
		end.Header.Set("Status", "404")
		if err := m.RespondMsg(end); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.replay(&stored{subject, 7, leader.data}); err != nil {
		t.Fatal(err)
	}
	return j, sealed.Record
}

// TestLeaderIsBehind: what this node has seen it finds in the engine, also when
// that stream's leader comes to it later than the server that handed it out.
func TestLeaderIsBehind(t *testing.T) {
	at := Position{Partition: 0, Sequence: 7}
	for name, see := range map[string]func(*Journal) (parley.ID, error){
		"read": func(j *Journal) (parley.ID, error) {
			r, err := j.Read(t.Context(), at)
			if err != nil {
				return parley.ID{}, err
			}
			return r.Message.ID, nil
		},
		"records": func(j *Journal) (id parley.ID, err error) {
			for r, err := range j.Records(t.Context(), 0, From{Sequence: 7}) {
				if err != nil {
					return id, err
				}
				id = r.Message.ID
			}
			return id, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, r := lagging(t, 3)
			if id, err := see(j); err != nil || id != r.Message.ID {
				t.Errorf("%s, %v; want %s", id, err, r.Message.ID)
			}
		})
	}
	t.Run("head", func(t *testing.T) {
		j, _ := lagging(t, 1000)
		if head, err := j.Head(t.Context(), "s", "c"); err != nil || head != 7 {
			t.Errorf("%d, %v", head, err)
		}
	})
	t.Run("not there", func(t *testing.T) {
		j, _ := lagging(t, 1000)
		_, err := j.Read(t.Context(), Position{Partition: 0, Sequence: 8}) // nobody has seen it
		if !errors.Is(err, ErrNotFound) {
			t.Error(err)
		}
	})
}
