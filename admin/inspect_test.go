package admin

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
)

// withInspector makes the hub explain every input: its text is the sentence.
func withInspector(c *Config) {
	c.Workbench.Inspect = func(_ context.Context, i Inspection) (*Inspected, error) {
		if strings.HasPrefix(string(i.Input), "bad") {
			return nil, errors.New("it is no message")
		}
		v := Inspected{Protocol: "samvad", Form: "bare envelope", At: i.At, Sentence: string(i.Input)}.whole()
		return &v, nil
	}
}

func TestInspectPasted(t *testing.T) {
	b := open(t, func(c *Config) { withInspector(c); c.Now = func() time.Time { return time.Unix(1_800_000_000, 0) } })
	watcher := b.as(observerToken)
	v, err := watcher.Inspect(t.Context(), Inspection{Input: []byte(`{"a":1}`)})
	if err != nil || v.Sentence != `{"a":1}` || v.At.Unix() != 1_800_000_000 {
		t.Errorf("%+v, %v", v, err)
	}
	at := time.Unix(1_700_000_000, 0).UTC()
	if v, err = watcher.Inspect(t.Context(), Inspection{Input: []byte("{}"), At: at}); err != nil || !v.At.Equal(at) {
		t.Errorf("%+v, %v", v, err)
	}
	_, err = watcher.Inspect(t.Context(), Inspection{Input: []byte("bad message")})
	code(t, err, parley.Malformed)
	_, err = watcher.Inspect(t.Context(), Inspection{Input: make([]byte, MaxInspection+1)})
	code(t, err, parley.TooLarge)
	_, err = b.admin.Inspect(t.Context(), Actor{Name: "x", Role: Register}, Inspection{Input: []byte("{}")})
	code(t, err, parley.Forbidden)
}

// TestInspectRecorded: an id, its beginning or a reference explains what the hub has; an observer sees no content.
func TestInspectRecorded(t *testing.T) {
	b := open(t, withInspector)
	body := json.RawMessage(`{"city":"Atlantis"}`)
	r, err := b.client.Ask(t.Context(), Send{To: "weather", Skill: "forecast", JSON: body, Timeout: "20s"})
	if err != nil || r.Reply == nil {
		t.Fatal(r, err)
	}
	for _, name := range []string{r.Reply.ID.String(), " " + r.Reply.ID.String() + "\n"} {
		v, err := b.as(viewerToken).Inspect(t.Context(), Inspection{Input: []byte(name)})
		if err != nil || v.Message == nil || v.Message.ID != r.Reply.ID || !strings.Contains(v.Sentence, "no such city") {
			t.Errorf("%q: %+v, %v", name, v, err)
		}
	}
	v, err := b.as(observerToken).Inspect(t.Context(), Inspection{ID: r.Reply.ID.String()})
	if err != nil || v.Message == nil || strings.Contains(v.Sentence, "no such city") ||
		!strings.Contains(v.Sentence, string(parley.Rejected)) {
		t.Errorf("an observer: %+v, %v", v, err)
	}

	ref := b.hub.Refuse(hub.Refusal{Protocol: "samvad", Step: "signature", Code: parley.Unauthenticated,
		Text: "the signature does not verify", Verdict: parley.Verdict{Checks: []parley.Check{
			{Name: "envelope", OK: true}, {Name: "signature", Detail: "key quincunx"}}}})
	v, err = b.as(viewerToken).Inspect(t.Context(), Inspection{Input: []byte(ref)})
	if err != nil || v.Refusal == nil || len(v.Checks) != 2 || v.Checks[1].State != CheckFailed ||
		!strings.Contains(v.Sentence, "at the check signature") || v.Verified {
		t.Errorf("%+v, %v", v, err)
	}
	v, err = b.as(observerToken).Inspect(t.Context(), Inspection{ID: ref})
	if text, _ := json.Marshal(v); err != nil || strings.Contains(string(text), marker) ||
		strings.Contains(string(text), "does not verify") {
		t.Errorf("an observer: %s, %v", text, err)
	}
	_, err = b.client.Inspect(t.Context(), Inspection{ID: "zzzzzzzzzzzzzzzz"})
	code(t, err, notFound)
}
