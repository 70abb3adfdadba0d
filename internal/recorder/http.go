package recorder

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
)

// shown are the headers whose values are kept. All others may be secrets: an operator may name
// the header of an API key.
var shown = map[string]bool{
	"A2a-Extensions": true, "A2a-Version": true, "Accept": true, "Content-Digest": true, "Content-Type": true,
	"Date": true, "Digest": true, "Mcp-Method": true, "Mcp-Name": true, "Mcp-Protocol-Version": true,
	"Parley-Provenance": true, "Signature": true, "Signature-Input": true, "Traceparent": true, "Tracestate": true,
	"User-Agent": true, "X-Uagents-Connection": true,
}

// RoundTrip is next, observed by the recorder of the request's context.
func RoundTrip(r *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	q := From(r.Context()).begin(r)
	if q == nil {
		return next(r)
	}
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{ConnectDone: q.dialled, GotConn: q.gotConn})
	resp, err := next(r.WithContext(ctx))
	q.answered(resp)
	if err == nil && resp.StatusCode != http.StatusSwitchingProtocols {
		resp.Body = &answerBody{ReadCloser: resp.Body, q: q}
	}
	return resp, err
}

// begin observes a request; nil: it is not to be observed.
func (r *Recorder) begin(req *http.Request) *request {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	ended, content := r.ended, r.content
	r.mu.Unlock()
	if ended {
		return nil
	}
	q := &request{r: r, url: req.URL}
	if req.Body == nil || req.Body == http.NoBody || req.Context().Value(asideKey{}) != nil {
		return q
	}
	q.carries = true
	q.look(req, content)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = q
	return q
}

// at is the address of a request: that of its connection, else the last one that was dialled, else
// the one that its URL names.
func (q *request) at() string {
	if q.address != "" || q.url == nil {
		return q.address
	}
	port := q.url.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[q.url.Scheme]
	}
	return net.JoinHostPort(q.url.Hostname(), port)
}

// look reads the body, which is in memory: those of all bindings can be read again.
func (q *request) look(req *http.Request, c Content) {
	q.size = int(max(req.ContentLength, 0))
	if req.GetBody == nil {
		return
	}
	body, err := req.GetBody()
	if err != nil {
		return
	}
	defer func() { _ = body.Close() }()
	h := sha256.New()
	var from io.Reader = body
	if c == All {
		head := head(req)
		kept := &prefix{b: head, most: max(maxSent, len(head))}
		defer func() { q.sent = kept.b }()
		from = io.TeeReader(body, kept)
	}
	n, err := io.Copy(h, from)
	if err != nil {
		return
	}
	q.size, q.digest = int(n), h.Sum(nil)
}

// head is the head of a request as it leaves over HTTP/1.1.
func head(r *http.Request) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", r.Method, r.URL.RequestURI(), cmp.Or(r.Host, r.URL.Host))
	if r.ContentLength > 0 {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", r.ContentLength)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		for _, v := range r.Header[name] {
			if !shown[http.CanonicalHeaderKey(name)] {
				v = masked
			}
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// A prefix keeps the first bytes that are written to it.
type prefix struct {
	b    []byte
	most int
}

func (p *prefix) Write(b []byte) (int, error) {
	p.b = append(p.b, b[:min(len(b), p.most-len(p.b))]...)
	return len(b), nil
}

func (q *request) dialled(_, address string, _ error) {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	if !q.connected {
		q.address = address
	}
}

func (q *request) gotConn(c httptrace.GotConnInfo) {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	q.connected, q.address, q.written = true, c.Conn.RemoteAddr().String(), q.r.now()
}

// answered notes the head of the answer; nil: there is none.
func (q *request) answered(resp *http.Response) {
	q.r.mu.Lock()
	defer q.r.mu.Unlock()
	if resp != nil {
		q.status = strings.TrimSpace(strconv.Itoa(resp.StatusCode) + " " + http.StatusText(resp.StatusCode))
	}
	failed := resp == nil || resp.StatusCode >= 400
	if !q.carries && failed && !q.r.ended && (q.r.last == nil || !q.r.last.carries) {
		q.r.last = q
	}
}

// answerBody keeps the first bytes of an answer while they are read. It holds nothing up: an
// answer may be a stream.
type answerBody struct {
	io.ReadCloser
	q    *request
	done bool
}

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if !b.done && n > 0 {
		b.q.r.mu.Lock()
		b.done = !b.q.keep(p[:n])
		b.q.r.mu.Unlock()
	}
	return n, err
}
