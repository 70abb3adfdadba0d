package logbound

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestBound(t *testing.T) {
	busy := errors.New("busy")
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}})
		log := New(slog.New(h), func(err error) bool { return errors.Is(err, busy) })
		for n := range 25 {
			log.Warn("recording", "n", n, "error", fmt.Errorf("no quorum: %w", busy))
			log.With("from", "other").Warn("tending", "n", n, "error", busy)
			if n%10 == 0 {
				log.Warn("recording", "n", n, "error", errors.New("refused"))
			}
			time.Sleep(time.Second)
		}
		want := `msg=recording n=0 error="no quorum: busy"
msg=tending from=other n=0 error=busy
msg=recording n=0 error=refused
msg=recording n=10 error="no quorum: busy" left_out=9
msg=tending from=other n=10 error=busy left_out=9
msg=recording n=10 error=refused
msg=recording n=20 error="no quorum: busy" left_out=9
msg=tending from=other n=20 error=busy left_out=9
msg=recording n=20 error=refused
`
		if out.String() != want {
			t.Errorf("got\n%swant\n%s", out.String(), want)
		}
	})
}
