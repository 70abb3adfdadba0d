package asp

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
)

// heapSampler reads a transcript and measures the heap at some offsets.
type heapSampler struct {
	b    []byte
	at   int
	look []int // offsets at which to measure, ascending
	heap []uint64
}

func (w *heapSampler) Read(p []byte) (int, error) {
	if len(w.look) > 0 && w.at >= w.look[0] {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		w.heap, w.look = append(w.heap, m.HeapAlloc), w.look[1:]
	}
	n := bytes.NewReader(w.b[w.at:])
	got, err := n.Read(p)
	w.at += got
	return got, err
}

// TestTranscriptMemory: the verifier's memory does not grow with the transcript, except
// for some bytes a message. The test must not run in parallel, because all tests share
// the heap.
func TestTranscriptMemory(t *testing.T) {
	messages := 2000
	if testing.Short() {
		messages = 600
	}
	w := newWorld(t)
	id := w.conversing()
	for i := range messages {
		w.say(id, w.alice, Inform, inform(fmt.Sprint(i)))
	}
	b := exported(t, w, id)
	r := &heapSampler{b: b, look: []int{len(b) / 5, len(b) - len(b)/20}}
	report, err := VerifyTranscript(r)
	if err != nil || report.Messages < int64(messages) || len(r.heap) != 2 {
		t.Fatal(report, err, r.heap)
	}
	read := int64(len(b) * 3 / 4) // between the two measurements
	grown := int64(r.heap[1]) - int64(r.heap[0])
	if allowed := int64(64<<10 + 100*messages); grown > allowed || allowed > read/2 {
		t.Errorf("the heap grew by %d bytes while %d were read; %d are allowed", grown, read, allowed)
	}
	t.Logf("%d messages, %d bytes: the heap grew by %d", messages, len(b), grown)
}
