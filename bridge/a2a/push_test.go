package a2a

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	protocol "github.com/a2aproject/a2a-go/v2/a2a"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/httpsig"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/keyring"
)

// receiver takes webhooks without a network.
type receiver struct {
	mu     sync.Mutex
	got    []*http.Request
	bodies []string
	answer func(n int) (status int, header http.Header) // of the n-th request, from 1
}

func (r *receiver) RoundTrip(q *http.Request) (*http.Response, error) {
	b, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got, r.bodies = append(r.got, q), append(r.bodies, string(b))
	status, h := http.StatusOK, http.Header{}
	if r.answer != nil {
		status, h = r.answer(len(r.got))
	}
	return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: q}, nil
}

// told gives what the webhooks of a path were told, in a few words.
func (r *receiver) told(t testing.TB, path string) (out []string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, q := range r.got {
		if q.URL.Path != path {
			continue
		}
		var e protocol.StreamResponse
		if err := json.Unmarshal([]byte(r.bodies[i]), &e); err != nil {
			t.Errorf("%s: %v", r.bodies[i], err)
			continue
		}
		out = append(out, shortly(e.Event))
	}
	return out
}

func receiving(r *receiver) func(*Config) {
	return func(c *Config) { c.Transport = func(http.RoundTripper) http.RoundTripper { return r } }
}

const hookBase = "https://93.184.215.14"

func hook(id, path string) string {
	return fmt.Sprintf(`{"id":%q,"url":"%s%s","token":"tok\u0031",
		"authentication":{"scheme":"bearer","credentials":"cred1"}}`, id, hookBase, path)
}

func hooked(params, hook string) string {
	return configured(params, `"returnImmediately":true,"taskPushNotificationConfig":`+hook)
}

func (w *world) remote() {
	w.agent(parley.Agent{Name: "remote", Exposed: parley.Everywhere,
		Identities: []parley.Identity{{Protocol: "far", ID: "remote"}}})
}

// about records something that the agent "remote" says about a task.
func (w *world) about(id protocol.TaskID, m parley.Message) {
	w.t.Helper()
	request, err := parley.ParseID(string(id))
	w.must(err)
	m.From, m.InReplyTo = "remote", request
	_, err = w.node.hub.Accept(context.Background(), hub.Submission{Message: &m})
	w.must(err)
}

func working(text string) parley.Message {
	return parley.Message{Kind: parley.Event, State: parley.Working, Parts: []parley.Part{parley.Text(text)}}
}

func piece(text string) parley.Message {
	return parley.Message{Kind: parley.Event, Parts: []parley.Part{parley.Text(text)}}
}

func answer(text string) parley.Message {
	return parley.Message{Kind: parley.Response, Parts: []parley.Part{parley.Text(text)}}
}

// A2A-051: each webhook of a task gets every update in order, over failures of its receiver and a
// restart of the hub; one that fails delays no other.
func TestPushNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{answer: func(n int) (int, http.Header) { return http.StatusOK, nil }}
		w := newWorld(t, receiving(r))
		w.remote()
		ctx, request := w.sending("alice", "remote", hooked(say("m1", "go", ""), hook("one", "/1")))
		result, err := checked{service{w.node.Binding}}.SendMessage(ctx, request)
		w.must(err)
		id := result.(*protocol.Task).ID
		if _, err := (checked{service{w.node.Binding}}).CreateTaskPushConfig(w.as("alice", "remote"),
			&protocol.PushConfig{TaskID: id,
				ID: "two", URL: hookBase + "/2"}); err != nil {
			t.Fatal(err)
		}
		down := atomic.Bool{}
		r.answer = func(n int) (int, http.Header) {
			if down.Load() && r.got[n-1].URL.Path == "/1" {
				return http.StatusServiceUnavailable, http.Header{}
			}
			return http.StatusNoContent, nil
		}
		down.Store(true)
		w.about(id, working("half"))
		w.about(id, piece("a"))
		for _, text := range []string{"b", "c", "d", "e"} { // all within a millisecond
			w.about(id, piece(text))
		}
		synctest.Wait()
		all := []string{"WORKING half", "result append=false last=false a", "result append=true last=false b",
			"result append=true last=false c", "result append=true last=false d", "result append=true last=false e"}
		if got := r.told(t, "/2"); !slices.Equal(got, all) {
			t.Errorf("the receiver that is up was told %q", got)
		}
		w.stop(w.node)
		w.node = w.start(nil)
		down.Store(false)
		w.about(id, piece("f"))
		w.about(id, answer("ab"))
		time.Sleep(time.Hour)
		synctest.Wait()
		all = append(all, "result append=true last=false f", "result append=false last=true ab", "COMPLETED")
		if got := r.told(t, "/2"); !slices.Equal(got, all) {
			t.Errorf("the second webhook was told %q", got)
		}
		got := r.told(t, "/1")
		i := slices.Index(got, all[1])
		if i < 1 || !slices.Equal(got[i:], all[1:]) ||
			slices.ContainsFunc(got[:i], func(s string) bool { return s != all[0] }) {
			t.Errorf("the first webhook was told %q", got)
		}
		if open := w.j.Deliveries(journal.Filter{}); len(open) > 0 {
			t.Errorf("open deliveries: %+v", open)
		}
		// The configurations stay until their last notification is settled, then they expire.
		for _, key := range []string{"one", "two"} {
			row := w.node.hooks.Known(string(id) + "/" + key)
			if row.Revision == 0 || row.Until.Before(time.Now().Add(hookRest-2*time.Hour)) {
				t.Errorf("configuration %s ends %s", key, row.Until)
			}
		}
		if len(w.node.webhooks.open) > 0 {
			t.Errorf("open: %v", w.node.webhooks.open)
		}
		for i, q := range r.got {
			checkNotification(t, w, q, r.bodies[i])
		}
	})
}

// checkNotification checks headers and signature of a notification.
func checkNotification(t testing.TB, w *world, q *http.Request, body string) {
	t.Helper()
	want := map[string]string{"Content-Type": "application/a2a+json", "A2a-Version": "1.0", "Authorization": "",
		"X-A2a-Notification-Token": ""}
	if q.URL.Path == "/1" {
		want["Authorization"] = "Bearer cred1"
		want["X-A2a-Notification-Token"], want["A2a-Notification-Token"] = "tok1", "tok1"
	}
	for name, v := range want {
		if got := q.Header.Get(name); got != v {
			t.Errorf("%s: %q, want %q", name, got, v)
		}
	}
	if err := httpsig.CheckDigest(q.Header.Get("Content-Digest"), []byte(body)); err != nil {
		t.Error(err)
	}
	list, err := httpsig.Parse(q.Header.Get("Signature-Input"), q.Header.Get("Signature"))
	if err != nil || len(list) != 1 || !list[0].Covers("@method", "@target-uri", "content-digest", "content-type") {
		t.Fatalf("signature %+v, %v", list, err)
	}
	m := httpsig.Message{Method: q.Method, Scheme: q.URL.Scheme, Authority: q.URL.Host, Path: q.URL.EscapedPath(),
		RawQuery: q.URL.RawQuery, Header: q.Header}
	base, err := m.AppendBase(nil, &list[0])
	if err != nil {
		t.Fatal(err)
	}
	key, err := w.keys.Signer(keyring.Hub, Protocol)
	if err != nil || key.ID() != list[0].KeyID || !ed25519.Verify(key.Public(), base, list[0].Bytes) {
		t.Errorf("the signature by %q does not hold: %v", list[0].KeyID, err)
	}
}

// A client of 0.3 gets the task, as it was at each update.
func TestPushNotificationsOf03(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{}
		w := newWorld(t, receiving(r))
		w.remote()
		ctx, request := w.sending("alice", "remote", hooked(say("m1", "go", ""), hook("one", "/1")))
		callOf(ctx).version = V03
		result, err := checked{service{w.node.Binding}}.SendMessage(ctx, request)
		w.must(err)
		w.about(result.(*protocol.Task).ID, working("half"))
		w.about(result.(*protocol.Task).ID, answer("ab"))
		synctest.Wait()
		var states []string
		for i, body := range r.bodies {
			var task struct {
				Kind   string
				Status struct{ State string }
			}
			w.must(json.Unmarshal([]byte(body), &task))
			states = append(states, task.Kind+" "+task.Status.State)
			if got := r.got[i].Header.Get("Content-Type"); got != "application/json" {
				t.Errorf("content type %q", got)
			}
		}
		if !slices.Equal(states, []string{"task working", "task completed"}) {
			t.Errorf("told %q", states)
		}
	})
}

// A2A-050, A2A-051: what ends in a dead letter at once, and what after its time; no redirect is followed.
func TestPushNotificationsThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		calls  int // at most
	}{
		"gone": {http.StatusGone, 1}, "redirect": {http.StatusTemporaryRedirect, 1},
		"too many": {http.StatusTooManyRequests, 999},
		"failing":  {http.StatusInternalServerError, 999},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &receiver{answer: func(int) (int, http.Header) {
					return c.status, http.Header{"Location": {"https://elsewhere.example/"}, "Retry-After": {"600"}}
				}}
				w := newWorld(t, receiving(r))
				w.remote()
				id := w.task("alice", "remote", hooked(say("m1", "go", ""), hook("one", "/1"))).ID
				w.about(id, working("half"))
				time.Sleep(48 * time.Hour)
				synctest.Wait()
				open := w.j.Deliveries(journal.Filter{To: "alice (callback one)"})
				if len(open) == 0 || open[0].State != parley.Dead || open[0].Attempt > c.calls ||
					c.calls > 1 && open[0].Attempt < 10 {
					t.Errorf("deliveries %+v", open)
				}
				for _, q := range r.got {
					if q.URL.Host != "93.184.215.14" {
						t.Errorf("a call of %s", q.URL)
					}
				}
			})
		})
	}
}

// A2A-050: which addresses are refused, and with which field.
func TestPushAddresses(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.PlainPush, c.Allow = true, loopback })
	w.node.webhooks.resolve = func(_ context.Context, _, host string) ([]netip.Addr, error) {
		switch host {
		case "rebind.example":
			return []netip.Addr{netip.MustParseAddr("93.184.215.14"), netip.MustParseAddr("10.0.0.1")}, nil
		case "none.example":
			return nil, errors.New("no such host")
		}
		a, err := netip.ParseAddr(host)
		return []netip.Addr{a}, err
	}
	const base = "taskPushNotificationConfig."
	for _, c := range []struct {
		p     protocol.PushConfig
		field string
	}{
		{protocol.PushConfig{URL: hookBase}, ""},
		{protocol.PushConfig{URL: "http://127.0.0.1:9/x"}, ""},
		{protocol.PushConfig{URL: "HTTPS://127.0.0.1:9/x", Auth: &protocol.PushAuthInfo{Scheme: "BASIC"}}, ""},
		{protocol.PushConfig{URL: ""}, "url"},
		{protocol.PushConfig{URL: "http://93.184.215.14/"}, "url"},
		{protocol.PushConfig{URL: "ftp://93.184.215.14/"}, "url"},
		{protocol.PushConfig{URL: "https://169.254.169.254/latest/meta-data"}, "url"},
		{protocol.PushConfig{URL: "https://10.0.0.1/"}, "url"},
		{protocol.PushConfig{URL: "https://[::ffff:10.0.0.1]/"}, "url"},
		{protocol.PushConfig{URL: "https://0x7f.1/"}, "url"},
		{protocol.PushConfig{URL: "https://a:b@93.184.215.14/"}, "url"},
		{protocol.PushConfig{URL: "https://rebind.example/"}, "url"},
		{protocol.PushConfig{URL: "https://none.example/"}, "url"},
		{protocol.PushConfig{URL: hookBase + "/" + strings.Repeat("x", maxHookURL)}, "url"},
		{protocol.PushConfig{URL: hookBase, ID: "a b"}, "id"},
		{protocol.PushConfig{URL: hookBase, ID: "a/b"}, "id"},
		{protocol.PushConfig{URL: hookBase, Token: "a\r\nX: y"}, "token"},
		{protocol.PushConfig{URL: hookBase, Auth: &protocol.PushAuthInfo{Scheme: "Digest"}}, "authentication.scheme"},
		{protocol.PushConfig{URL: hookBase, Auth: &protocol.PushAuthInfo{Scheme: "Bearer", Credentials: "a\nb"}},
			"authentication.credentials"},
	} {
		err := w.node.checkHook(&c.p)
		switch {
		case c.field != "":
			wantError(t, err, protocol.ErrInvalidParams, base+c.field)
		case err != nil:
			t.Errorf("%s: %v", c.p.URL, err)
		}
	}
}

// A2A-050: the address guard decides at each connection, too.
func TestPushIsGuardedAtTheConnection(t *testing.T) {
	var calls atomic.Int64
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	defer server.Close()
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	var allowed atomic.Bool
	allowed.Store(true)
	w := newWorld(t, func(c *Config) {
		c.RootCAs = roots
		c.Allow = func() []netip.Prefix {
			if allowed.Load() {
				return loopback()
			}
			return nil
		}
	})
	defer w.closeIdle()
	w.remote()
	id := w.task("alice", "remote", hooked(say("m1", "go", ""), fmt.Sprintf(`{"id":"one","url":%q}`, server.URL))).ID
	w.about(id, working("half"))
	w.eventually("the webhook is called", func() bool { return calls.Load() == 1 })
	allowed.Store(false)
	w.about(id, working("more"))
	w.eventually("the attempt fails", func() bool {
		open := w.j.Deliveries(journal.Filter{To: "alice (callback one)"})
		return len(open) == 1 && open[0].Error != nil && open[0].Error.Reason == parley.AddressGuard
	})
	if calls.Load() != 1 {
		t.Errorf("%d calls", calls.Load())
	}
}

func (w *world) closeIdle() { w.node.hookClient.CloseIdleConnections() }

// A2A-052, A2A-053: configurations are set, replaced, got, listed and deleted by the owner of the task;
// there is a limit; what is stored has no secret in clear.
func TestPushConfigurations(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Webhooks = 2 })
	w.remote()
	id := w.task("alice", "remote", immediately(say("m1", "go", ""))).ID
	s, ctx := checked{service{w.node.Binding}}, w.as("alice", "remote")
	create := func(id protocol.TaskID, name, token string) (*protocol.PushConfig, error) {
		return s.CreateTaskPushConfig(ctx, &protocol.PushConfig{TaskID: id, ID: name, URL: hookBase, Token: token,
			Auth: &protocol.PushAuthInfo{Scheme: "basic", Credentials: "secret-credentials"}})
	}
	made, err := create(id, "", "secret-token")
	w.must(err)
	if made.ID == "" || made.TaskID != id || made.Auth.Scheme != "Basic" {
		t.Errorf("made %+v", made)
	}
	for _, token := range []string{"first", "second"} {
		_, err := create(id, "b", token)
		w.must(err)
	}
	if _, err := create(id, "c", ""); parley.CodeOf(err) != parley.RateLimited {
		t.Errorf("one more than the limit: %v", err)
	}
	list, err := s.ListTaskPushConfigs(ctx, &protocol.ListTaskPushConfigRequest{TaskID: id})
	w.must(err)
	if len(list.Configs) != 2 || list.NextPageToken != "" || list.Configs[1].Token != "second" {
		t.Errorf("list %s", encoded(t, list))
	}
	got, err := s.GetTaskPushConfig(ctx, &protocol.GetTaskPushConfigRequest{TaskID: id, ID: made.ID})
	w.must(err)
	if encoded(t, got) != encoded(t, made) {
		t.Errorf("got %s, not %s", encoded(t, got), encoded(t, made))
	}
	for v, err := range w.j.State("a2a-push").Range(t.Context(), "") {
		w.must(err)
		for _, secret := range []string{"secret", "first", "second"} {
			if bytes.Contains(v.Data, []byte(secret)) {
				t.Errorf("%s is stored in clear: %s", secret, v.Data)
			}
		}
	}
	for range 2 {
		w.must(s.DeleteTaskPushConfig(ctx, &protocol.DeleteTaskPushConfigRequest{TaskID: id, ID: "b"}))
	}
	_, err = s.GetTaskPushConfig(ctx, &protocol.GetTaskPushConfigRequest{TaskID: id, ID: "b"})
	wantError(t, err, protocol.ErrTaskNotFound, "")
	if names := w.node.webhooks.of(mustID(t, id)); !slices.Equal(names, []string{made.ID}) {
		t.Errorf("open %v", names)
	}
	n, err := w.node.Forget(t.Context(), hub.Forgetting{Agent: "alice", Message: func(parley.ID) bool { return false }})
	if err != nil || n != 1 || w.node.hooks.Len() != 0 {
		t.Errorf("forgot %d, %v, left %d", n, err, w.node.hooks.Len())
	}
}

func mustID(t testing.TB, id protocol.TaskID) parley.ID {
	t.Helper()
	out, err := parley.ParseID(string(id))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A hub that starts lets the configurations of tasks expire that ended without it, and of requests
// that were never recorded.
func TestPushConfigurationsOfEndedTasksExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		orphan := parley.HashID([]byte("0123456789abcdef"))
		c := callOf(w.as("alice", "remote"))
		w.must(w.node.webhooks.put(t.Context(), c, orphan, &protocol.PushConfig{ID: "x", URL: hookBase}))
		w.stop(w.node)
		time.Sleep(2 * time.Minute)
		w.node = w.start(nil)
		synctest.Wait()
		if row := w.node.hooks.Known(hookKey(orphan, "x")); row.Until.IsZero() || len(w.node.webhooks.open) > 0 {
			t.Errorf("%+v, open %v", row, w.node.webhooks.open)
		}
	})
}

// failing is a network that fails as the net package does not.
type failing struct{}

func (failing) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("server gave HTTP response to HTTPS client")
}

// The URL of a webhook may be its secret: an error names the host alone.
func TestErrorsOfWebhooksKeepTheURL(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Transport = func(http.RoundTripper) http.RoundTripper { return failing{} } })
	u, err := url.Parse(hookBase + "/path?key=s3cr3t")
	w.must(err)
	_, _, err = w.node.post(t.Context(), u, &hookRow{}, hookSecrets{}, "application/json", nil)
	if err == nil {
		t.Fatal("no error")
	}
	e := hookError(parley.Fail(parley.Unavailable, nil, "not taken"), err)
	if text := e.Error() + e.Detail; strings.Contains(text, "s3cr3t") || !strings.Contains(text, "HTTP response") {
		t.Error(text)
	}
}

// A2A-052: the record of a message has no secret of its webhook, in any transport; nothing else changes.
func TestRecordHasNoSecretOfAWebhook(t *testing.T) {
	w := newWorld(t)
	w.remote()
	const members = `"token":"tok\u0031-secret","authentication":{"scheme":"Bearer","credentials":"cred-secret"}`
	for i, c := range []struct{ name, body string }{
		{"JSON-RPC", `{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":%s}`},
		{"REST", `%s`},
		{"gRPC", ``},
	} {
		for j, spelling := range []string{"taskPushNotificationConfig", "task_push_notification_config",
			"pushNotificationConfig", "push_notification_config"} {
			message := say(fmt.Sprint(i, j), "tok1-secret as such", "")
			ctx, r := w.sending("alice", "remote", configured(message, `"returnImmediately":true,
				"taskPushNotificationConfig":{"url":"`+hookBase+`",`+members+`}`))
			call := callOf(ctx)
			if call.body = nil; c.body != "" {
				call.body = fmt.Appendf(nil, c.body, configured(message, `"returnImmediately":true,"`+spelling+
					`":{"url":"`+hookBase+`",`+members+`}`))
			} else {
				call.params = nil
			}
			result, err := checked{service{w.node.Binding}}.SendMessage(ctx, r)
			w.must(err)
			w.must(w.node.requests.Indexed(ctx))
			m, err := w.node.index.Message(t.Context(), string(result.(*protocol.Task).ID))
			w.must(err)
			record, err := w.j.Read(t.Context(), m.Position)
			w.must(err)
			raw := record.Message.Origin.Raw
			if bytes.Contains(raw, []byte("cred-secret")) || bytes.Count(raw, []byte("-secret")) != 1 ||
				!json.Valid(raw) || !bytes.Contains(raw, []byte(hookBase)) {
				t.Errorf("%s, %s: recorded %s", c.name, spelling, raw)
			}
			all, err := service{w.node.Binding}.hooksOf(ctx, result.(*protocol.Task).ID)
			w.must(err)
			if len(all) != 1 || all[0].Token != "tok1-secret" || all[0].Auth.Credentials != "cred-secret" {
				t.Errorf("%s, %s: the webhook is %+v", c.name, spelling, all)
			}
		}
	}
}
