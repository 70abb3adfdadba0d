// Package jqmap runs the content mappings that an operator writes in jq
// (https://jqlang.github.io/jq/), bounded in time and in the size of their output. A
// mapping reads nothing but its input: no files, no environment, no modules.
package jqmap

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"

	"github.com/itchyny/gojq"
)

// The bounds of one run.
const (
	DefaultTime = 250 * time.Millisecond
	DefaultSize = 1 << 20 // bytes of the output
)

// Errors of a run; the error's text says more.
var (
	ErrInput  = errors.New("the input is not JSON")
	ErrFailed = errors.New("the mapping failed")
	ErrTime   = errors.New("the mapping took too long")
	ErrSize   = errors.New("the mapping made too much")
	ErrCount  = errors.New("a mapping makes exactly one value")
)

// A Program is a compiled mapping, safe for concurrent use.
type Program struct {
	Source string
	Time   time.Duration // 0: DefaultTime
	Size   int           // 0: DefaultSize
	code   *gojq.Code
}

// A SyntaxError says where in the source a mistake is.
type SyntaxError struct {
	Line int // from 1
	Text string
}

func (e *SyntaxError) Error() string { return e.Text }

// Compile makes a program ready. In it, "." is the content and $message the object
// that the caller of Run gives. Errors are [*SyntaxError].
func Compile(source string) (*Program, error) {
	q, err := gojq.Parse(source)
	if err != nil {
		at := len(source)
		if p, ok := errors.AsType[*gojq.ParseError](err); ok {
			at = max(0, min(p.Offset-len(p.Token), len(source)))
		}
		return nil, &SyntaxError{1 + strings.Count(source[:at], "\n"), err.Error()}
	}
	if len(q.Imports) > 0 || q.Meta != nil {
		return nil, &SyntaxError{1, "a mapping has no modules"}
	}
	code, err := gojq.Compile(q, gojq.WithVariables([]string{"$message"}))
	if err != nil {
		return nil, &SyntaxError{1, err.Error()}
	}
	return &Program{Source: source, code: code}, nil
}

// String gives the source.
func (p *Program) String() string { return p.Source }

// Run gives the one value that the program makes of content (JSON) as compact
// JSON. Whole numbers keep any size; decimals become 64-bit floats.
func (p *Program) Run(ctx context.Context, content []byte, message map[string]any) (out []byte, err error) {
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	if v, err = numbers(v); err != nil {
		return nil, err
	}
	run, cancel := context.WithTimeout(ctx, cmp.Or(p.Time, DefaultTime))
	defer cancel()
	defer func() {
		// A program is the operator's; its input is not.
		if r := recover(); r != nil {
			out, err = nil, fmt.Errorf("%w: %v", ErrFailed, r)
		}
	}()
	results := p.code.RunWithContext(run, v, message)
	result, ok := results.Next()
	if !ok {
		return nil, fmt.Errorf("%w; this one made none", ErrCount)
	}
	if err, failed := result.(error); failed {
		return nil, why(ctx, run, err)
	}
	if more, again := results.Next(); again {
		if err, failed := more.(error); failed {
			return nil, why(ctx, run, err)
		}
		return nil, fmt.Errorf("%w; this one made several", ErrCount)
	}
	limit := cmp.Or(p.Size, DefaultSize)
	if weigh(result, limit) < 0 {
		return nil, fmt.Errorf("%w: more than %d bytes", ErrSize, limit)
	}
	if out, err = gojq.Marshal(result); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	if len(out) > limit {
		return nil, fmt.Errorf("%w: %d bytes, more than %d", ErrSize, len(out), limit)
	}
	return out, nil
}

func why(outer, run context.Context, err error) error {
	switch {
	case outer.Err() != nil:
		return outer.Err()
	case run.Err() != nil:
		return ErrTime
	}
	return fmt.Errorf("%w: %w", ErrFailed, err)
}

// weigh subtracts the rough size of v from left. Below zero, v is too large; this is
// known before v is written.
func weigh(v any, left int) int {
	switch v := v.(type) {
	case string:
		return left - len(v) - 2
	case []any:
		for _, x := range v {
			if left = weigh(x, left-1); left < 0 {
				return left
			}
		}
	case map[string]any:
		for k, x := range v {
			if left = weigh(x, left-len(k)-3); left < 0 {
				return left
			}
		}
	default:
		return left - 1
	}
	return left
}

// numbers turns number literals into the types that jq computes with.
func numbers(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		s := v.String()
		if !strings.ContainsAny(s, ".eE") {
			if i, err := v.Int64(); err == nil && i >= math.MinInt && i <= math.MaxInt {
				return int(i), nil
			}
			if b, ok := new(big.Int).SetString(s, 10); ok {
				return b, nil
			}
		}
		f, err := v.Float64()
		if err != nil {
			return nil, fmt.Errorf("%w: the number %.40s is beyond a 64-bit float", ErrInput, s)
		}
		return f, nil
	case []any:
		for i := range v {
			if v[i], err = numbers(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = numbers(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
