package agh

import (
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/internal/jsonx"
)

// What is written member by member is what an encoder would write.
func TestProvenanceIsWritten(t *testing.T) {
	full := provenance{Message: "m", Kind: "response", From: "crew/\"weather\"", Skill: "say\n", Act: "<b>",
		Protocol: "samvad", Peer: "agent://ä.example",
		Assurance: "signed", Key: "k\u2028", Proved: []string{"a", "b"}, Digest: "sha256:00", Hops: []string{"h"},
		Code: "x",
		Rest: bridge.Rest{Schema: "s", Sent: time.Unix(1776366000, 123456000).UTC()}}
	with := func(change func(*provenance)) *provenance {
		p := full
		change(&p)
		return &p
	}
	for i, p := range []*provenance{
		{}, &full,
		with(func(p *provenance) { p.Proved, p.Hops = []string{}, nil }),
		with(func(p *provenance) { p.Sent = time.Unix(1776366000, 0).UTC() }),
		with(func(p *provenance) { p.Audience = []string{"x"} }),
		with(func(p *provenance) { p.Conversation = parley.HashID([]byte("c")) }),
		with(func(p *provenance) { p.Retryable, p.RetryAfter = true, 1.5 }),
		with(func(p *provenance) { p.Deadline, p.Trace = p.Sent, "00" }),
		with(func(p *provenance) { p.From = "\xff" }),
	} {
		want, wantErr := jsonx.Encode(p)
		got, err := p.AppendJSON(nil)
		if (err != nil) != (wantErr != nil) || err == nil && string(got) != string(want) {
			t.Errorf("%d: %s, %v\nwant %s, %v", i, got, err, want, wantErr)
		}
	}
}
