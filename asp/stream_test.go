package asp

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// away is a server whose streams break: each try of one takes the next entry of
// tries, how long the stream is open; below 0 the server is not there.
type away struct {
	tries []time.Duration
	ended []time.Time // of tries
	began []time.Time
	stop  context.CancelFunc
}

func (a *away) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(body io.ReadCloser) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Body: body, Request: r}, nil
	}
	if r.URL.Path == "/oauth/token" {
		return answer(io.NopCloser(strings.NewReader(`{"access_token":"t","expires_in":36000}`)))
	}
	a.began = append(a.began, time.Now())
	if len(a.began) > len(a.tries) {
		a.stop()
		return nil, r.Context().Err()
	}
	try := a.tries[len(a.began)-1]
	if try < 0 {
		a.ended = append(a.ended, time.Now())
		return nil, errors.New("connection refused")
	}
	return answer(io.NopCloser(readFunc(func([]byte) (int, error) {
		<-time.After(try)
		a.ended = append(a.ended, time.Now())
		return 0, io.ErrUnexpectedEOF
	})))
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

// TestStreamPauses: who comes back to a server that restarts again and again
// is there again soon after each time.
func TestStreamPauses(t *testing.T) {
	const gone = -1
	ms := func(list ...int) (out []time.Duration) {
		for _, n := range list {
			out = append(out, time.Duration(n)*time.Millisecond)
		}
		return out
	}
	for name, c := range map[string]struct{ tries, pauses []time.Duration }{
		"away":               {[]time.Duration{gone, gone, gone, gone, gone, gone, gone, gone, gone, gone, gone}, ms(100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000)},
		"restarts":           {[]time.Duration{2 * time.Second, gone, gone, gone, time.Minute, gone, 2 * time.Second, gone}, ms(100, 200, 400, 800, 100, 200, 100, 200)},
		"killed early":       {[]time.Duration{gone, gone, gone, gone, gone, gone, 300 * time.Millisecond, gone, 300 * time.Millisecond}, ms(100, 200, 400, 800, 1600, 3200, 1000, 2000, 1000)},
		"ends every stream":  {make([]time.Duration, 8), ms(100, 200, 400, 800, 1000, 1000, 1000, 1000)},
		"an hour, then ends": {[]time.Duration{time.Hour, 0, 0}, ms(100, 200, 400)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				server := &away{tries: c.tries, stop: cancel}
				client := &Client{Server: "http://hub.test", Identity: testIdentity(t, bobID, "org_widgets"), HTTP: &http.Client{Transport: server}}
				for _, err := range client.Invitations(ctx) {
					if !errors.Is(err, context.Canceled) {
						t.Fatal(err)
					}
				}
				for i, want := range c.pauses {
					if got := server.began[i+1].Sub(server.ended[i]); got != want {
						t.Errorf("after try %d it waited %s, want %s", i+1, got, want)
					}
				}
			})
		})
	}
}
