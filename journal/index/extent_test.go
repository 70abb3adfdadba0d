package index

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/parley-hub/parley"
)

// numbered appends n notices of a conversation, and returns their ids.
func (k *talk) numbered(n int, conversation uint64, trace string) (out []parley.ID) {
	for range n {
		m := parley.Message{Kind: parley.Notice, From: "alice", To: "bob", Conversation: testID(conversation, 2)}
		m.Trace.Parent = trace
		out = append(out, k.add(m, false))
	}
	return out
}

func traceparent(n int) string { return fmt.Sprintf("00-%032x-00f067aa0ba902b7-01", n) }

func idsOf(list []Message) (out []parley.ID) {
	for i := range list {
		out = append(out, list[i].ID)
	}
	return out
}

// TestHistoryAround: the page around a message is one of the pages from the beginning, and knows its
// neighbours, while messages are added.
func TestHistoryAround(t *testing.T) {
	j := memoryJournal(t, 1)
	x := openIndex(t, Config{Journal: j})
	k := &talk{t: t, j: j}
	want := k.numbered(10, 1, "")
	k.numbered(3, 2, "")
	want = append(want, k.numbered(13, 1, "")...)
	conversation := testID(1, 2)
	for i, id := range want {
		if i%7 == 0 {
			want = append(want, k.numbered(1, 1, "")...)
		}
		if err := x.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		page, err := x.HistoryAround(t.Context(), conversation, id, 5)
		if err != nil {
			t.Fatal(err)
		}
		first := i / 5 * 5
		if got := idsOf(page.Messages); !slices.Equal(got, want[first:min(first+5, len(want))]) || page.Before != first {
			t.Errorf("message %d: page of %d behind %d, want %d", i, len(got), page.Before, first)
		}
		if (page.Next != "") != (first+5 < len(want)) {
			t.Errorf("message %d: next is %q", i, page.Next)
		}
		if first == 0 {
			continue
		}
		previous, err := x.History(t.Context(), conversation, page.Previous, 5)
		if err != nil || !slices.Equal(idsOf(previous.Messages), want[first-5:first]) {
			t.Errorf("message %d: the page before is %v %v", i, idsOf(previous.Messages), err)
		}
	}
	if _, err := x.HistoryAround(t.Context(), testID(2, 2), want[0], 5); !errors.Is(err, ErrNotFound) {
		t.Errorf("a message of another conversation: %v", err)
	}
}

// TestTrace: a trace joins the conversations that share one with the first, in the order of time.
func TestTrace(t *testing.T) {
	j := memoryJournal(t, 1)
	x := openIndex(t, Config{Journal: j})
	k := &talk{t: t, j: j}
	var want []parley.ID
	want = append(want, k.numbered(2, 1, traceparent(1))...)
	want = append(want, k.numbered(2, 2, traceparent(1))...)
	k.numbered(2, 3, traceparent(2)) // shares a trace with the fourth only
	want = append(want, k.numbered(1, 1, "")...)
	want = append(want, k.numbered(1, 4, traceparent(3))...)
	want = append(want, k.numbered(1, 4, traceparent(2))...)
	want = append(want, k.numbered(1, 1, traceparent(3))...)
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []parley.ID
	cursor := ""
	for {
		page, err := x.Trace(t.Context(), testID(1, 2), cursor, 3)
		if err != nil {
			t.Fatal(err)
		}
		var list []parley.ID
		for _, c := range page.Conversations {
			list = append(list, c.ID)
		}
		if !slices.Equal(list, []parley.ID{testID(1, 2), testID(2, 2), testID(4, 2)}) || page.More ||
			page.Before != len(got) {
			t.Errorf("conversations %v, more %v, before %d", list, page.More, page.Before)
		}
		got = append(got, idsOf(page.Messages)...)
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("messages %v, want %v", got, want)
	}
	// More conversations than are shown together.
	for n := range uint64(maxConversations) {
		k.numbered(1, 10+n, traceparent(1))
	}
	if err := x.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	page, err := x.Trace(t.Context(), testID(1, 2), "", 3)
	if err != nil || len(page.Conversations) != maxConversations || !page.More {
		t.Errorf("%d conversations, more %v, %v", len(page.Conversations), page.More, err)
	}
}
