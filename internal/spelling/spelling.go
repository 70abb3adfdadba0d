// Package spelling finds what a misspelt name was meant to be.
package spelling

import (
	"fmt"
	"slices"
	"strings"
)

// longest bounds the names that are compared, in bytes: the time grows with the square of it.
const longest = 128

// Nearest gives the known name that a misspelt one was meant to be, or "": the one with the fewest edits, at most a
// third of the name's length. The beginning of a name, at least two characters of it, counts as one edit.
func Nearest(name string, known []string) string {
	if len(name) < 2 || len(name) > longest {
		return ""
	}
	most, found := max(1, len(name)/3), ""
	best := most + 1
	for _, k := range slices.Sorted(slices.Values(known)) {
		if k == name || len(k) > longest {
			continue
		}
		d := Distance(strings.ToLower(name), strings.ToLower(k))
		if strings.HasPrefix(k, name) {
			d = 1
		}
		if d < best {
			best, found = d, k
		}
	}
	return found
}

// DidYouMean is Nearest as the end of an error's sentence: `; did you mean "weather"?`, or "".
func DidYouMean(name string, known []string) string {
	if near := Nearest(name, known); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// Distance is the number of edits between two strings: an insertion, a deletion, a replacement, or a swap of two
// neighbours.
func Distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 0
			if a[i-1] != b[j-1] {
				cost = 1
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
