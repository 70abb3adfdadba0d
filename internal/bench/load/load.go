// Package load is a cheap HTTP/1.1 load generator.
//
// It runs in the process of the server that it measures, on the same cores,
// so what it spends is missing there: requests are rendered before the clock
// starts, connections are kept, responses are read with as little parsing as
// HTTP allows. The same generator measures Parley and the floors of package
// floor, which makes the two comparable.
//
// It is a closed loop: each connection has one request at a time and sends the
// next when the answer is there.
package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Request is one rendered request.
type Request struct {
	bytes []byte
	head  bool
}

// NewRequest renders a request to host ("127.0.0.1:8080"). Host and
// Content-Length are added; header must not have them.
func NewRequest(method, host, path string, header http.Header, body []byte) *Request {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, host)
	_ = header.Write(&b) // to memory
	if len(body) > 0 || method == http.MethodPost || method == http.MethodPut {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	b.Write(body)
	return &Request{bytes: b.Bytes(), head: method == http.MethodHead}
}

// Config says what to send. Count or Duration must be set; the first that is
// reached ends the run.
type Config struct {
	URL         string // "http://127.0.0.1:8080"; its path is not used
	Connections int    // 0 means 1

	// Requests gives the request number i, from 0, and nil to end the run.
	// Connections call it at the same time, each number once, warm-up first.
	Requests func(i int) *Request

	Warmup   int           // how many requests go before the clock starts; 0, or one for each connection at least
	Count    int           // how many are measured
	Duration time.Duration // how long is measured

	// Timeout bounds one exchange; 0 means 30 s.
	Timeout time.Duration

	// Check judges a response; nil takes every 2xx. body is valid during the
	// call only.
	Check func(status int, body []byte) error
}

// Result is what was measured. Latencies are from the first byte sent to the
// last byte received, of exchanges that succeeded.
type Result struct {
	Requests   int // that succeeded
	Failed     int
	FirstError error // of those that failed
	Elapsed    time.Duration
	Throughput float64 // Requests a second

	P50, P90, P99, Max time.Duration

	// CPU is what the whole process spent, user and system: the server and
	// the generator. 0 where the system does not tell.
	CPU           time.Duration
	CPUPerRequest time.Duration
}

// openAtOnce is how many connections are open that have brought nothing yet.
const openAtOnce = 64

// maxBody bounds a response.
const maxBody = 16 << 20

// Run sends requests until c ends the run or ctx does. The error is about the
// run; failed exchanges are in the result.
func Run(ctx context.Context, c Config) (Result, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" || u.Host == "" {
		return Result{}, fmt.Errorf("load: %q is not an http URL", c.URL)
	}
	if c.Requests == nil || c.Count <= 0 && c.Duration <= 0 {
		return Result{}, errors.New("load: Requests and Count or Duration must be set")
	}
	if c.Connections <= 0 {
		c.Connections = 1
	}
	if c.Timeout <= 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Check == nil {
		c.Check = checkStatus
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), "80")
	}
	if c.Warmup > 0 {
		c.Warmup = max(c.Warmup, c.Connections)
	}
	r := &run{Config: c, address: address}
	loop := func(w *worker) {
		for w.send(ctx) {
		}
	}
	workers := make([]*worker, c.Connections)
	for i := range workers {
		workers[i] = &worker{run: r}
		defer workers[i].close()
	}
	// A server may close connections that bring nothing when there are many: each
	// brings its first request before more are opened, as a client's do.
	for some := range slices.Chunk(workers, openAtOnce) {
		for _, w := range some {
			if err := w.connect(ctx); err != nil {
				return Result{}, fmt.Errorf("load: %w", err)
			}
		}
		if c.Warmup > 0 {
			r.all(ctx, some, func(w *worker) { w.send(ctx) })
		}
	}
	if c.Warmup > 0 {
		r.limit = int64(c.Warmup)
		r.all(ctx, workers, loop)
		for _, w := range workers {
			if w.failed > 0 {
				return Result{}, fmt.Errorf("load: warm-up: %w", w.firstError)
			}
			w.latencies = w.latencies[:0]
		}
		r.next.Store(r.limit) // each worker took one number too many
	}
	r.limit = 0
	if c.Count > 0 {
		r.limit = int64(c.Warmup + c.Count)
	}
	cpu, start := cpuTime(), time.Now()
	if c.Duration > 0 {
		r.end = start.Add(c.Duration)
	}
	r.all(ctx, workers, loop)
	elapsed := time.Since(start)
	if err := ctx.Err(); err != nil {
		return Result{}, fmt.Errorf("load: %w", err)
	}
	return summary(workers, elapsed, cpuTime()-cpu), nil
}

func checkStatus(status int, body []byte) error {
	if status < 200 || status > 299 {
		return fmt.Errorf("status %d: %.200q", status, body)
	}
	return nil
}

type run struct {
	Config
	address string
	limit   int64 // first number not to send; 0 for none
	end     time.Time
	next    atomic.Int64
}

// all lets workers do something at the same time.
func (r *run) all(ctx context.Context, workers []*worker, do func(*worker)) {
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() {
			// A cancelled run does not wait for answers.
			stop := context.AfterFunc(ctx, w.close)
			defer stop()
			do(w)
		})
	}
	wg.Wait()
}

// worker is one connection.
type worker struct {
	*run
	mu         sync.Mutex // guards conn against close
	conn       net.Conn
	in         *bufio.Reader
	body       []byte
	latencies  []time.Duration
	failed     int
	firstError error
}

func (w *worker) connect(ctx context.Context) error {
	conn, err := (&net.Dialer{Timeout: w.Timeout}).DialContext(ctx, "tcp", w.address)
	if err != nil {
		return err
	}
	w.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn, w.in = conn, bufio.NewReaderSize(conn, 8<<10)
	return nil
}

func (w *worker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		_ = w.conn.Close()
	}
}

// send sends the next request. It reports false where the phase is over.
func (w *worker) send(ctx context.Context) bool {
	i := w.next.Add(1) - 1
	start := time.Now()
	if ctx.Err() != nil || w.limit > 0 && i >= w.limit || !w.end.IsZero() && !start.Before(w.end) {
		return false
	}
	req := w.Requests(int(i))
	if req == nil {
		return false
	}
	keep, err := w.exchange(req, start)
	if err == nil {
		w.latencies = append(w.latencies, time.Since(start))
	} else {
		w.failure(err)
	}
	if !keep {
		if err := w.connect(ctx); err != nil {
			w.failure(err)
			return false
		}
	}
	return true
}

func (w *worker) failure(err error) {
	w.failed++
	if w.firstError == nil {
		w.firstError = err
	}
}

// exchange sends one request and reads its response. It reports whether the
// connection can go on.
func (w *worker) exchange(req *Request, now time.Time) (keep bool, err error) {
	if err := w.conn.SetDeadline(now.Add(w.Timeout)); err != nil {
		return false, err
	}
	if _, err := w.conn.Write(req.bytes); err != nil {
		return false, err
	}
	status, keep, err := w.response(req.head)
	if err != nil {
		return false, err
	}
	return keep, w.Check(status, w.body)
}

var errResponse = errors.New("load: malformed response")

// response reads one response, its body into w.body.
func (w *worker) response(head bool) (status int, keep bool, err error) {
	for {
		length, chunked := int64(-1), false
		if status, err = w.statusLine(); err != nil {
			return 0, false, err
		}
		keep = true
		for {
			line, err := w.line()
			if err != nil {
				return 0, false, err
			}
			if len(line) == 0 {
				break
			}
			name, value, ok := bytes.Cut(line, []byte(":"))
			if !ok {
				return 0, false, errResponse
			}
			value = bytes.TrimSpace(value)
			switch {
			case equalFold(name, "content-length"):
				if length, err = strconv.ParseInt(string(value), 10, 64); err != nil || length < 0 || length > maxBody {
					return 0, false, errResponse
				}
			case equalFold(name, "transfer-encoding"):
				chunked = equalFold(value, "chunked")
			case equalFold(name, "connection"):
				keep = !equalFold(value, "close")
			}
		}
		if status < 200 {
			continue // an interim response
		}
		w.body = w.body[:0]
		switch {
		case head || status == http.StatusNoContent || status == http.StatusNotModified:
		case chunked:
			err = w.chunks()
		case length >= 0:
			err = w.read(int(length))
		default:
			keep = false
			w.body, err = io.ReadAll(io.LimitReader(w.in, maxBody))
		}
		return status, keep, err
	}
}

func (w *worker) statusLine() (int, error) {
	line, err := w.line()
	if err != nil {
		return 0, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, errResponse
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil || status < 100 {
		return 0, errResponse
	}
	return status, nil
}

// line reads a line; it is valid until the next read.
func (w *worker) line() ([]byte, error) {
	b, err := w.in.ReadSlice('\n')
	if err != nil {
		return nil, err
	}
	return bytes.TrimRight(b, "\r\n"), nil
}

// read appends n bytes to w.body.
func (w *worker) read(n int) error {
	at := len(w.body)
	w.body = slices.Grow(w.body, n)[:at+n]
	_, err := io.ReadFull(w.in, w.body[at:])
	return err
}

func (w *worker) chunks() error {
	for {
		line, err := w.line()
		if err != nil {
			return err
		}
		n, err := strconv.ParseUint(string(line), 16, 32)
		if err != nil || int(n)+len(w.body) > maxBody {
			return errResponse
		}
		if n == 0 {
			break
		}
		if err := w.read(int(n)); err != nil {
			return err
		}
		line, err = w.line()
		if err != nil {
			return err
		}
		if len(line) != 0 {
			return errResponse
		}
	}
	for { // trailers
		line, err := w.line()
		if err != nil || len(line) == 0 {
			return err
		}
	}
}

func equalFold(b []byte, s string) bool {
	return len(b) == len(s) && bytes.EqualFold(b, []byte(s))
}

func summary(workers []*worker, elapsed, cpu time.Duration) Result {
	r := Result{Elapsed: elapsed, CPU: cpu}
	var all []time.Duration
	for _, w := range workers {
		all = append(all, w.latencies...)
		r.Failed += w.failed
		if r.FirstError == nil {
			r.FirstError = w.firstError
		}
	}
	r.Requests = len(all)
	if r.Requests == 0 {
		return r
	}
	slices.Sort(all)
	r.Throughput = float64(r.Requests) / elapsed.Seconds()
	r.P50, r.P90, r.P99, r.Max = Quantile(all, 0.5), Quantile(all, 0.9), Quantile(all, 0.99), all[len(all)-1]
	r.CPUPerRequest = cpu / time.Duration(r.Requests)
	return r
}

// Quantile is the smallest value that a share q of all does not exceed.
func Quantile(sorted []time.Duration, q float64) time.Duration {
	i := int(math.Ceil(q*float64(len(sorted)) - 1e-9))
	return sorted[min(max(i, 1), len(sorted))-1]
}
