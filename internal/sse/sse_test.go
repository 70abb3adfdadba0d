package sse

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := httptest.NewRecorder()
		s := Start(rec, "text/event-stream", Options{Stall: time.Second, Idle: 15 * time.Second, Beat: ":\n\n"})
		for _, d := range []time.Duration{14 * time.Second, 16 * time.Second} {
			time.Sleep(d)
			if err := s.Write([]byte("data: 1\n\n")); err != nil {
				t.Fatal(err)
			}
		}
		s.Close()
		time.Sleep(time.Minute)
		if s.Write([]byte("data: 2\n\n")) == nil {
			t.Error("an event after the end")
		}
		if got, want := rec.Body.String(), "data: 1\n\n:\n\ndata: 1\n\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if ct := rec.Header().Get("Content-Type"); ct != "text/event-stream" || !rec.Flushed {
			t.Errorf("content type %q, flushed %t", ct, rec.Flushed)
		}
	})
}

type gone struct{ http.ResponseWriter }

func (gone) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestFailedWriteTellsOnce(t *testing.T) {
	n := 0
	s := Start(gone{httptest.NewRecorder()}, "text/event-stream", Options{Stall: time.Second, Gone: func() { n++ }})
	for range 2 {
		if s.Write(nil) == nil {
			t.Error("no error")
		}
	}
	if s.Close(); n != 1 {
		t.Errorf("told %d times", n)
	}
}
