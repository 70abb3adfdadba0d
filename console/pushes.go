package console

import (
	"bytes"
	"fmt"
	"slices"
	"time"
)

const (
	pushEvery = 250 * time.Millisecond // at most four pushes a second
	pushMost  = 200                    // elements that wait for a push
)

// pushes gathers the elements of a stream, and writes them at most four times a second. An element that changes again
// before it is written is written once; surplus elements are counted. It belongs to one goroutine.
type pushes struct {
	write   func([]byte) error
	last    time.Time // of the last push
	timer   *time.Timer
	rows    []pushed
	parts   []pushed          // those of [pushes.element]
	written map[string][]byte // of elements that are sent again and again: what the page has
	lost    uint64            // since the page was opened
	told    uint64            // what the page knows of lost
}

type pushed struct {
	id   string
	html []byte
}

func newPushes(write func([]byte) error) *pushes {
	t := time.NewTimer(0)
	t.Stop()
	return &pushes{write: write, timer: t, written: map[string][]byte{}}
}

// row adds a row: one that the page has is replaced, another is new.
func (p *pushes) row(id string, html []byte) {
	if p.rows = put(p.rows, id, html); len(p.rows) > pushMost {
		p.rows = p.rows[1:]
		p.lost++
	}
}

// element adds a part of the page that is there once; it is written only if it changed.
func (p *pushes) element(id string, html []byte) {
	if was, ok := p.written[id]; ok && bytes.Equal(was, html) {
		return
	}
	p.written[id] = html
	p.parts = put(p.parts, id, html)
}

func put(list []pushed, id string, html []byte) []pushed {
	for i := range list {
		if list[i].id == id {
			list[i].html = html
			return list
		}
	}
	return append(list, pushed{id, html})
}

// missed counts what was too fast to be shown.
func (p *pushes) missed(n uint64) { p.lost += n }

// due is ready when flush should be called.
func (p *pushes) due() <-chan time.Time { return p.timer.C }

// flush writes the waiting elements, unless the last push was a moment ago: then they are due later.
func (p *pushes) flush() error {
	if len(p.rows)+len(p.parts) == 0 && p.lost == p.told {
		return nil
	}
	if wait := pushEvery - time.Since(p.last); wait > 0 {
		p.timer.Reset(wait)
		return nil
	}
	var b bytes.Buffer
	for _, e := range slices.Concat(p.rows, p.parts) {
		b.Write(e.html)
		b.WriteByte('\n')
	}
	if p.lost != p.told {
		p.told = p.lost
		fmt.Fprintf(&b, `<span id="missed" class="waiting">too fast to show: %s missed</span>`, grouped(int64(p.lost)))
	}
	p.rows, p.parts, p.last = nil, nil, time.Now()
	return p.write(event("html", b.Bytes()))
}
