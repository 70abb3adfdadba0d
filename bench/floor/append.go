package floor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Storage says where records go.
type Storage string

const (
	Memory Storage = "memory"
	Disk   Storage = "disk" // each acknowledged record is synced
)

const (
	stream  = "FLOOR"
	subject = "floor.record"

	// plainMax is how many waiting records are published one by one: a batch
	// costs as much as some ten syncs, whatever it holds.
	plainMax = 10

	// batchMax and batchBytes bound a batch; the engine's own bound is 1000.
	batchMax   = 512
	batchBytes = 4 << 20

	ackTimeout = 30 * time.Second
)

// engine is an embedded server with one stream.
type engine struct {
	server *server.Server
	conn   *nats.Conn
}

func startEngine(ctx context.Context, s Storage, dir string) (_ *engine, err error) {
	srv, err := server.NewServer(&server.Options{
		ServerName: "floor", DontListen: true, JetStream: true, StoreDir: dir, SyncAlways: s == Disk,
		NoSigs: true, NoLog: true, MaxPayload: 8 << 20,
	})
	if err != nil {
		return nil, fmt.Errorf("floor: engine: %w", err)
	}
	e := &engine{server: srv}
	defer func() {
		if err != nil {
			e.stop()
		}
	}()
	srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		return nil, errors.New("floor: engine: not ready")
	}
	if e.conn, err = nats.Connect("", nats.InProcessServer(srv)); err != nil {
		return nil, fmt.Errorf("floor: engine: %w", err)
	}
	js, err := jetstream.New(e.conn)
	if err != nil {
		return nil, fmt.Errorf("floor: engine: %w", err)
	}
	storage := jetstream.FileStorage
	if s == Memory {
		storage = jetstream.MemoryStorage
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: stream, Subjects: []string{subject}, Storage: storage, AllowAtomicPublish: true, Duplicates: 2 * time.Minute,
	})
	if err != nil {
		return nil, fmt.Errorf("floor: engine: %w", err)
	}
	return e, nil
}

func (e *engine) stop() {
	if e.conn != nil {
		e.conn.Close()
	}
	e.server.Shutdown()
	e.server.WaitForShutdown()
}

// appender writes records, each when it comes or many at once. A lone record
// waits for nobody. While records are being synced, those that come wait; then
// up to plainMax are published one by one, more become one atomic batch.
type appender struct {
	conn  *nats.Conn
	inbox string
	sub   *nats.Subscription
	batch bool // whether waiting together pays: on disk

	mu      sync.Mutex
	waiting []*record
	flying  map[uint64]*flight // by the token of the acknowledgement's subject
	count   int                // records in flying
	token   uint64
}

// record is one append.
type record struct {
	id   string
	data []byte
	done chan error // of capacity 1
}

// flight is a publish that is not acknowledged.
type flight struct {
	records []*record
	batch   bool
}

func newAppender(conn *nats.Conn, s Storage) (*appender, error) {
	a := &appender{conn: conn, inbox: nats.NewInbox() + ".", batch: s == Disk, flying: map[uint64]*flight{}}
	var err error
	if a.sub, err = conn.Subscribe(a.inbox+"*", a.acknowledged); err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	return a, nil
}

// append records data under the message id and returns when it is durable.
func (a *appender) append(ctx context.Context, id string, data []byte) error {
	r := &record{id: id, data: data, done: make(chan error, 1)}
	if a.batch {
		a.mu.Lock()
		a.waiting = append(a.waiting, r)
		a.dispatch()
		a.mu.Unlock()
	} else if err := a.publish(r); err != nil {
		return err
	}
	timer := time.NewTimer(ackTimeout)
	defer timer.Stop()
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return errors.New("floor: no acknowledgement")
	}
}

// dispatch publishes what should not wait longer. a.mu is held, which keeps
// the messages of a batch together.
func (a *appender) dispatch() {
	for len(a.waiting) > 0 {
		if a.count > 0 && a.count+len(a.waiting) > plainMax {
			return // they go together when what is under way is done
		}
		n := min(len(a.waiting), 1)
		if len(a.waiting) > plainMax {
			n = a.fitting()
		}
		records := append([]*record(nil), a.waiting[:n]...)
		a.waiting = append(a.waiting[:0], a.waiting[n:]...)
		if err := a.send(records); err != nil {
			a.land(a.token)
			for _, r := range records {
				r.done <- fmt.Errorf("floor: publish: %w", err)
			}
		}
	}
}

// fitting is how many waiting records one batch may hold.
func (a *appender) fitting() int {
	n, size := 0, 0
	for n < len(a.waiting) && n < batchMax && (n == 0 || size+len(a.waiting[n].data) <= batchBytes) {
		size += len(a.waiting[n].data)
		n++
	}
	return n
}

// fly registers a publish and returns the subject for its acknowledgement.
// a.mu is held.
func (a *appender) fly(f *flight) string {
	a.token++
	a.flying[a.token] = f
	a.count += len(f.records)
	return a.inbox + strconv.FormatUint(a.token, 36)
}

// land removes a flight and returns it, nil if there is none. a.mu is held.
func (a *appender) land(token uint64) *flight {
	f := a.flying[token]
	if f != nil {
		delete(a.flying, token)
		a.count -= len(f.records)
	}
	return f
}

// publish sends one record. a.mu is not held.
func (a *appender) publish(r *record) error {
	a.mu.Lock()
	reply := a.fly(&flight{records: []*record{r}})
	token := a.token
	a.mu.Unlock()
	err := a.conn.PublishMsg(message(r, reply))
	if err != nil {
		a.mu.Lock()
		a.land(token)
		a.mu.Unlock()
	}
	return err
}

// send publishes records, several as an atomic batch. Only the last message
// of a batch has a reply subject: the others are acknowledged with it or not
// at all. a.mu is held.
func (a *appender) send(records []*record) error {
	last := len(records) - 1
	reply := a.fly(&flight{records: records, batch: last > 0})
	if last == 0 {
		return a.conn.PublishMsg(message(records[0], reply))
	}
	id := []string{reply[len(a.inbox):]}
	for i, r := range records {
		m := message(r, "")
		m.Header["Nats-Batch-Id"] = id
		m.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(i + 1)}
		if i == last {
			m.Reply = reply
			m.Header["Nats-Batch-Commit"] = []string{"1"}
		}
		if err := a.conn.PublishMsg(m); err != nil {
			return err
		}
	}
	return nil
}

func message(r *record, reply string) *nats.Msg {
	return &nats.Msg{Subject: subject, Reply: reply, Data: r.data, Header: nats.Header{"Nats-Msg-Id": {r.id}}}
}

// acknowledged handles an answer of the engine.
func (a *appender) acknowledged(m *nats.Msg) {
	token, err := strconv.ParseUint(strings.TrimPrefix(m.Subject, a.inbox), 36, 64)
	if err != nil {
		return
	}
	a.mu.Lock()
	f := a.land(token)
	a.mu.Unlock()
	if f == nil {
		return
	}
	err = ackError(m, f)
	for _, r := range f.records {
		r.done <- err
	}
	if a.batch {
		a.mu.Lock()
		a.dispatch()
		a.mu.Unlock()
	}
}

// ackError reads an acknowledgement: {"stream":…,"seq":…}, of a batch with
// "count" besides, or with "error".
func ackError(m *nats.Msg, f *flight) error {
	if m.Header.Get("Status") == "503" {
		return errors.New("floor: the stream is gone")
	}
	var ack struct {
		Seq   uint64          `json:"seq"`
		Count int             `json:"count"`
		Error json.RawMessage `json:"error"`
	}
	if !bytes.HasPrefix(m.Data, []byte(`{"stream":"`)) || f.batch {
		if err := json.Unmarshal(m.Data, &ack); err != nil {
			return fmt.Errorf("floor: acknowledgement %q: %w", m.Data, err)
		}
		if ack.Error != nil || f.batch && ack.Count != len(f.records) {
			return fmt.Errorf("floor: refused: %s", m.Data)
		}
	}
	return nil
}
