package attack

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// A Shape is the part of a request that a client sends before it falls silent and
// holds its connection.
type Shape string

// The shapes.
const (
	Silent    Shape = "silent"     // not a byte
	Header    Shape = "header"     // a part of a header
	Claim     Shape = "claim"      // a header that claims 1 MiB, and one byte of it
	KeepAlive Shape = "keep-alive" // an answered request, and no other
)

// Shapes are all shapes.
var Shapes = []Shape{Silent, Header, Claim, KeepAlive}

// Connections holds n connections until the context ends, to the protocol
// listener or the admin listener. A client whose connection is closed connects again
// after [Config.Reopen]. Connections held at the end count as taken, connections closed
// without an answer as broken.
func (a *Attack) Connections(ctx context.Context, n int, s Shape, admin bool) Result {
	base, get, claim := a.c.Hub, "/health", pathAgents
	if admin {
		base, get, claim = a.c.Admin, "/v1/health", "/v1/messages"
	}
	return a.hold(ctx, n, base, func(int) []byte { return opening(s, base, get, claim) }, s == KeepAlive)
}

// Claims sends requests that announce a body of 1 MiB and send one byte of it, to
// endpoints that read a body.
func (a *Attack) Claims(ctx context.Context, n int, paths ...string) Result {
	return a.hold(ctx, n, a.c.Hub, func(i int) []byte { return opening(Claim, a.c.Hub, "", paths[i%len(paths)]) },
		false)
}

// ClaimPaths are endpoints that read a body before they know the sender.
// agent is the path of a SAMVAD agent: "/agents/worker".
func ClaimPaths(agent string) []string {
	return []string{agent + "/agent/message", agent + "/agent/task", agent + "/agent/stream",
		pathSubmit, pathAgents, pathAgents + "/batch", pathManifests, pathMailbox,
		"/v1/asp/agents", "/oauth/token", "/a2e/send"}
}

// claimed is the announced length of a body of one byte.
const claimed = 1 << 20

func opening(s Shape, base, get, claim string) []byte {
	host := strings.TrimPrefix(base, "http://")
	switch s {
	case Header:
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Ty", claim, host)
	case Claim:
		return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n{",
			claim, host, jsonType, claimed)
	case KeepAlive:
		return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", get, host)
	}
	return nil
}

// hold keeps n connections open; connection i sends first(i) and then waits.
func (a *Attack) hold(ctx context.Context, n int, base string, first func(i int) []byte, answered bool) Result {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		return Result{Err: errors.Join(err, errors.New("attack: there is no such listener"))}
	}
	var t tally
	var all sync.WaitGroup
	for i := range n {
		d := dialer(a.from[i%len(a.from)])
		all.Go(func() {
			for ctx.Err() == nil {
				a.holdOne(ctx, d, u.Host, first(i), answered, &t)
				wait(ctx, a.c.Reopen)
			}
		})
	}
	all.Wait()
	return t.r
}

// holdOne opens one connection and holds it until the hub closes it or the context ends.
func (a *Attack) holdOne(ctx context.Context, d *net.Dialer, host string, first []byte, answered bool, t *tally) {
	conn, err := d.DialContext(ctx, "tcp", host)
	if ctx.Err() != nil {
		if err == nil {
			conn.Close()
		}
		return
	}
	t.add(func(r *Result) {
		r.Sent++
		r.Bytes += int64(len(first))
		if err != nil {
			r.Broken++
		}
	})
	if err != nil {
		return
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	in := bufio.NewReader(conn)
	if _, err := conn.Write(first); err == nil && answered {
		if status, err := readStatus(in); err == nil && isLater(status) {
			t.add(func(r *Result) { r.answered(status) })
			return
		}
	}
	status, err := readStatus(in) // the answer that ends the connection
	t.add(func(r *Result) {
		switch {
		case ctx.Err() != nil:
			r.Taken++ // held to the end
		case err != nil:
			r.Broken++
		default:
			r.answered(status)
		}
	})
}

// readStatus reads one answer and gives its status.
func readStatus(in *bufio.Reader) (int, error) {
	answer, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(answer.Body, maxAnswer))
	return answer.StatusCode, err
}
