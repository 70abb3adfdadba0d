package a2e

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
)

// benchLine is a tool/call/req of 300 bytes as an SDK agent sends it.
const benchLine = `{"type":"tool/call/req","id":"44444444444444444444444444444444","version":"1.0","ts":1716123457.1,"session_id":"33333333333333333333333333333333","tool_name":"weather","arguments":{"city":"Bern","days":3,"units":"metric","note":"abcdefghij"},"correlation_id":"5f5f5f5f","streaming":true,"timeout":60}`

// loop repeats one line for ever.
type loop struct {
	line []byte
	at   int
}

func (l *loop) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		c := copy(p[n:], l.line[l.at:])
		n += c
		if l.at += c; l.at == len(l.line) {
			l.at = 0
		}
	}
	return n, nil
}

// BenchmarkFraming is one message read, decoded and validated.
func BenchmarkFraming(b *testing.B) {
	if len(benchLine) != 300 {
		b.Fatal(len(benchLine))
	}
	r := NewReader(&loop{line: []byte(benchLine + "\n")})
	b.SetBytes(300)
	b.ReportAllocs()
	for b.Loop() {
		m, err := r.ReadMessage(nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := m.Check(); err != nil {
			b.Fatal(err)
		}
	}
}

// echoHost is a host whose only tool gives its arguments back.
func echoHost() *Host {
	box := &Toolbox{}
	box.Add(ToolDefinition{Name: "weather"}, func(_ context.Context, c *ToolCall) (any, error) {
		return c.Arguments,
			nil
	})
	return &Host{Auth: Anonymous("bench"), Capabilities: map[string]Provider{"tools": ServeTools(box)}}
}

func listen(b *testing.B) net.Listener {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	return l
}

// BenchmarkEchoTCP is the floor of BenchmarkCallTCP: a bare echo of JSON lines,
// decoded and encoded by encoding/json on both sides, over the same transport.
func BenchmarkEchoTCP(b *testing.B) {
	l := listen(b)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		r, out := bufio.NewReader(conn), json.NewEncoder(conn)
		for {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			var v map[string]any
			if json.Unmarshal(line, &v) != nil || out.Encode(v) != nil {
				return
			}
		}
	}()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	r, out := bufio.NewReader(conn), json.NewEncoder(conn)
	var request map[string]any
	if err := json.Unmarshal([]byte(benchLine), &request); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := out.Encode(request); err != nil {
			b.Fatal(err)
		}
		line, err := r.ReadBytes('\n')
		if err != nil {
			b.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(line, &v); err != nil {
			b.Fatal(err)
		}
	}
}

var benchArguments = json.RawMessage(`{"city":"Bern","days":3,"units":"metric","note":"abcdefghij"}`)

// callOnce is one tool call by the client.
func callOnce(b *testing.B, c *Client) {
	if _, err := c.CallTool(context.Background(), "weather", benchArguments, nil); err != nil {
		b.Error(err)
	}
}

func benchClient(b *testing.B, c *Client, parallel int) {
	b.Helper()
	defer func() { _ = c.Close() }()
	if err := c.Connect(context.Background()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	if parallel <= 1 {
		for b.Loop() {
			callOnce(b, c)
		}
	} else {
		b.SetParallelism(parallel)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				callOnce(b, c)
			}
		})
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
}

// BenchmarkCallTCP is a tool call over TCP: client, host and tool.
func BenchmarkCallTCP(b *testing.B) {
	for _, parallel := range []int{1, 16} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			l := listen(b)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() { _ = echoHost().Serve(ctx, l) }()
			benchClient(b, &Client{URL: "tcp://" + l.Addr().String()}, parallel)
		})
	}
}

// BenchmarkCallPipes is a tool call over the pipes of a child process.
func BenchmarkCallPipes(b *testing.B) {
	for _, parallel := range []int{1, 16} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			r1, w1, err := os.Pipe()
			if err != nil {
				b.Fatal(err)
			}
			r2, w2, err := os.Pipe()
			if err != nil {
				b.Fatal(err)
			}
			go func() { _ = echoHost().ServeStdio(context.Background(), r1, w2) }()
			benchClient(b, &Client{Dial: func(context.Context) (io.ReadWriteCloser, error) {
				return pipeEnds{r2, w1},
					nil
			}}, parallel)
		})
	}
}

type pipeEnds struct {
	io.ReadCloser
	out io.WriteCloser
}

func (p pipeEnds) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p pipeEnds) Close() error                { return errors.Join(p.out.Close(), p.ReadCloser.Close()) }

// BenchmarkCallHTTP is a tool call over HTTP + SSE.
func BenchmarkCallHTTP(b *testing.B) {
	for _, parallel := range []int{1, 16} {
		b.Run(fmt.Sprint(parallel), func(b *testing.B) {
			srv := httptest.NewServer(echoHost())
			defer srv.Close()
			benchClient(b, &Client{URL: srv.URL, HTTP: srv.Client()}, parallel)
		})
	}
}

// BenchmarkHost is the host alone: a request in, its answer in the queue.
func BenchmarkHost(b *testing.B) {
	h := echoHost()
	s, err := h.open("bench", transportStdio)
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	s.receive([]byte(`{"type":"handshake/req","id":"h"}`), false)
	st := newStream(b.Context())
	if err := s.attach(st, nil); err != nil {
		b.Fatal(err)
	}
	var n atomic.Int64
	var batch [16]outFrame
	b.ReportAllocs()
	for b.Loop() {
		line := fmt.Appendf(nil, `{"type":"tool/call/req","id":"%d","tool_name":"weather","arguments":{"city":"Bern"}}`,
			n.Add(1))
		s.receive(line, false)
		got, err := s.next(context.Background(), st, batch[:])
		if err != nil {
			b.Fatal(err)
		}
		s.wrote(st, batch[:got])
	}
}

var _ io.Reader = (*loop)(nil)
