package main

import (
	"strings"
	"testing"
)

func TestShow(t *testing.T) {
	t.Parallel()
	const events = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"a speaks\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"b speaks\n"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Output":"FAIL p\n"}
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: broken\n"}
{"Action":"output","Package":"r","Test":"TestC","Output":"panic: c\n"}
no JSON`
	for _, c := range []struct {
		verbose bool
		want    string
	}{
		{false, "b speaks\nFAIL p\nq.go:1: broken\nno JSONpanic: c\n"},
		{true, "a speaks\nb speaks\nFAIL p\nq.go:1: broken\npanic: c\nno JSON"},
	} {
		var kept, out strings.Builder
		if err := show(strings.NewReader(events), &kept, &out, c.verbose); err != nil {
			t.Fatal(err)
		}
		if out.String() != c.want || kept.String() != events {
			t.Errorf("verbose %v: printed %q, want %q; kept %q", c.verbose, out.String(), c.want, kept.String())
		}
	}
}
