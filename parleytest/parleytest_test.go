package parleytest_test

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/parleytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTime: in a bubble the hub's timers follow time.Sleep.
func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := parleytest.NewHub(t)
		h.Agent(parley.Agent{Name: "slow"}, parleytest.Hang())
		begun := time.Now()
		parleytest.Check(t, h.Ask("ann", "slow", "", "hello"), parleytest.Want{Kind: parley.Failure, Code: parley.TimedOut})
		if d := time.Since(begun); d < time.Second {
			t.Errorf("the request was over after %v", d)
		}
		h.Clock.Advance(time.Hour)
		if m := h.Tell("ann", "slow", "", "later"); time.Until(m.Sent) != time.Hour {
			t.Errorf("a message of the clock's time %v was sent at %v", h.Clock.Now(), m.Sent)
		}
	})
}

// TestScript: an agent follows its steps, streams, and keeps to the last.
func TestScript(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := parleytest.NewHub(t)
		a := h.Agent(parley.Agent{Name: "a", Skills: []parley.SkillSpec{{ID: "say"}, {ID: "own",
			Handler: parleytest.Reply("own")}}}, parleytest.Stream("done", "one", "two"),
			parleytest.Reply(map[string]int{"n": 1}))
		parleytest.Check(t, h.Ask("ann", "a", "own", "x"), parleytest.Want{Text: "own"})
		parleytest.Check(t, h.Ask("ann", "a", "say", "x"), parleytest.Want{Text: "done"})
		h.Expect(parleytest.Want{Kind: parley.Event, Text: "one"})
		h.Expect(parleytest.Want{Kind: parley.Event, Text: "two"})
		for range 2 {
			parleytest.Check(t, h.Ask("ann", "a", "say", "x"), parleytest.Want{JSON: ` {"n": 1} `})
		}
		if err := h.Refusal("ann", "a", "unknown", "x"); err.Code != parley.UnknownSkill {
			t.Error(err)
		}
		if got := a.Received(); len(got) != 3 {
			t.Errorf("the script saw %d messages", len(got))
		}
		h.Agent(parley.Agent{Name: "mute"})
		parleytest.Check(t, h.Ask("ann", "mute", "", "x"), parleytest.Want{Kind: parley.Response})
	})
}

// TestListeners: a hub may have sockets, outside a bubble.
func TestListeners(t *testing.T) {
	h := parleytest.NewHub(t, func(c *node.Config) { c.Listen.HTTP = "127.0.0.1:0" })
	h.Agent(parley.Agent{Name: "weather"})
	resp, err := http.Get(h.Addresses().Agents["weather"]["samvad"] + "/.well-known/agent.json")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Error(resp.Status)
	}
}

// failing is a test that notes its failure.
type failing struct {
	testing.TB
	text string
}

func (f *failing) Helper()                           {}
func (f *failing) Errorf(format string, args ...any) { f.text += fmt.Sprintf(format, args...) }
func (f *failing) Fatalf(format string, args ...any) {
	f.Errorf(format, args...)
	runtime.Goexit()
}

// TestFailures: what is not as wanted fails the test, and says why.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		h := parleytest.NewHub(f)
		h.Agent(parley.Agent{Name: "weather"})
		done := make(chan struct{})
		begin := func(do func()) string {
			f.text, done = "", make(chan struct{})
			go func() {
				defer close(done)
				do()
			}()
			<-done
			return f.text
		}
		h.Tell("ann", "weather", "", "hello")
		if got := begin(func() { h.Expect(parleytest.Want{Text: "bye"}) }); !strings.Contains(got,
			`notice from ann to weather, skill ""`) || !strings.Contains(got, `text is "hello", want "bye"`) {
			t.Errorf("Expect says %q", got)
		}
		if got := begin(func() { h.Ask("ann", "nobody", "", "x") }); !strings.Contains(got, "nobody") {
			t.Errorf("Ask says %q", got)
		}
		if got := begin(func() { h.Refusal("ann", "weather", "", "x") }); !strings.Contains(got, "was not refused") {
			t.Errorf("Refusal says %q", got)
		}
		if got := begin(func() {
			parleytest.Check(f, &parley.Message{Kind: parley.Notice}, parleytest.Want{Kind: parley.Request})
		}); !strings.Contains(got, `kind is "notice", want "request"`) {
			t.Errorf("Check says %q", got)
		}
	})
}

// TestWant: each field is compared, if it is set.
func TestWant(t *testing.T) {
	m := &parley.Message{Kind: parley.Event, State: parley.Working, From: "ann", To: "bob", Audience: []string{"carol"},
		Skill: "say", Act: "inform", Parts: []parley.Part{parley.Text("hello"), {MediaType: "application/json",
			Data: []byte(`{"n":12345678901234567890,"a":[1]}`)}},
		Origin: parley.Origin{Protocol: "samvad", Verdict: parley.Verdict{Assurance: parley.Session}}}
	for _, same := range []parleytest.Want{{}, {Kind: parley.Event}, {State: parley.Working}, {From: "ann"}, {To: "bob"},
		{To: "carol"}, {Skill: "say"}, {Act: "inform"}, {Text: "hello"}, {Protocol: "samvad"}, {Least: parley.Session},
		{JSON: `{"a": [1], "n": 12345678901234567890}`}} {
		if d := same.Diff(m); d != "" {
			t.Errorf("%+v: %s", same, d)
		}
	}
	for _, other := range []parleytest.Want{{Kind: parley.Notice}, {State: parley.Accepted}, {From: "bob"}, {To: "ann"},
		{Skill: "x"}, {Act: "x"}, {Text: "x"}, {Protocol: "a2e"}, {Least: parley.Signed}, {Code: parley.TimedOut},
		{JSON: `{"a":[1],"n":12345678901234567891}`}, {JSON: "x"}} {
		if d := other.Diff(m); d == "" || strings.Contains(d, "\n") {
			t.Errorf("%+v: %q, want one difference", other, d)
		}
	}
	failed := &parley.Message{Kind: parley.Failure, Error: parley.Refuse(parley.Rejected, "no")}
	if d := (parleytest.Want{Code: parley.Rejected, Text: "no"}).Diff(failed); d != "" {
		t.Error(d)
	}
}
