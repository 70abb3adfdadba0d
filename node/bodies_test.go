package node

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func testBody() *body {
	return &body{rc: http.NewResponseController(httptest.NewRecorder()), began: time.Now(), within: time.Minute}
}

// Bodies wait for room; one that is slow while others wait is cut off.
func TestSlowBodyGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newBodies(100)
		slow, next := testBody(), testBody()
		if !p.hold(slow, 80) {
			t.Fatal("there was room")
		}
		began := time.Now()
		done := make(chan bool)
		go func() { done <- p.hold(next, 50) }()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("there was no room")
		default:
		}
		time.Sleep(slowAfter)
		synctest.Wait()
		if !slow.cut {
			t.Error("a slow body that others wait for stays")
		}
		p.release(slow) // its handler ends
		if !<-done || time.Since(began) != slowAfter {
			t.Errorf("the next body went on after %s", time.Since(began))
		}
		if p.hold(slow, 1) {
			t.Error("a body that was cut off goes on")
		}
		p.release(next)
		if p.held != 0 || p.partial != 0 || p.reading.Len() != 0 {
			t.Error(p.held, p.partial, p.reading.Len())
		}
	})
}

// Many bodies larger than the bound together all arrive, and the held bytes never exceed
// the bound and one body.
func TestBodiesNeverWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, size, chunk = 1000, 900, 100
		p := newBodies(limit)
		var most int64
		done := make(chan bool)
		for range 20 {
			go func() {
				b := testBody()
				for range size / chunk {
					if !p.hold(b, chunk) {
						done <- false
						return
					}
					p.mu.Lock()
					most = max(most, p.held)
					p.mu.Unlock()
					time.Sleep(time.Millisecond)
				}
				p.arrived(b)
				time.Sleep(100 * time.Millisecond) // a handler at work
				p.release(b)
				done <- true
			}()
		}
		arrived := 0
		for range 20 {
			if <-done {
				arrived++
			}
		}
		if arrived != 20 || most > limit+size {
			t.Errorf("%d of 20 bodies arrived, and %d bytes were held", arrived, most)
		}
	})
}
