package aghnats

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/parley-hub/parley/agh"
)

// AGH-056: the server itself refuses publications and subscriptions in workspaces of
// others. An unmodified client gets the usual NATS error and keeps its connection,
// and the operator sees the refusal. A user of all workspaces is not restricted.
func TestServerRefusesForeignWorkspaces(t *testing.T) {
	type violation struct{ user, subject string }
	refusals := make(chan violation, 16)
	f := serve(t, func(g *Gateway) {
		g.Users = append(g.Users, User{Name: "admin", Token: "tx", Peers: []string{"*"}, Workspaces: []string{"*"}})
		g.Refused = func(user, subject string, _ []byte, res agh.Result) {
			if !errors.Is(res.Err, agh.ErrForbidden) {
				t.Errorf("%s: %v", subject, res.Err)
			}
			refusals <- violation{user, subject}
		}
	})
	failures := make(chan error, 16)
	eve := f.connect(t, nats.Token("te"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription,
		err error) {
		failures <- err
	}))
	alice, admin := f.alice(t), f.connect(t, nats.Token("tx"))
	atAlice, atAdmin := listen(t, alice, cast), listen(t, admin, ">")
	own := listen(t, eve, "agh.network.v0.other.>")

	failure := func(want string) {
		t.Helper()
		select {
		case err := <-failures:
			if !errors.Is(err, nats.ErrPermissionViolation) ||
				!strings.Contains(strings.ToLower(err.Error()), strings.ToLower(want)) {
				t.Errorf("the client got %v, want a violation of %s", err, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the client got no error: %s", want)
		}
		select {
		case r := <-refusals:
			if r.user != "eve" || !strings.Contains(want, r.subject) {
				t.Errorf("listed: %+v, want %s", r, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("not listed: %s", want)
		}
	}
	toAlice := peerSubject(t, "ws", "alice")
	for _, subject := range []string{cast, toAlice, "agh.network.v0.ws.c.peer.x", inPrefix + cast,
		"agh.network.v0.c.broadcast", upPrefix + "x." + cast, toPrefix + "x." + cast, "_INBOX.x", "else"} {
		publish(t, eve, subject, greet("ws", "eve"))
		failure("Publish to \"" + subject + "\"")
	}
	for _, subject := range []string{cast, toAlice, "agh.network.v0.>", "agh.network.v0.ws.>", inPrefix +
		">", toPrefix + ">", ">"} {
		if _, err := eve.SubscribeSync(subject); err != nil {
			t.Fatal(err)
		}
		failure("Subscription to \"" + subject + "\"")
	}
	// The connection still works, and the refused messages reached no peer.
	publish(t, eve, "agh.network.v0.other.c.broadcast", greet("other", "eve"))
	if m := next(t, own); !strings.Contains(string(m.Data), `"eve"`) {
		t.Errorf("received %s", m.Data)
	}
	publish(t, admin, cast, greet("ws", "root"))
	if m := next(t, atAlice); !strings.Contains(string(m.Data), `"root"`) {
		t.Errorf("alice received %s", m.Data)
	}
	for _, peer := range []string{"eve", "root"} {
		if m := next(t, atAdmin); !strings.Contains(string(m.Data), `"`+peer+`"`) {
			t.Errorf("the admin received %s, want the greeting of %s", m.Data, peer)
		}
	}
	select {
	case r := <-refusals:
		t.Errorf("refused: %+v", r)
	default:
	}
}
