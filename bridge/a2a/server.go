package a2a

import "net/http"

// ServeHTTP serves the cards and endpoints of all exposed agents.
func (b *Binding) ServeHTTP(w http.ResponseWriter, r *http.Request) { http.NotFound(w, r) }
