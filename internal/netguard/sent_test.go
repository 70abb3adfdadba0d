package netguard

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"testing"
)

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestNotSent(t *testing.T) {
	t.Parallel()
	refuse := errors.New("refused")
	answers := func(h http.HandlerFunc, tls bool) (*httptest.Server, *http.Client) {
		s := httptest.NewUnstartedServer(h)
		s.EnableHTTP2 = tls
		if tls {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(s.Close)
		return s, s.Client()
	}
	cut := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	dialled := func(dial func() error) *http.Client {
		return &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn,
			error) {
			return nil, dial()
		}}}
	}
	for _, x := range []struct {
		name string
		want bool
		call func(ctx context.Context, leave context.CancelFunc) (*http.Client, string)
	}{
		{"unused address", true, func(context.Context, context.CancelFunc) (*http.Client, string) {
			return dialled(func() error { return refuse }), "http://peer.test"
		}},
		{"the caller left before", true, func(_ context.Context, leave context.CancelFunc) (*http.Client, string) {
			s, c := answers(cut, false)
			leave()
			return c, s.URL
		}},
		{"the caller leaves during the dial", true, func(ctx context.Context, leave context.CancelFunc) (*http.Client,
			string) {
			return dialled(func() error { leave(); return ctx.Err() }), "http://peer.test"
		}},
		{"the certificate is refused", true, func(context.Context, context.CancelFunc) (*http.Client, string) {
			s, _ := answers(cut, true)
			c := &http.Client{Transport: &http.Transport{}}
			t.Cleanup(c.CloseIdleConnections)
			return c, s.URL
		}},
		{"the caller leaves while all connections are in use", true,
			func(_ context.Context, leave context.CancelFunc) (*http.Client, string) {
				entered, end := make(chan struct{}), make(chan struct{})
				s, c := answers(func(http.ResponseWriter, *http.Request) { close(entered); <-end }, false)
				c.Transport.(*http.Transport).MaxConnsPerHost = 1
				go func() {
					if resp, err := c.Get(s.URL); err == nil {
						_ = resp.Body.Close()
					}
				}()
				t.Cleanup(func() { close(end) })
				<-entered
				base := c.Transport
				return &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
					waits := &httptrace.ClientTrace{GetConn: func(string) { leave() }}
					return base.RoundTrip(r.WithContext(httptrace.WithClientTrace(r.Context(), waits)))
				})}, s.URL
			}},
		{"an address that is not allowed", true, func(context.Context, context.CancelFunc) (*http.Client, string) {
			return (*Guard)(nil).Client(Options{}), "http://10.1.2.3"
		}},
		{"redirected to an unused address", true, func(context.Context, context.CancelFunc) (*http.Client, string) {
			s, c := answers(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://"+unusedAddress(t), http.StatusTemporaryRedirect)
			}, false)
			return c, s.URL
		}},
		{"cut off", false, func(context.Context, context.CancelFunc) (*http.Client, string) {
			s, c := answers(cut, false)
			return c, s.URL
		}},
		{"cut off, over HTTP/2", false, func(context.Context, context.CancelFunc) (*http.Client, string) {
			s, c := answers(cut, true)
			return c, s.URL
		}},
		{"the caller leaves when the peer has it", false, func(_ context.Context,
			leave context.CancelFunc) (*http.Client, string) {
			s, c := answers(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // only then the server notices that the client is gone
				leave()
				<-r.Context().Done()
			}, false)
			return c, s.URL
		}},
		{"a transport that reports nothing", false, func(context.Context, context.CancelFunc) (*http.Client, string) {
			return &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
				return nil,
					io.EOF
			})}, "http://peer.test"
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			c, url := x.call(ctx, leave)
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte("content")))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := Do(c, r)
			if err == nil {
				_ = resp.Body.Close()
			}
			if err == nil || NotSent(err) != x.want {
				t.Errorf("not sent: %t, %v", NotSent(err), err)
			}
		})
	}
}

// unusedAddress gives an address at which no server listens.
func unusedAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
