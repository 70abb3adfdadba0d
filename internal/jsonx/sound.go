package jsonx

import (
	"math"
	"unicode/utf8"
)

// A checker looks at JSON as most is written, in one pass. It gives up on what is
// wrong, and on what is rare.
type checker struct {
	Scanner[[]byte]
	names [manyNames]struct{ from, to uint32 } // of the objects that are open
	used  int                                  // of names

	compact bool // gives up on what [Encode] would write in another way, too
}

// Beyond these a checker gives up: it compares names one by one, and calls
// itself for what is within.
const (
	manyNames = 64
	deep      = 64
)

// sound reports whether b is exactly one strict JSON value, nested at most depth
// deep. If not, it may be one all the same.
func sound(b []byte, depth int) bool {
	c := checker{Scanner: Scan(b)}
	return c.whole(depth)
}

// written reports whether b is sound, and as [Encode] writes it.
func written(b []byte) bool {
	c := checker{Scanner: Scan(b), compact: true}
	return c.whole(deep)
}

func (c *checker) whole(depth int) bool {
	return len(c.text) <= math.MaxInt32 && utf8.Valid(c.text) && c.value(min(depth, deep)) && c.End() && !(c.compact && c.spaced)
}

func (c *checker) value(depth int) bool {
	next := c.Next()
	if c.compact && c.spaced {
		return false
	}
	switch next {
	case '{':
		return depth > 0 && c.members(depth-1)
	case '[':
		if c.Take('['); depth == 0 {
			return false
		}
		if c.Take(']') {
			return true
		}
		for c.value(depth - 1) {
			if !c.Take(',') {
				return c.Take(']')
			}
		}
		return false
	case '"':
		inside, form, ok := c.String()
		return ok && (form&Escaped == 0 || escapesHold(inside, c.compact))
	case 't':
		return c.Literal("true")
	case 'f':
		return c.Literal("false")
	case 'n':
		return c.Literal("null")
	}
	_, ok := c.Number()
	return ok
}

func (c *checker) members(depth int) bool {
	c.Take('{')
	if c.Take('}') {
		return true
	}
	base := c.used
	for {
		name, form, ok := c.String()
		if !ok || form&Escaped != 0 || c.used == manyNames {
			return false
		}
		for _, other := range c.names[base:c.used] {
			if string(c.text[other.from:other.to]) == string(name) {
				return false
			}
		}
		end := uint32(c.Offset() - len(`"`))
		c.names[c.used].from, c.names[c.used].to = end-uint32(len(name)), end
		c.used++
		if !c.Take(':') || !c.value(depth) {
			return false
		}
		if !c.Take(',') {
			c.used = base
			return c.Take('}')
		}
	}
}
