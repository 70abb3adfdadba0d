package floor

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/decred/dcrd/dcrec/secp256k1/v4"
	"github.com/decred/dcrd/dcrec/secp256k1/v4/ecdsa"
	"github.com/go-json-experiment/json"

	"github.com/parley-hub/parley/internal/bench/load"
)

// Config says what to measure; all fields but Dir must be set.
type Config struct {
	Connections int // requests at once
	Payload     int // bytes of a request's body
	Storage     Storage
	Duration    time.Duration

	// Dir holds the records of Disk, in a new directory that is removed at
	// the end: choose the disk that the hub will use. "" means the system's
	// temporary directory, which is often in memory.
	Dir string
}

// withAppender calls measure with an appender in a directory of its own. No request may
// fail.
func (c Config) withAppender(measure func(a *Appender) (load.Result, error)) (_ load.Result, err error) {
	if c.Storage != Memory && c.Storage != Disk || c.Payload < minPayload || c.Connections < 1 || c.Duration <= 0 {
		return load.Result{}, fmt.Errorf("floor: %+v cannot be measured", c)
	}
	dir, err := os.MkdirTemp(c.Dir, "parley-floor-")
	if err != nil {
		return load.Result{}, fmt.Errorf("floor: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	a, err := NewAppender(c.Storage, dir)
	if err != nil {
		return load.Result{}, err
	}
	defer func() { err = errors.Join(err, a.Close()) }()
	r, err := measure(a)
	if err == nil && r.Failed > 0 {
		err = fmt.Errorf("%d requests failed, the first: %w", r.Failed, r.FirstError)
	}
	if err != nil {
		return load.Result{}, fmt.Errorf("floor: %w", err)
	}
	return r, nil
}

// Samvad is the floor of a signed SAMVAD request: digest, one Ed25519
// verification, decoding, appends.
func Samvad(ctx context.Context, c Config) (load.Result, error) {
	seed := sha256.Sum256([]byte("floor"))
	key := ed25519.NewKeyFromSeed(seed[:])
	pub := key.Public().(ed25519.PublicKey)
	return measure(ctx, c, scheme{
		sign:   func(base []byte) []byte { return ed25519.Sign(key, base) },
		verify: func(base, sig []byte) bool { return ed25519.Verify(pub, base, sig) },
	})
}

// UAgents is the floor of a signed uAgents envelope: digest, one secp256k1
// verification, decoding, appends.
func UAgents(ctx context.Context, c Config) (load.Result, error) {
	seed := sha256.Sum256([]byte("floor"))
	key := secp256k1.PrivKeyFromBytes(seed[:])
	pub := key.PubKey()
	return measure(ctx, c, scheme{
		sign: func(base []byte) []byte {
			d := sha256.Sum256(base)
			sig := ecdsa.Sign(key, d[:])
			r, s := sig.R(), sig.S()
			rb, sb := r.Bytes(), s.Bytes()
			return append(rb[:], sb[:]...)
		},
		verify: func(base, sig []byte) bool {
			d := sha256.Sum256(base)
			var r, s secp256k1.ModNScalar
			return len(sig) == 64 && !r.SetByteSlice(sig[:32]) && !s.SetByteSlice(sig[32:]) &&
				ecdsa.NewSignature(&r, &s).Verify(d[:], pub)
		},
	})
}

// scheme is how the messages of a path are signed.
type scheme struct {
	sign   func(base []byte) []byte
	verify func(base, sig []byte) bool
}

// presigned is how many different requests are made before the clock starts. They are
// sent in turn: unlike Parley, the floor has no replay check.
const presigned = 1024

const path = "/agent/message"

func measure(ctx context.Context, c Config, by scheme) (load.Result, error) {
	return c.withAppender(func(a *Appender) (load.Result, error) {
		mux := http.NewServeMux()
		mux.Handle("POST "+path, &handler{verify: by.verify, appender: a, maxBody: int64(c.Payload) + 1})
		return c.post(ctx, mux, func(host string, i int) []byte {
			body := payload(i, c.Payload)
			digest := contentDigest(body)
			signature := by.sign(signatureBase(http.MethodPost, path, digest))
			return load.NewRequest(http.MethodPost, host, path, http.Header{
				"Content-Type":   {"application/json"},
				"Content-Digest": {digest},
				"Signature":      {base64.StdEncoding.EncodeToString(signature)},
			}, body)
		}, func(status int, body []byte) error {
			if status != http.StatusOK {
				return fmt.Errorf("HTTP %d: %.200q", status, body)
			}
			return nil
		})
	})
}

// post measures requests to a server with this handler. render makes request i before the clock starts; answered
// refuses a wrong answer.
func (c Config) post(ctx context.Context, h http.Handler, render func(host string, i int) []byte,
	answered func(status int, body []byte) error) (load.Result, error) {
	s, host, err := serve(h)
	if err != nil {
		return load.Result{}, err
	}
	defer s.Close()
	requests := make([][]byte, presigned)
	for i := range requests {
		requests[i] = render(host, i)
	}
	conns := load.NewConns(host, c.Connections)
	defer conns.Close()
	r := load.Do(ctx, c.Connections, c.Duration/10, c.Duration, func(ctx context.Context, w, i int) error {
		status, body, err := conns.Exchange(ctx, w, requests[i%presigned])
		if err == nil {
			err = answered(status, body)
		}
		return err
	})
	return r, ctx.Err()
}

// token is the one that callers of the floors with an SDK show.
const token = "floor"

// forCallers serves a handler of an SDK at a path, to callers with the token.
func forCallers(path string, h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "token", http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	})
	return mux
}

// serve runs an HTTP server on a free port of the loopback until it is closed.
func serve(h http.Handler) (s *http.Server, host string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("floor: %w", err)
	}
	s = &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.Serve(l) }() // ends with Close
	return s, l.Addr().String(), nil
}

// envelope is the form of a request's body.
type envelope struct {
	From      string         `json:"from"`
	To        string         `json:"to"`
	Skill     string         `json:"skill"`
	Mode      string         `json:"mode"`
	Nonce     string         `json:"nonce"`
	Timestamp time.Time      `json:"timestamp"`
	TraceID   string         `json:"traceId"`
	SpanID    string         `json:"spanId"`
	Payload   map[string]any `json:"payload"`
}

// minPayload is the size of an envelope's members.
const minPayload = 400

// payload makes the body number i, of exactly size bytes.
func payload(i, size int) []byte {
	e := fmt.Sprintf(`{"from":"agent://client.test","to":"agent://weather.test","skill":"forecast","mode":"sync",`+
		`"nonce":"00000000-0000-4000-8000-%012d","timestamp":"2026-11-20T12:00:00.000Z",`+
		`"traceId":"4bf92f3577b34da6a3ce929d0e0e4736",`+
		`"spanId":"00f067aa0ba902b7","payload":{"city":"Bern","days":3,"hourly":true,"text":"`, i)
	const end = `"}}`
	return []byte(e + strings.Repeat("x", size-len(e)-len(end)) + end)
}

// contentDigest is the header of RFC 9530.
func contentDigest(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// signatureBase is a signature base like that of RFC 9421 §2.5 over three components.
func signatureBase(method, path, digest string) []byte {
	b := make([]byte, 0, 256)
	b = append(append(append(b, `"@method": `...), method...), '\n')
	b = append(append(append(b, `"@path": `...), path...), '\n')
	b = append(append(append(b, `"content-digest": `...), digest...), '\n')
	const params = `("@method" "@path" "content-digest");created=1795176000;keyid="floor";alg="ed25519"`
	return append(append(b, `"@signature-params": `...), params...)
}

// handler does the work of one message: it records the request, and the reply.
type handler struct {
	verify   func(base, sig []byte) bool
	appender *Appender
	maxBody  int64
	ids      atomic.Uint64
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := readBody(r, h.maxBody)
	if err != nil {
		http.Error(w, "body", http.StatusBadRequest)
		return
	}
	digest := contentDigest(body)
	if r.Header.Get("Content-Digest") != digest {
		http.Error(w, "digest", http.StatusBadRequest)
		return
	}
	sig, err := base64.StdEncoding.DecodeString(r.Header.Get("Signature"))
	if err != nil || !h.verify(signatureBase(r.Method, r.URL.Path, digest), sig) {
		http.Error(w, "signature", http.StatusUnauthorized)
		return
	}
	var e envelope
	if err := json.Unmarshal(body, &e); err != nil {
		http.Error(w, "envelope", http.StatusBadRequest)
		return
	}
	id := strconv.FormatUint(h.ids.Add(1), 36)
	if err := h.appender.Append(r.Context(), body); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	reply := []byte(`{"id":"` + id + `","status":"ok","traceId":"` + e.TraceID + `"}`)
	if err := h.appender.Append(r.Context(), reply); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(reply)))
	_, _ = w.Write(reply) // if this fails, the peer is gone
}

func readBody(r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength < 0 || r.ContentLength > limit {
		return nil, errors.New("floor: body without length, or too large")
	}
	b := bytes.NewBuffer(make([]byte, 0, r.ContentLength+bytes.MinRead))
	_, err := b.ReadFrom(io.LimitReader(r.Body, limit))
	return b.Bytes(), err
}
