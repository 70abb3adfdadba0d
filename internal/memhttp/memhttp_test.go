package memhttp

import (
	"bufio"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClient(t *testing.T) {
	t.Run("a stream arrives piece by piece", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, stop := Client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for range 2 {
					_, _ = io.WriteString(w, r.Host+" "+r.RemoteAddr+"\n")
					_ = http.NewResponseController(w).Flush()
					time.Sleep(time.Minute)
				}
			}))
			defer stop()
			begun := time.Now()
			resp, err := c.Get("https://weather.test/")
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			lines := bufio.NewReader(resp.Body)
			for i := range 2 {
				line, err := lines.ReadString('\n')
				if err != nil || line != "weather.test 192.0.2.7:4000\n" {
					t.Fatalf("%q, %v", line, err)
				}
				if got := time.Since(begun); got != time.Duration(i)*time.Minute {
					t.Errorf("line %d came after %v", i, got)
				}
			}
		})
	})
	t.Run("stop ends calls and connections", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ended := make(chan struct{})
			c, stop := Client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
				close(ended)
			}))
			failed := make(chan error, 1)
			go func() {
				_, err := c.Get("http://weather.test/")
				failed <- err
			}()
			synctest.Wait()
			stop()
			<-ended
			if err := <-failed; err == nil {
				t.Error("the call succeeded")
			}
			if _, err := c.Get("http://weather.test/"); err == nil {
				t.Error("a call after stop succeeded")
			}
		})
	})
}
