package node

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// fileLines says where the keys of a configuration file stand, so that an operator finds the line that configures an
// agent or a rule. The zero value is that of a configuration without a file.
type fileLines struct {
	file string
	at   map[string]int // "agents.weather", "allow[0]", "listen.http"; of an agent only its first line
}

// line gives the file and the line of a key; 0: the file does not have it.
func (l *fileLines) line(key string) (file string, line int) {
	if line = l.at[key]; line == 0 {
		return "", 0
	}
	return l.file, line
}

// readLines finds the keys of a file, which the decoder has accepted.
func readLines(file string, text []byte) fileLines {
	s := lineScan{text: text, line: 1, arrays: map[string]int{}, at: map[string]int{}}
	var p unstable.Parser
	p.Reset(text)
	for p.NextExpression() {
		switch e := p.Expression(); e.Kind {
		case unstable.Table:
			s.table = s.key(nil, e.Key())
		case unstable.ArrayTable:
			path := s.key(nil, e.Key())
			s.table = element(path, s.arrays[name(path)])
			s.arrays[name(path)]++
			s.note(s.table)
		case unstable.KeyValue:
			s.value(s.key(s.table, e.Key()), e.Value())
		}
	}
	return fileLines{file, s.at}
}

// lineScan is the state of [readLines].
type lineScan struct {
	text   []byte
	offset int // in text, of which line is the line
	line   int
	table  []string       // that the next keys are in
	arrays map[string]int // tables of each array so far
	at     map[string]int
}

func name(path []string) string { return strings.Join(path, ".") }

// element is the path of a table of an array.
func element(path []string, i int) []string {
	return append(slices.Clone(path[:len(path)-1]), fmt.Sprintf("%s[%d]", path[len(path)-1], i))
}

// key notes a dotted key in a table, and gives its path. Keys of an array belong to its last table.
func (s *lineScan) key(table []string, parts unstable.Iterator) []string {
	path := slices.Clone(table)
	for parts.Next() {
		n := parts.Node()
		s.moveTo(n)
		if tables := s.arrays[name(path)]; len(path) > 0 && tables > 0 {
			path = element(path, tables-1)
		}
		path = append(path, string(n.Data))
		s.note(path)
	}
	return path
}

// value notes the keys of inline tables, and the elements of arrays of them.
func (s *lineScan) value(path []string, v *unstable.Node) {
	items := v.Children()
	switch v.Kind {
	case unstable.InlineTable:
		for items.Next() {
			s.value(s.key(path, items.Node().Key()), items.Node().Value())
		}
	case unstable.Array:
		for i := 0; items.Next(); i++ {
			if n := items.Node(); n.Kind == unstable.InlineTable {
				at := element(path, i)
				s.moveTo(n)
				s.note(at)
				s.value(at, n)
			}
		}
	}
}

func (s *lineScan) moveTo(n *unstable.Node) {
	if to := int(n.Raw.Offset); to > s.offset {
		s.line += bytes.Count(s.text[s.offset:to], []byte("\n"))
		s.offset = to
	}
}

// note keeps the first line of a key. Keys within an agent have none: there may be very many.
func (s *lineScan) note(path []string) {
	if len(path) > 2 && path[0] == "agents" {
		return
	}
	if _, ok := s.at[name(path)]; !ok {
		s.at[name(path)] = s.line
	}
}
