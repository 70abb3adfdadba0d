package floor

import (
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

	"github.com/parley-hub/parley/internal/bench/load"
)

// AGH is the floor of work that an AGH peer gives to a handler: a bare NATS
// request and its reply, each recorded by one append before it goes on.
// Every connection has one request at a time.
func AGH(ctx context.Context, c Config) (load.Result, error) {
	return c.withAppender(func(a *Appender) (load.Result, error) {
		front, hub, stop, err := startNATS("floor-agh")
		if err != nil {
			return load.Result{}, err
		}
		defer stop()
		var under sync.WaitGroup
		_, err = hub.Subscribe("floor.work", func(m *nats.Msg) {
			under.Go(func() {
				var q struct {
					ID   string `json:"id"`
					Body struct {
						Text string `json:"text"`
					} `json:"body"`
				}
				if json.Unmarshal(m.Data, &q) != nil || a.Append(ctx, m.Data) != nil {
					return
				}
				answer := []byte(`{"reply_to":"` + q.ID + `","body":{"state":"completed","result":{"ok":true}}}`)
				if a.Append(ctx, answer) == nil {
					_ = m.Respond(answer) // the requester times out
				}
			})
		})
		if err != nil {
			return load.Result{}, err
		}
		conns := make([]*nats.Conn, c.Connections)
		for i := range conns {
			if conns[i], err = nats.Connect(front.ClientURL()); err != nil {
				return load.Result{}, err
			}
			defer conns[i].Close()
		}
		text := strings.Repeat("x", c.Payload-60)
		r := load.Do(ctx, c.Connections, time.Second/2, c.Duration, func(_ context.Context, w, i int) error {
			_, err := conns[w].Request("floor.work", []byte(`{"id":"`+strconv.Itoa(i)+`","body":{"text":"`+text+`"}}`),
				30*time.Second)
			return err
		})
		under.Wait()
		return r, ctx.Err()
	})
}

// startNATS starts a NATS server on a free port, and connects to it in the process.
func startNATS(name string) (front *server.Server, inside *nats.Conn, stop func(), err error) {
	front, err = server.NewServer(&server.Options{ServerName: name, Host: "127.0.0.1", Port: server.RANDOM_PORT,
		NoLog: true, NoSigs: true})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("floor: %w", err)
	}
	front.Start()
	end := func() { front.Shutdown(); front.WaitForShutdown() }
	if !front.ReadyForConnections(10 * time.Second) {
		end()
		return nil, nil, nil, errors.New("floor: the NATS server does not get ready")
	}
	if inside, err = nats.Connect("", nats.InProcessServer(front)); err != nil {
		end()
		return nil, nil, nil, fmt.Errorf("floor: %w", err)
	}
	return front, inside, func() { inside.Close(); end() }, nil
}
