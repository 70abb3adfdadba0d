package aghnats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/agh"
)

// streamName is the JetStream stream of the binding page.
const streamName = "AGH_NETWORK_V0"

// EnsureStream makes the stream AGH_NETWORK_V0 over agh.network.v0.> on an
// operator's NATS, or leaves the one that is there. Messages are kept for
// maxAge; 0 keeps them until the server's limits.
func EnsureStream(ctx context.Context, nc *nats.Conn, maxAge time.Duration) error {
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: streamName, Subjects: []string{agh.SubjectPrefix + ".>"},
		Retention: jetstream.LimitsPolicy, MaxAge: maxAge, MaxMsgSize: 1 << 20})
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("aghnats: %w", err)
	}
	return nil
}

// consume reads the stream by a durable consumer. A message is acknowledged
// when it was dealt with: recorded, refused, or known already. One that could
// not be dealt with now comes again, with its id.
func (g *Gateway) consume() error {
	js, err := jetstream.New(g.nc)
	if err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	ctx, cancel := context.WithTimeout(g.ctx, 5*time.Second)
	defer cancel()
	consumer, err := js.CreateOrUpdateConsumer(ctx, streamName,
		jetstream.ConsumerConfig{Durable: g.Durable, AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	consuming, err := consumer.Consume(func(m jetstream.Msg) {
		g.enqueue(m.Subject(), job{subject: m.Subject(), data: m.Data(), finished: func(res agh.Result) {
			var e *agh.Error
			if errors.As(res.Err, &e) && e.Retryable {
				g.logged(m.NakWithDelay(time.Second))
				return
			}
			g.logged(m.Ack())
		}})
	})
	if err != nil {
		return fmt.Errorf("aghnats: %w", err)
	}
	g.stopJS = consuming.Stop
	return nil
}
