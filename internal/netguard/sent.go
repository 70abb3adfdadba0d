package netguard

import (
	"errors"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// Do is c.Do for a request that must not be repeated once its peer may have it:
// [NotSent] tells from the error whether it may.
func Do(c *http.Client, r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // Do must close it; the end of the context matters more than an error here
		}
		return nil, &unsentError{err}
	}
	var sent atomic.Bool
	sent.Store(true) // a transport that does not report its connections may have sent it
	resp, err := c.Do(r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
		// net/http asks for another connection only if the first one took
		// nothing, if the request may be repeated, or if it was redirected.
		GetConn:          func(string) { sent.Store(false) },
		WroteHeaderField: func(string, []string) { sent.Store(true) },
	})))
	if err != nil && !sent.Load() {
		err = &unsentError{err}
	}
	return resp, err
}

// NotSent reports that a request of [Do] failed before a byte of it was sent:
// its address is not allowed, no connection was made, or its context ended
// before there was one.
func NotSent(err error) bool {
	return errors.As(err, new(*unsentError)) || errors.Is(err, ErrBlocked)
}

// unsentError marks the error of a request that was not sent.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }
