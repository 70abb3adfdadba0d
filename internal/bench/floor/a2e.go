package floor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
)

// Echo is the floor of an A2E tool call: a line of JSON with an id and arguments is
// decoded at the far end of a transport, a line with the same two goes back, is
// decoded, and wakes its caller by the id.
type Echo struct {
	near, far io.ReadWriteCloser
	ends      sync.WaitGroup
	next      atomic.Int64
	arguments json.RawMessage

	writing sync.Mutex
	waiting sync.Map      // chan struct{}, closed by the answer, by id
	ended   chan struct{} // closed when answers are no longer read; err is why
	err     error
}

type echoRequest struct {
	ID        string          `json:"id"`
	Arguments json.RawMessage `json:"arguments"`
}

type echoResponse struct {
	ReqID string          `json:"req_id"`
	Data  json.RawMessage `json:"data"`
}

// NewEcho connects the two ends over "pipes", like those of a child process, or "tcp"
// on the loopback.
func NewEcho(ctx context.Context, transport string, arguments json.RawMessage) (*Echo, error) {
	e := &Echo{arguments: arguments, ended: make(chan struct{})}
	var err error
	switch transport {
	case "pipes":
		e.near, e.far, err = Pipes()
	case "tcp":
		e.near, e.far, err = loopback(ctx)
	default:
		err = fmt.Errorf("floor: no transport %q", transport)
	}
	if err != nil {
		return nil, err
	}
	e.ends.Go(e.answer)
	e.ends.Go(e.receive)
	return e, nil
}

// Call is one round trip. Calls may run at once.
func (e *Echo) Call() error {
	id := fmt.Sprintf("%032d", e.next.Add(1))
	b, err := json.Marshal(echoRequest{id, e.arguments})
	if err != nil {
		return err
	}
	done := make(chan struct{})
	e.waiting.Store(id, done)
	e.writing.Lock()
	_, err = e.near.Write(append(b, '\n'))
	e.writing.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-e.ended:
		return e.err
	}
}

// Close ends both ends.
func (e *Echo) Close() error {
	err := errors.Join(e.near.Close(), e.far.Close())
	e.ends.Wait()
	return err
}

func (e *Echo) answer() {
	in := bufio.NewScanner(e.far)
	for in.Scan() {
		var r echoRequest
		if json.Unmarshal(in.Bytes(), &r) != nil {
			return
		}
		b, err := json.Marshal(echoResponse{r.ID, r.Arguments})
		if err != nil {
			return
		}
		if _, err := e.far.Write(append(b, '\n')); err != nil {
			return
		}
	}
}

func (e *Echo) receive() {
	defer close(e.ended)
	e.err = errors.New("floor: the stream ended")
	in := bufio.NewScanner(e.near)
	for in.Scan() {
		var r echoResponse
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			e.err = err
			return
		}
		if !bytes.Equal(r.Data, e.arguments) {
			e.err = fmt.Errorf("floor: %s came back as %s", e.arguments, r.Data)
			return
		}
		if done, ok := e.waiting.LoadAndDelete(r.ReqID); ok {
			close(done.(chan struct{}))
		}
	}
}

// Duplex is one end of two pipes.
type Duplex struct{ In, Out *os.File }

func (d *Duplex) Read(p []byte) (int, error)  { return d.In.Read(p) }
func (d *Duplex) Write(p []byte) (int, error) { return d.Out.Write(p) }

// Close closes both.
func (d *Duplex) Close() error { return errors.Join(d.In.Close(), d.Out.Close()) }

// Pipes are like the standard input and output of a child process.
func Pipes() (near, far *Duplex, err error) {
	r1, w1, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	r2, w2, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(err, r1.Close(), w1.Close())
	}
	return &Duplex{r1, w2}, &Duplex{r2, w1}, nil
}

func loopback(ctx context.Context) (near, far net.Conn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if near, err = (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	if far, err = l.Accept(); err != nil {
		return nil, nil, errors.Join(err, near.Close())
	}
	return near, far, nil
}
