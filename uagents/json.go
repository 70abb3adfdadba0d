package uagents

import (
	"mime"
	"net/http"
	"strconv"
)

// onlyJSON refuses bodies of other media types than JSON: a web page may send those to
// any address without a CORS preflight.
func onlyJSON(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost || r.Method == http.MethodPut {
			if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
				writeDetail(w, ErrMediaType)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// writeJSON answers in the reference's JSON style.
func writeJSON(w http.ResponseWriter, status int, n *node) {
	b, err := pyDefault.write(nil, n)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"error": "internal error"}`)
	}
	writeBody(w, status, b)
}

func writeBody(w http.ResponseWriter, status int, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	w.Write(b)
}

// An answerer gives the answer to a request, or an error.
type answerer func(w http.ResponseWriter, r *http.Request) (*node, error)

// ServeHTTP implements http.Handler. Errors are written by [writeDetail].
func (f answerer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if n, err := f(w, r); err != nil {
		writeDetail(w, err)
	} else {
		writeJSON(w, http.StatusOK, n)
	}
}

// withBody makes an [answerer] of a function that gets the parsed body of at most max
// bytes.
func withBody(max int, f func(r *http.Request, body *node) (*node, error)) answerer {
	return func(w http.ResponseWriter, r *http.Request) (*node, error) {
		b, err := readBody(w, r, max)
		if err != nil {
			return nil, err
		}
		n, err := parse(b)
		if err != nil {
			return nil, ErrMalformed.Because(err)
		}
		return f(r, n)
	}
}

// nothing is the answer {}.
func nothing() *node { return &node{kind: '{'} }

// noSuchPath answers requests for paths that an API does not have.
func noSuchPath(http.ResponseWriter, *http.Request) (*node, error) { return nil, ErrNotFound }

// writeDetail is [WriteError] for the Agentverse's own APIs, whose clients read
// the member detail.
func writeDetail(w http.ResponseWriter, err error) {
	e := AsError(err)
	retryAfter(w, e)
	n := object("detail", e.Text)
	n.set("error", str(e.Text))
	writeJSON(w, e.status, n)
}
