package aghnats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/parley-hub/parley/agh"
)

// streamName is the JetStream stream of the binding page, over agh.network.v0.>.
const streamName = "AGH_NETWORK_V0"

// consume reads the stream by a durable consumer. A message is acknowledged once
// it is recorded, refused or found to be a duplicate. Otherwise the server
// redelivers it, with the same id.
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
