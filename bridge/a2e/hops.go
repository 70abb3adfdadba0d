package a2e

import (
	protocol "github.com/parley-hub/parley/a2e"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// hopsOf gives the hubs that a request has passed, where another hub made it:
// see provenanceOf.
func hopsOf(r *protocol.Request) []string {
	var metadata struct {
		Parley jsonx.Value `json:"parley"`
	}
	v := r.Get("metadata")
	if len(v) == 0 || jsonx.Decode(v, &metadata) != nil {
		return nil
	}
	return bridge.HopsOf(metadata.Parley)
}
