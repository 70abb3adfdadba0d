package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/node"
	"github.com/parley-hub/parley/samvad"
)

// line gives the doctor's line about a check.
func (d *doctor) line(check string) admin.DoctorStep {
	for _, f := range d.Steps {
		if f.Check == check {
			return f
		}
	}
	return admin.DoctorStep{}
}

// testDoctor makes a doctor that has made no check yet.
func testDoctor(t *testing.T, c node.Config) *doctor {
	t.Helper()
	g, err := guardOf(&c)
	if err != nil {
		t.Fatal(err)
	}
	d := newDoctor(&app{out: &bytes.Buffer{}, errs: &bytes.Buffer{}}, false)
	d.c, d.Guard = c, g
	return d
}

// TestDoctorClockSkew: the peer's Date header shows the difference of clocks.
func TestDoctorClockSkew(t *testing.T) {
	now := time.Date(2026, 4, 11, 10, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		off  time.Duration
		want hub.FindingState
	}{{0, "ok"}, {20 * time.Second, "ok"}, {45 * time.Second, "warning"}, {61 * time.Second, "failed"},
		{-62 * time.Second, "failed"}, {-6 * time.Minute, "failed"}, {time.Hour, "failed"}} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", now.Add(c.off).Format(http.TimeFormat))
		}))
		d := testDoctor(t, node.Config{})
		d.Now = func() time.Time { return now }
		d.SAMVADCard(context.Background(), "url", s.URL, nil)
		s.Close()
		if f := d.line("clock skew"); f.State != c.want || c.want == "failed" && !strings.Contains(f.Fix, "set-ntp") ||
			!strings.Contains(f.Detail, "from 60 s on") {
			t.Errorf("%s: %+v", c.off, f)
		}
	}
}

// TestDoctorTLS: tls.ca is the fix for an unknown authority.
func TestDoctorTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	s.Config.ErrorLog = nil
	d := testDoctor(t, node.Config{})
	d.Reach(context.Background(), "url", s.URL, nil)
	if f := d.line("TLS"); f.State != "failed" || !strings.HasPrefix(f.Fix, "tls.ca") {
		t.Errorf("%+v", f)
	}
	d = testDoctor(t, node.Config{})
	d.Roots = x509.NewCertPool()
	d.Roots.AddCert(s.Certificate())
	d.SAMVADCard(context.Background(), "url", s.URL, nil)
	if f := d.line("TLS"); f.State != "ok" {
		t.Errorf("%+v", f)
	}
	if f := d.line("card"); f.State != "failed" || !strings.Contains(f.Detail, "404") {
		t.Errorf("%+v", f)
	}
}

// TestDoctorSteppedClock: the doctor notices a clock that is set during its check.
func TestDoctorSteppedClock(t *testing.T) {
	d := testDoctor(t, node.Config{})
	start := time.Now()
	d.clock(start, start.Round(0).Add(-time.Hour))
	if f := d.line("clock"); f.State != "failed" {
		t.Errorf("%+v", f)
	}
}

// TestDoctorOfACluster: the doctor names the checks that it cannot make with a cluster's
// keys, and the commands that replace them.
func TestDoctorOfACluster(t *testing.T) {
	var c node.Config
	c.Engine.URL = "nats://127.0.0.1:4222"
	d := testDoctor(t, c)
	d.Info.SAMVAD.Identity = "agent://hub.test"
	d.RoundTrip(t.Context(), "museum", "https://museum.test", &samvad.Card{ID: "agent://museum.test"})
	f := d.line("signed round trip")
	if f.State != "skipped" || !strings.Contains(f.Detail, "only the hubs of a cluster") ||
		!strings.Contains(f.Detail, "parley send") {
		t.Errorf("%+v", f)
	}
}

func TestDoctorPortsAndDisk(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	d := testDoctor(t, node.Config{Data: filepath.Join(t.TempDir(), "not", "there"),
		Listen: node.Listen{HTTP: s.Listener.Addr().String(), Admin: "127.0.0.1:0"},
		Engine: node.Engine{MinFree: "900000GiB"}})
	d.ports()
	d.disk()
	if f := d.Steps[0]; f.State != "failed" || !strings.HasPrefix(f.Fix, "listen.http") {
		t.Errorf("%+v", f)
	}
	if f := d.Steps[1]; f.State != "ok" || !strings.Contains(f.Detail, "listen.admin") {
		t.Errorf("%+v", f)
	}
	if f := d.line("disk"); f.State != "failed" || !strings.Contains(f.Fix, "engine.min_free") {
		t.Errorf("%+v", f)
	}
	d.files()
	if f := d.line("data directory"); f.State != "failed" || !strings.Contains(f.Fix, "parley init") {
		t.Errorf("%+v", f)
	}
	secret := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(secret, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d.c.TLS.Key, d.c.Data = secret, t.TempDir()
	d.files()
	if f := d.line("files"); f.State != "failed" || !strings.Contains(f.Fix, "chmod") {
		t.Errorf("%+v", f)
	}
}

// TestEveryCommandIsDocumented: every command has a text for man pages and help.
func TestEveryCommandIsDocumented(t *testing.T) {
	root := (&app{out: &bytes.Buffer{}, errs: &bytes.Buffer{}}).root()
	for _, c := range root.Commands() {
		if c.Short == "" {
			t.Errorf("%s says nothing", c.CommandPath())
		}
	}
}
