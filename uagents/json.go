package uagents

import (
	"mime"
	"net/http"
	"strconv"
)

// onlyJSON refuses bodies of another media type than JSON. A web page may send
// those to any address without asking first.
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

// writeDetail is [WriteError] for the Agentverse's own APIs, whose clients read
// the member detail.
func writeDetail(w http.ResponseWriter, err error) {
	e := AsError(err)
	retryAfter(w, e)
	n := object("detail", e.Text)
	n.set("error", str(e.Text))
	writeJSON(w, e.status, n)
}
