package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocsLinks: every link to a document, a file or a heading has a target.
func TestDocsLinks(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"`)
	for _, page := range append(docsPages(t), "../../docs/conformance.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range inline.FindAllStringSubmatch(string(text), -1) {
			target := m[1] + m[2]
			if strings.Contains(target, "://") {
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
			}
			b, err := os.ReadFile(to)
			if info, serr := os.Stat(to); serr == nil && info.IsDir() && anchor == "" {
				continue
			}
			if err != nil {
				t.Errorf("%s: %s leads nowhere", page, target)
				continue
			}
			if anchor != "" && !docsAnchors(string(b))[anchor] {
				t.Errorf("%s: %s: %s has no such heading", page, target, to)
			}
		}
	}
}

// docsAnchors gives the anchors of a page's headings, as GitHub makes them.
func docsAnchors(text string) map[string]bool {
	anchors := map[string]bool{}
	drop := regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if heading := strings.TrimLeft(line, "#"); !fenced && heading != line {
			slug := drop.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
			anchors[strings.ReplaceAll(slug, " ", "-")] = true
		}
	}
	return anchors
}
