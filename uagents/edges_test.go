package uagents

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

// UAG-058: with any header that a proxy adds, the caller is not local.
func TestEveryForwardingHeaderIsElsewhere(t *testing.T) {
	t.Parallel()
	s := &Server{Local: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	for _, header := range []string{"", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-Ip"} {
		r := httptest.NewRequest("GET", "/messages", nil)
		r.RemoteAddr = "127.0.0.1:1"
		want := http.StatusOK
		if header != "" {
			r.Header.Set(header, "127.0.0.1")
			want = http.StatusForbidden
		}
		rec := httptest.NewRecorder()
		if s.ServeHTTP(rec, r); rec.Code != want {
			t.Errorf("with %q: %d, want %d", header, rec.Code, want)
		}
	}
}

// UAG-071: the status of an expired registration cannot be set.
func TestStatusOfAnExpiredRegistration(t *testing.T) {
	t.Parallel()
	me := seeded(t, "me")
	now := time.Unix(1_800_000_000, 0)
	s := &AlmanacServer{Store: &MemoryAlmanac{Now: func() time.Time { return now }}, Now: func() time.Time { return now }, Lifetime: time.Hour}
	status := func(active bool) int {
		t.Helper()
		a := NewStatus(me, false, active)
		if err := a.Sign(me, now); err != nil {
			t.Fatal(err)
		}
		b, err := a.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return submitTo(s, "/v1/almanac/agents/"+me.Address()+"/status", b).Code
	}
	if rec := submitTo(s, "/v1/almanac/agents", registrationOf(t, me, now, 1)); rec.Code != http.StatusOK {
		t.Fatal(rec.Code, rec.Body)
	}
	now = now.Add(time.Hour - time.Second)
	if code := status(false); code != http.StatusOK {
		t.Errorf("within the lifetime: %d", code)
	}
	now = now.Add(time.Second)
	if code := status(true); code != http.StatusNotFound {
		t.Errorf("after the lifetime: %d, want 404", code)
	}
}

// UAG-073: a token is valid through its last second, and the clocks may differ by the
// skew in both directions.
func TestTokenWindow(t *testing.T) {
	t.Parallel()
	me := seeded(t, "me")
	made := time.Unix(1_800_000_000, 0)
	token, err := me.NewToken(made, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for after, ok := range map[time.Duration]bool{
		-6 * time.Second: false, -5 * time.Second: true, 65 * time.Second: true, 66 * time.Second: false,
	} {
		v := TokenVerifier{Now: func() time.Time { return made.Add(after) }, Skew: 5 * time.Second}
		if _, err := v.Verify(token, me.Address()); (err == nil) != ok {
			t.Errorf("%v after it was made: %v, want accepted %v", after, err, ok)
		}
	}
}

// UAG-034, UAG-035: a digest is remembered until its envelope has expired, even if that
// is beyond the horizon by the skew.
func TestUntil(t *testing.T) {
	now := time.Unix(1_900_000_000, 250)
	day := 24 * time.Hour
	for _, skew := range []time.Duration{0, time.Minute, -1} {
		v := &Verifier{Limits: Limits{Skew: skew}}
		for _, life := range []time.Duration{0, 30 * time.Second, day - time.Minute, day} {
			e := &Envelope{Expires: Uint(uint64(now.Add(life).Unix()))}
			until := v.remember(e, now, Signed)
			if err := v.expiry(e, until.Add(-time.Nanosecond)); err != nil {
				t.Errorf("expires in %s, skew %s: %v before the digest may be forgotten", life, skew, err)
			}
			if err := v.expiry(e, until); !errors.Is(err, ErrStale) {
				t.Errorf("expires in %s, skew %s: %v when the digest may be forgotten", life, skew, err)
			}
		}
	}
	for name, c := range map[string]struct {
		v    *Verifier
		e    *Envelope
		a    Assurance
		want time.Duration
	}{
		"no expires":           {v: &Verifier{}, e: &Envelope{}, a: Signed, want: day},
		"expired ones allowed": {v: &Verifier{AllowExpired: true}, e: &Envelope{Expires: "1"}, a: Signed, want: day},
		"beyond the horizon": {v: &Verifier{}, e: &Envelope{Expires: Uint(uint64(now.Add(2 * day).Unix()))},
			a: Signed, want: day},
		"no year":  {v: &Verifier{}, e: &Envelope{Expires: Uint(1 << 63)}, a: Signed, want: day},
		"unsigned": {v: &Verifier{}, e: &Envelope{}, a: Unsigned, want: 5 * time.Minute},
	} {
		if got := c.v.remember(c.e, now, c.a).Sub(now); got != c.want {
			t.Errorf("%s: remembered for %s, want %s", name, got, c.want)
		}
	}
}
