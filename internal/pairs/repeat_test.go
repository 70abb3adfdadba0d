package pairs

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/parley-hub/parley/agh"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/node"
)

// twice sends each request that could have an effect a second time, with the same bytes
// and headers, when the first is answered.
type twice struct {
	http.RoundTripper
	prove func(*http.Request) error // gives the repeat a new proof where a proof may be used only once; nil: none

	mu   sync.Mutex
	sent []repetition
}

// repetition is a request that was sent twice, with both answers.
type repetition struct {
	path          string
	first, second answered
}

type answered struct {
	status int
	body   string
}

// CloseIdleConnections implements the optional method of an [http.Client]'s transport.
func (x *twice) CloseIdleConnections() {
	x.RoundTripper.(interface{ CloseIdleConnections() }).CloseIdleConnections()
}

func (x *twice) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost || r.Body == nil {
		return x.RoundTripper.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	r.Body.Close()
	if err != nil {
		return nil, err
	}
	send := func() (*http.Response, answered, error) {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		resp, err := x.RoundTripper.RoundTrip(again)
		if err != nil {
			return nil, answered{}, err
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(b))
		return resp, answered{resp.StatusCode, string(b)}, err
	}
	resp, first, err := send()
	if err != nil {
		return nil, err
	}
	if x.prove != nil {
		r = r.Clone(r.Context())
		if err := x.prove(r); err != nil {
			return nil, err
		}
	}
	_, second, err := send()
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	x.sent = append(x.sent, repetition{r.URL.Path, first, second})
	x.mu.Unlock()
	return resp, nil
}

// take gives the requests since the last call.
func (x *twice) take() []repetition {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := x.sent
	x.sent = nil
	return out
}

// TestRepeats has every protocol ask every other, and send the bytes of the question
// twice: it is recorded and heard once, answered once, and the repeat gets the
// protocol's answer to a repeat.
func TestRepeats(t *testing.T) {
	t.Parallel()
	from, to, senders := map[string]Peer{}, map[string]Peer{}, map[string]*twice{}
	var all []Peer
	for _, p := range Protocols {
		from[p], to[p], senders[p] = newPeer(t, p, p+"-from"), newPeer(t, p, p+"-to"), &twice{}
		all = append(all, from[p], to[p])
		if p, ok := from[p].(*aspPeer); ok {
			senders["asp"].prove = func(r *http.Request) error {
				_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
				proof, err := p.id.HTTPProof(r.Method, r.URL.String(), token, time.Now())
				r.Header.Set("DPoP", proof)
				return err
			}
		}
		if p != "agh" {
			from[p].(interface{ repeats(*twice) }).repeats(senders[p])
		}
	}
	w := newTestNode(t, node.Config{}, all...)
	w.join(t, all...)
	for _, a := range Protocols {
		for _, b := range Protocols {
			t.Run(a+"->"+b, func(t *testing.T) {
				w.explain(t, from[a], to[b])
				text := "say " + a + " to " + b
				senders[a].take() // earlier requests
				answer, err := from[a].Ask(patient(t), Question{To: to[b], Text: text})
				if err != nil || answer.Text != a+" to "+b {
					t.Fatalf("%+v, %v", answer, err)
				}
				if a == "agh" {
					w.publishAgain(t, from[a].(*aghPeer), to[b], text)
				} else {
					sent := senders[a].take()
					if len(sent) == 0 {
						t.Error("nothing was sent twice")
					}
					for _, r := range sent {
						if err := repeatedWord(a, r); err != nil {
							t.Error(err)
						}
					}
				}
				// The next message to arrive is the next that is sent.
				if err := from[a].Tell(patient(t), to[b], "note "+a); err != nil {
					t.Fatal(err)
				}
				heard := 0
				next(t, to[b], "what follows", func(h Heard) bool {
					if h.Text == text {
						heard++
					}
					return h.Text == "note "+a
				})
				if heard != 1 {
					t.Errorf("heard %d times", heard)
				}
				if n := w.recorded(from[a], to[b], text); n != 1 {
					t.Errorf("recorded as %d messages", n)
				}
			})
		}
	}
}

// repeats makes the peer send its HTTP requests twice, from Join on.
func (c *common) repeats(x *twice) {
	c.around = func(t http.RoundTripper) http.RoundTripper {
		x.RoundTripper = t
		return x
	}
}

// recorded counts the recorded messages from one agent to another with a text, without
// refused ones.
func (w *testNode) recorded(from, to Peer, text string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.records {
		m := r.Message
		if m == nil || r.Refused != nil || m.From != from.Name() || !m.InReplyTo.IsZero() ||
			m.Trace.Foreign["asp.says"] != "" || !holds(m, text) {
			continue // the hub's own message in an ASP session
		}
		if slices.Contains(m.Recipients(), to.Name()) {
			n++
		}
	}
	return n
}

// repeatedWord checks the answer to a repeat over HTTP: SAMVAD reports a used nonce,
// ASP names the message, uAgents, A2E, A2A and MCP repeat the first answer.
func repeatedWord(protocol string, r repetition) error {
	ok := r.first == r.second
	switch {
	case protocol == "samvad":
		ok = r.second.status == http.StatusUnauthorized && strings.Contains(r.second.body, "REPLAY_DETECTED")
	case protocol == "asp" && r.first.status/100 == 2: // the state may have changed since
		first, _, _ := strings.Cut(r.first.body, `,"state"`)
		second, _, _ := strings.Cut(r.second.body, `,"state"`)
		ok = r.second.status == http.StatusOK && first == second
	case protocol == "asp":
		ok = r.first.status == r.second.status
	}
	if !ok {
		return fmt.Errorf("%s: %+v, the second time %+v", r.path, r.first, r.second)
	}
	return nil
}

// publishAgain has an AGH peer publish a question again. For an agent of another
// protocol a receipt reports the repeat; on its way to a peer the repeat goes nowhere.
func (w *testNode) publishAgain(t *testing.T, p *aghPeer, to Peer, text string) {
	t.Helper()
	var raw []byte
	w.record(t, text, func(r *journal.Record) bool {
		m := r.Message
		if m != nil && m.From == p.Name() && m.InReplyTo.IsZero() && holds(m, text) {
			raw = m.Origin.Raw
		}
		return raw != nil
	})
	e, err := agh.Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	subject, err := e.Subject()
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	nc := p.conn
	p.mu.Unlock()
	// The peer's own client takes no receipts for work that has ended.
	sub, err := nc.SubscribeSync("agh.network.v0." + Workspace + ".>")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be gone
	if err := nc.Publish(subject, raw); err != nil {
		t.Fatal(err)
	}
	for to.Protocol() != "agh" {
		m, err := sub.NextMsgWithContext(patient(t))
		if err != nil {
			t.Fatalf("the repeat was not answered: %v", err)
		}
		got, err := agh.Decode(m.Data)
		if err != nil || got.To != p.Name() || got.ReplyTo != e.ID || got.From != to.Name() {
			continue // of other work, or of the first publication
		}
		if r, ok := got.Content().(*agh.Receipt); ok && r.Status == agh.StatusDuplicate {
			return
		}
	}
}
