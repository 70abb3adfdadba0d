package jqmap

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestRun(t *testing.T) {
	for _, c := range []struct{ source, in, want string }{
		{`{city: .text}`, `{"text":"Bern"}`, `{"city":"Bern"}`},
		{`.`, `12345678901234567890`, `12345678901234567890`},
		{`{from: $message.from}`, `null`, `{"from":"bob"}`},
		{`.a + 1`, `{"a":1.5}`, `2.5`},
		{`$ENV | length`, `1`, `0`},
		{`{q: (. | ascii_downcase)}`, `"HELLO"`, `{"q":"hello"}`},
	} {
		p, err := Compile(c.source)
		if err != nil {
			t.Fatalf("%s: %v", c.source, err)
		}
		out, err := p.Run(t.Context(), []byte(c.in), map[string]any{"from": "bob"})
		if err != nil || string(out) != c.want {
			t.Errorf("%s of %s: %s, %v; want %s", c.source, c.in, out, err, c.want)
		}
	}
}

func TestSyntax(t *testing.T) {
	for source, line := range map[string]int{"{": 1, "{a: 1,\n b: }": 2, "nosuch(.)": 1, "input": 1,
		`import "x" as x; .`: 1, ".a\n| .b\n| )": 3} {
		_, err := Compile(source)
		var s *SyntaxError
		if !errors.As(err, &s) || s.Line != line {
			t.Errorf("%q: %#v, want line %d", source, err, line)
		}
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		source, in string
		want       error
	}{
		{`def f: f; f`, `1`, ErrTime},
		{`[range(500) | "abc"]`, `1`, ErrSize},
		{`"x" * 2000`, `1`, ErrSize},
		{`.[]`, `[1,2]`, ErrCount},
		{`empty`, `1`, ErrCount},
		{`.a.b.c`, `{"a":"text"}`, ErrFailed},
		{`error("no")`, `1`, ErrFailed},
		{`.`, `{`, ErrInput},
		{`.`, `1e999`, ErrInput},
	} {
		p, err := Compile(c.source)
		if err != nil {
			t.Fatalf("%s: %v", c.source, err)
		}
		p.Size = 1000
		if p.Time = time.Minute; c.want == ErrTime {
			p.Time = 20 * time.Millisecond
		}
		if out, err := p.Run(t.Context(), []byte(c.in), nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %.80s, %v; want %v", c.source, out, err, c.want)
		}
	}
	p, err := Compile(`def f: f; f`)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Run(ctx, []byte("1"), nil); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
