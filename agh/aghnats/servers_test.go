package aghnats

import (
	"slices"
	"testing"
)

// TestServers: a list of servers is shown without users and passwords, also of servers without a scheme.
func TestServers(t *testing.T) {
	got := Servers("nats://hub:secret@a.test:4222, tls://b.test:4443,,hub:secret@c.test:4222")
	want := []Server{{"nats://hub:secret@a.test:4222", "nats://a.test:4222"}, {"tls://b.test:4443", "tls://b.test:4443"},
		{"nats://hub:secret@c.test:4222", "nats://c.test:4222"}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	if got := Servers(""); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}
