package samvad

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// SAM-005: only a skill that takes a token makes the card offer bearer.
func TestCardOffersBearerForTokensOnly(t *testing.T) {
	t.Parallel()
	c := &Card{ID: worldID, Name: "n", URL: "https://self.test",
		PublicKeys: []CardKey{CardKeyOf(identity(t, worldID, "k", 1), true)},
		Skills: []Skill{{ID: "a", Name: "a", Modes: []Mode{ModeSync}, Trust: TrustPeers,
			AllowedPeers: []string{"agent://x"}}}}
	if b, err := c.Encode(); err != nil || !strings.Contains(string(b), `"auth":{"schemes":["none"]}`) {
		t.Errorf("%s, %v", b, err)
	}
}

// SAM-039: a second media type, and a coding of the body, are not read.
func TestMediaTypeIsOneAndTheBodyIsPlain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		field, value string
		status       int
	}{
		{"Content-Type", "application/json", 415}, // beside that of signedRequest
		{"Content-Encoding", "gzip", 415},
		{"Content-Encoding", "identity", 200},
	} {
		r := signedRequest(t, w.me, "/agent/message", w.envelope(nil), w.clk.now())
		r.Header.Add(c.field, c.value)
		code := CodeSchemaInvalid
		if c.status == 200 {
			code = ""
		}
		w.want(w.serve(r), c.status, code)
	}
}

// SAM-160: OPTIONS that announces no method is no preflight.
func TestOptionsWithoutAMethodIsNoPreflight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(w *world) { w.srv.CORS = []string{"https://app.test"} })
	r := httptest.NewRequest(http.MethodOptions, "/agent/message", nil)
	r.Header.Set("Origin", "https://app.test")
	if rec := w.serve(r); rec.Code != http.StatusMethodNotAllowed {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
}

// A refusal names the step that refused: a replay that only the record notices is one
// (SAM-052), a failed record is none.
func TestRefusalOfTheRecordNamesItsStep(t *testing.T) {
	t.Parallel()
	for step, err := range map[Step]error{StepReplay: ErrReplay, StepRecord: errors.New("disk full")} {
		var refused []Step
		w := newWorld(t, func(w *world) {
			w.srv.Handle = func(context.Context, *Request, *Error) (Response, error) { return Response{}, err }
			w.srv.Refused = func(_ *http.Request, _ Claim, e *Error) string {
				refused = append(refused, e.Step)
				return ""
			}
		})
		w.post("/agent/message", w.envelope(nil))
		if len(refused) != 1 || refused[0] != step {
			t.Errorf("%v: refused at %v, want %s", err, refused, step)
		}
	}
}

// TestUntil: a nonce is remembered up to the first moment at which its message is
// stale, and no longer.
func TestUntil(t *testing.T) {
	for _, window := range []time.Duration{0, time.Minute, 20 * time.Minute} {
		for _, ahead := range []time.Duration{0, 60 * time.Second, -30 * time.Second} {
			v := &Verifier{Limits: Limits{Window: window}}
			e := &Envelope{Timestamp: epoch.Add(ahead)}
			until := e.Until(v.Limits.window())
			if err := v.fresh(e.Timestamp, until.Add(-time.Nanosecond)); err != nil {
				t.Errorf("window %s: stale before its nonce may be forgotten: %v", window, err)
			}
			if err := v.fresh(e.Timestamp, until); !errors.Is(err, ErrStale) {
				t.Errorf("window %s: fresh when its nonce may be forgotten: %v", window, err)
			}
		}
	}
}
