package uagents

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/memhttp"
)

// UAG-057.
func TestClientFailover(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	agent := echoAgent(you)
	var order []string
	say := func(status int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			order = append(order, r.Host)
			writeBody(w, status, []byte(body))
		})
	}
	good := &Server{Resolve: Serve(agent)}
	answer := func(change func(*Envelope)) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q, err := Decode(readAll(t, r.Body))
			if err != nil {
				t.Error(err)
			}
			e, err := NewEnvelope(q.Target, q.Sender, q.Session, hello(), time.Time{})
			if err != nil {
				t.Error(err)
			}
			change(e)
			b := encoded(t, e)
			writeBody(w, 200, b)
		})
	}
	net := memhttp.Hosts{
		"good": good, "accepted": say(202, "{}"), "broken": say(500, `{"detail":"x"}`), "empty": say(200, "{}"),
		"redirect": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://good/submit", http.StatusTemporaryRedirect)
		}),
		"session":  answer(func(e *Envelope) { e.Session = NewSession() }),
		"sender":   answer(func(e *Envelope) { e.Sender = me.Address() }),
		"forged":   answer(func(e *Envelope) { s := "sig1xyz"; e.Signature = &s }),
		"unsigned": answer(func(*Envelope) {}),
		"signed":   answer(func(e *Envelope) { resign(t, you, e) }),
		"long":     say(200, strings.Repeat(" ", EnvelopeSize(1<<20)+1)),
	}
	for _, c := range []struct {
		hosts string
		ask   bool
		want  error
		from  string
		how   Assurance
	}{
		{"good", false, nil, "good", ""},
		{"broken good", false, nil, "good", ""},
		{"accepted good", false, nil, "good", ""}, // 202 is no success
		{"redirect good", false, nil, "good", ""},
		{"nowhere broken long", false, ErrUndelivered, "", ""},
		{"good", true, nil, "good", Unsigned},
		{"unsigned", true, nil, "unsigned", Unsigned},
		{"signed", true, nil, "signed", Signed},
		{"empty signed", true, nil, "signed", Signed},
		{"session sender forged unsigned", true, nil, "unsigned", Unsigned},
		{"session", true, ErrResponse, "", ""},
		{"sender", true, ErrResponse, "", ""},
		{"forged", true, ErrResponse, "", ""},
		{"empty", true, ErrResponse, "", ""},
		{"broken", true, ErrUndelivered, "", ""},
	} {
		t.Run(c.hosts, func(t *testing.T) {
			var urls []string
			for _, h := range strings.Fields(c.hosts) {
				urls = append(urls, "http://"+h+"/submit")
			}
			client := &Client{
				Identity: me, HTTP: net.Client(), Resolver: Endpoints{you.Address(): urls},
				Random: func() float64 { return 0 }, // in order
			}
			if !c.ask {
				st, err := client.Send(t.Context(), you.Address(), hello())
				if !errors.Is(err, c.want) {
					t.Fatalf("err = %v", err)
				}
				if err == nil && st.Endpoint != "http://"+c.from+"/submit" {
					t.Errorf("%+v", st)
				}
				return
			}
			r, err := client.Ask(t.Context(), "agent://"+you.Address(), hello())
			if !errors.Is(err, c.want) {
				t.Fatalf("err = %v", err)
			}
			if err == nil && (r.Endpoint != "http://"+c.from+"/submit" || r.Assurance != c.how) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// An unsigned answer counts only without a redirect.
func TestClientRedirectedAnswer(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	agent := echoAgent(you)
	net := memhttp.Hosts{"good": &Server{Resolve: Serve(agent)}, "hop": http.HandlerFunc(func(w http.ResponseWriter,
		r *http.Request) {
		http.Redirect(w, r, "http://good/submit", http.StatusTemporaryRedirect)
	})}
	follow := &http.Client{Transport: net}
	c := &Client{Identity: me, HTTP: follow, Resolver: Endpoints{you.Address(): {"http://hop/submit"}}}
	if _, err := c.Ask(t.Context(), you.Address(), hello()); !errors.Is(err, ErrResponse) {
		t.Errorf("unsigned: %v", err)
	}
	agent.Identity = you
	if r, err := c.Ask(t.Context(), you.Address(), hello()); err != nil || r.Assurance != Signed {
		t.Errorf("signed: %v", err)
	}
}

func TestClientErrors(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	net := memhttp.Hosts{"you": &Server{Resolve: Serve(echoAgent(you)), Log: quiet()}}
	c := &Client{Identity: me, HTTP: net.Client(), Resolver: Endpoints{you.Address(): {"http://you/submit"}}}
	t.Run("an ErrorMessage", func(t *testing.T) {
		user, err := NewUser()
		if err != nil {
			t.Fatal(err)
		}
		u := &Client{User: user, HTTP: c.HTTP, Resolver: c.Resolver}
		r, err := u.Ask(t.Context(), you.Address(), hello())
		var e *Error
		if !errors.Is(err, ErrPeer) || !errors.As(err, &e) || e.Text != ErrVerifiedOnly.Text || r == nil {
			t.Errorf("%v %v", r, err)
		}
	})
	t.Run("time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			_, err := c.Ask(ctx, you.Address(), ModelOf[echoSilent]().Message(echoSilent{1}))
			if e := AsError(err); err == nil || !e.Retryable {
				t.Errorf("err = %v", err)
			}
			synctest.Wait()
		})
	})
	for name, f := range map[string]func() (*Client, string, Message, error){
		"no identity": func() (*Client, string, Message, error) {
			return &Client{}, you.Address(), hello(),
				ErrNoIdentity
		},
		"bad user": func() (*Client, string, Message, error) {
			return &Client{User: "user"}, you.Address(), hello(), ErrNoIdentity
		},
		"no resolver": func() (*Client, string, Message, error) {
			return &Client{Identity: me}, you.Address(), hello(), ErrUnresolved
		},
		"unknown": func() (*Client, string, Message, error) { return c, me.Address(), hello(), ErrUnresolved },
		// UAG-008
		"wrong prefix": func() (*Client, string, Message, error) {
			return c, "http://" + you.Address(), hello(),
				ErrAddress
		},
		"bad message": func() (*Client, string, Message, error) {
			return c, you.Address(), ModelOf[echoMessage]().Message(1), ErrContent
		},
		"broken model": func() (*Client, string, Message, error) {
			return c, you.Address(), ModelOf[int]().Message(1), ErrSchema
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, to, m, want := f()
			if _, err := client.Send(t.Context(), to, m); !errors.Is(err, want) {
				t.Errorf("err = %v, want %v", err, want)
			}
		})
	}
}

// Hole 12: the default HTTP client of each type reaches no private address.
func TestClientGuard(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	reached := false
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer srv.Close()
	c := &Client{Identity: me, Resolver: Endpoints{you.Address(): {srv.URL +
		"/submit", "http://169.254.169.254/latest", "file:///etc/passwd"}}}
	if _, err := c.Send(t.Context(), you.Address(), hello()); !errors.Is(err, ErrUndelivered) || reached {
		t.Errorf("err = %v, reached %v", err, reached)
	} else if !strings.Contains(err.Error(), "set Client.HTTP") || strings.Contains(err.Error(), "parley.toml") {
		t.Errorf("the error gives no advice for a program: %v", err)
	}
}

func TestChoose(t *testing.T) {
	all := []Endpoint{{"http://a", 1}, {"https://b", 8}, {"http://zero", 0}, {"http://minus", -4}, {"ftp://c", 9},
		{"http://u:p@d", 9}, {"//e", 9}, {"http://f", 1}}
	for _, c := range []struct {
		random float64
		max    int
		want   []string
	}{
		{0, 10, []string{"http://a", "https://b", "http://f"}},
		{0.999, 10, []string{"http://f", "https://b", "http://a"}},
		{0.5, 10, []string{"https://b", "http://f", "http://a"}},
		{0.5, 1, []string{"https://b"}},
	} {
		if got := Choose(all, c.max, func() float64 { return c.random }); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.random, got, c.want)
		}
	}
	if got := Choose(all, 10, nil); len(got) != 3 {
		t.Error(got)
	}
}

// UAG-021: forwarding keeps every byte.
func TestForwardKeepsBytes(t *testing.T) {
	me, you := seeded(t, "me"), seeded(t, "you")
	body := []byte(strings.Replace(string(encoded(t, signed(t, me, you.Address(), hello()))),
		`"version":1`, ` "x" : "é" , "version" : 1.0`, 1))
	e, err := Decode(body)
	if err != nil {
		t.Fatal(err)
	}
	var got []byte
	net := memhttp.Hosts{"you": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = readAll(t, r.Body) })}
	c := &Client{HTTP: net.Client()}
	if _, err := c.Forward(t.Context(), []Endpoint{{"http://you/submit", 1}}, e); err != nil ||
		string(got) != string(body) {
		t.Errorf("%s, %v", got, err)
	}
	if err := e.VerifySignature(); err != nil {
		t.Error(err)
	}
}

// UAG-065: two agents chat; the sync answer is the acknowledgement, the chat answer
// follows as an envelope in the same session.
func TestChat(t *testing.T) {
	alice, bob := seeded(t, "alice"), seeded(t, "bob")
	net := memhttp.Hosts{}
	everywhere := Endpoints{alice.Address(): {"http://alice/submit"}, bob.Address(): {"http://bob/submit"}}
	toAlice := make(chan *Request, 10)
	net["alice"] = &Server{Log: quiet(), Resolve: Serve(&Agent{Address: alice.Address(), Identity: alice,
		Handler: func(_ context.Context, r *Request) (Response, error) {
			toAlice <- r
			return Response{}, nil
		}})}
	fails := false
	bobs := &Server{
		Log: quiet(),
		Resolve: Serve(&Agent{Address: bob.Address(), Identity: bob,
			Handler: ChatHandler(nil, func(_ context.Context, r *Request, m *ChatMessage) (*ChatMessage, error) {
				if fails {
					return nil, errors.New("private")
				}
				answer := NewChat(time.Now(), Text("you said "+m.Text()), EndSession())
				return &answer, nil
			})}),
		Client: &Client{HTTP: net.Client(), Resolver: everywhere},
	}
	net["bob"] = bobs
	c := &Client{Identity: alice, HTTP: net.Client(), Resolver: everywhere}

	question := NewChat(time.Now(), StartSession(), Text("hi é"))
	reply, err := c.Ask(t.Context(), bob.Address(), question.Message())
	if err != nil {
		t.Fatal(err)
	}
	ack, err := DecodeChatAcknowledgement(reply.Payload)
	if err != nil || ack.AcknowledgedMsgID != question.MsgID || reply.Assurance != Signed {
		t.Fatalf("%+v, %v", ack, err)
	}
	next := func() *Request {
		t.Helper()
		return <-toAlice
	}
	r := next()
	answer, err := DecodeChatMessage(r.Content.Payload)
	if err != nil || answer.Text() != "you said hi é" || !answer.Ends() || r.Session != reply.Envelope.Session ||
		r.Verdict.Key != bob.Address() {
		t.Fatalf("%+v, %v", answer, err)
	}
	// Asynchronously: acknowledgement first, then the answer.
	if _, err := c.Send(t.Context(), bob.Address(), NewChat(time.Now(), Text("again")).Message()); err != nil {
		t.Fatal(err)
	}
	if r := next(); r.SchemaDigest != ChatAcknowledgementDigest {
		t.Errorf("first came %s", r.SchemaDigest)
	}
	if r := next(); r.SchemaDigest != ChatMessageDigest {
		t.Errorf("then came %s", r.SchemaDigest)
	}
	// The sender of the chat learns of a failure, but not of its cause.
	fails = true
	if _, err := c.Send(t.Context(), bob.Address(), NewChat(time.Now(), Text("again")).Message()); err != nil {
		t.Fatal(err)
	}
	next()
	if text, bad := next().Content.IsError(); !bad || strings.Contains(text, "private") {
		t.Errorf("%q %v", text, bad)
	}
	if err := bobs.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestContent(t *testing.T) {
	id := NewSession()
	m := NewChat(time.Unix(1767323045, 678901000), Text("a"), Metadata(map[string]string{"b": "1", "a": "2"}),
		ResourceOf(id, Resource{"u", map[string]string{}}), ResourceOf(id, Resource{URI: "u"}, Resource{URI: "v"}),
		Content{Type: TypeResource, ResourceID: id, Resources: []Resource{{URI: "u"}}, List: true},
		Content{Type: TypeStartStream, StreamID: id}, Content{Type: TypeEndStream, StreamID: id}, StartSession(),
		EndSession())
	msg := m.Message()
	if msg.Err() != nil {
		t.Fatal(msg.Err())
	}
	again, err := DecodeChatMessage(msg.Payload)
	if err != nil {
		t.Fatal(err)
	}
	if second := again.Message(); string(second.Payload) != string(msg.Payload) {
		t.Errorf("round trip:\n%s\n%s", msg.Payload, second.Payload)
	}
	var bound ChatMessage
	if err := msg.Bind(&bound); err != nil || len(bound.Content) != len(m.Content) ||
		bound.Timestamp.String() != "2026-01-02T03:04:05.678901+00:00" {
		t.Errorf("%+v, %v", bound, err)
	}
	if bad := NewChat(time.Now(), Content{Type: "card"}).Message(); !errors.Is(bad.Err(), ErrContent) {
		t.Errorf("an unknown type is sent: %v", bad.Err())
	}
	if bad := NewChat(time.Now(), Content{Type: TypeEndStream, StreamID: "x"}).Message(); !errors.Is(bad.Err(),
		ErrContent) {
		t.Errorf("a bad id is sent: %v", bad.Err())
	}
}

func TestResolver(t *testing.T) {
	one, two := seeded(t, "one"), seeded(t, "two")
	now := time.Now()
	record := func(address, expiry, endpoints string) string {
		return fmt.Sprintf(`{"status":"active","address":%q,%s"endpoints":[%s]}`, address, expiry, endpoints)
	}
	future := fmt.Sprintf(`"expiry":%q,`, now.Add(time.Hour).UTC().Format(time.RFC3339))
	past := fmt.Sprintf(`"expiry":%q,`, now.Add(-time.Hour).UTC().Format(time.RFC3339))
	var path, body string
	net := memhttp.Hosts{"almanac": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path = r.URL.RequestURI()
		if strings.Contains(path, "/domains/") {
			writeBody(w, 200,
				[]byte(fmt.Sprintf(`{"name":"n","status":"Registered","assigned_agents":[{"address":%q,"weight":0},{"address":%q,"weight":0.5}]}`, two.Address(), one.Address())))
			return
		}
		writeBody(w, 200, []byte(body))
	})}
	r := &AlmanacResolver{URL: "http://almanac/", HTTP: net.Client()}
	good := `{"url":"http://a/submit","weight":1},{"url":"http://b/submit","weight":0}`
	for _, c := range []struct {
		to, body, path string
		want           error
	}{
		{one.Address(), record(one.Address(), future, good), "/v1/almanac/agents/" + one.Address(), nil},
		{"agent://" + one.Address(), record(one.Address(), future, good), "/v1/almanac/agents/" + one.Address() +
			"?prefix=agent", nil},
		{"test-agent://some.name", record(one.Address(), future, good), "/v1/almanac/agents/" + one.Address() +
			"?prefix=test-agent", nil},
		{one.Address(), record(one.Address(), "", good), "", ErrUnresolved},
		{one.Address(), record(one.Address(), past, good), "", ErrUnresolved},
		{one.Address(), record(one.Address(), future, ""), "", ErrUnresolved},
		{one.Address(), "no JSON", "", ErrUnresolved},
		{"other://" + one.Address(), "", "", ErrAddress},
		{"", "", "", ErrUnresolved},
		{"user" + one.Address(), "", "", ErrText},
	} {
		body, path = c.body, ""
		address, endpoints, err := r.Resolve(t.Context(), c.to)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: err = %v, want %v", c.to, err, c.want)
			continue
		}
		if err == nil && (address != one.Address() || !slices.Equal(endpoints, []Endpoint{{"http://a/submit", 1}}) ||
			path != c.path) {
			t.Errorf("%s: %s %v %s", c.to, address, endpoints, path)
		}
	}
	both := FirstOf(Endpoints{}, Endpoints{one.Address(): {"http://x"}})
	if a, _, err := both.Resolve(t.Context(), one.Address()); err != nil || a != one.Address() {
		t.Error(err)
	}
	if _, _, err := both.Resolve(t.Context(), two.Address()); !errors.Is(err, ErrUnresolved) {
		t.Error(err)
	}
}
