package aghnats

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
)

// Transport carries an [agh.Client] over a NATS connection: the hub's or any
// other.
type Transport struct {
	Conn *nats.Conn

	once sync.Once
	mu   sync.Mutex
	back []func()
}

// Publish implements [agh.Transport].
func (t *Transport) Publish(_ context.Context, subject, reply string, data []byte) error {
	return t.Conn.PublishMsg(&nats.Msg{Subject: subject, Reply: reply, Data: data})
}

// Subscribe implements [agh.Transport].
func (t *Transport) Subscribe(ctx context.Context, subject string, handle func(agh.Message)) (func() error, error) {
	sub, err := t.Conn.Subscribe(subject, func(m *nats.Msg) {
		handle(agh.Message{Subject: m.Subject, Reply: m.Reply, Data: m.Data})
	})
	if err != nil {
		return nil, err
	}
	// The subscription is with the server before the first greeting is.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := t.Conn.FlushWithContext(ctx); err != nil {
		return nil, err
	}
	return sub.Unsubscribe, nil
}

// OnReconnect implements [agh.Reconnecter]. It takes over the reconnect
// handler of Conn, calling the one that was set before.
func (t *Transport) OnReconnect(do func()) {
	t.mu.Lock()
	t.back = append(t.back, do)
	t.mu.Unlock()
	t.once.Do(func() {
		before := t.Conn.Opts.ReconnectedCB
		t.Conn.SetReconnectHandler(func(nc *nats.Conn) {
			if before != nil {
				before(nc)
			}
			t.mu.Lock()
			back := t.back
			t.mu.Unlock()
			for _, do := range back {
				do()
			}
		})
	})
}
