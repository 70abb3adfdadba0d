package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

const module = "github.com/parley-hub/parley/"

// outcomes are the results of tests, "pass", "fail" or "skip", by package and by
// the name of the test or subtest.
type outcomes map[string]map[string]string

// read adds the events of "go test -json" (go doc test2json).
func (o outcomes) read(events io.Reader) error {
	d := json.NewDecoder(events)
	for {
		var e struct{ Action, Package, Test string }
		if err := d.Decode(&e); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("not the output of go test -json: %w", err)
		}
		pkg, ours := strings.CutPrefix(e.Package, module)
		if !ours || e.Test == "" || !slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			continue
		}
		if o[pkg] == nil {
			o[pkg] = map[string]string{}
		}
		// Of several runs a failure counts most, a skip least.
		if old := o[pkg][e.Test]; old == "" || old == "skip" || e.Action == "fail" {
			o[pkg][e.Test] = e.Action
		}
	}
}

// ran reports whether the test of a claim ran and passed. Of a test with subtests named
// after rules, only the claim's own subtest counts. A test that only skipped subtests
// did not run.
func (o outcomes) ran(c claim) bool {
	results := o[c.pkg]
	test, _, _ := strings.Cut(c.test, "/")
	if results[test] != "pass" {
		return false
	}
	within := map[string]string{}
	parents, named := map[string]bool{}, false
	for name, result := range results {
		if name != c.test && !strings.HasPrefix(name, c.test+"/") {
			continue
		}
		within[name] = result
		named = named || bears(name, c.rule)
		for i, r := range name {
			if r == '/' {
				parents[name[:i]] = true
			}
		}
	}
	for name, result := range within {
		if result == "pass" && !parents[name] && (!named || bears(name, c.rule)) {
			return true
		}
	}
	return false
}

func bears(name, rule string) bool {
	// An underscore stands for a space in a subtest's name, and \b sees none.
	return slices.Contains(number.FindAllString(strings.ReplaceAll(name, "_", " "), -1), rule)
}
