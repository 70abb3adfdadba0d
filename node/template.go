package node

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Template is a configuration file in which every key is explained. The keys of set have
// the values of set; all others are commented out, with their defaults.
func Template(set map[string]string) string {
	var b strings.Builder
	b.WriteString("# Configuration of a Parley hub. Check it with: parley config check FILE\n" +
		"# A key that is commented out shows its default. (reload) marks the\n" +
		"# keys that `parley config reload` applies; others need a restart.\n" +
		"# A WARNING IN CAPITALS MARKS A CHANGE THAT CANNOT BE UNDONE.\n")
	var tables []string // in the order of their first key; "" comes first
	keys := map[string][]Key{"": nil}
	for _, k := range Keys() {
		t := k.Name[:max(0, strings.LastIndexByte(k.Name, '.'))]
		if _, ok := keys[t]; !ok {
			tables = append(tables, t)
		}
		keys[t] = append(keys[t], k)
	}
	for _, t := range append([]string{""}, tables...) {
		if t != "" {
			b.WriteString("\n" + header(t) + "\n")
		}
		for _, k := range keys[t] {
			if t == "" {
				b.WriteString("\n")
			}
			writeKey(&b, k, k.Name[strings.LastIndexByte(k.Name, '.')+1:], set)
		}
	}
	return b.String()
}

// header of a table; headers of lists, and of tables with free names, are examples.
func header(t string) string {
	if list, ok := strings.CutSuffix(t, "[]"); ok {
		return "# One for each; without any, the default is as said.\n# [[" +
			strings.NewReplacer("<name>", "example", "[]", "").Replace(list) + "]]"
	}
	if strings.Contains(t, "<name>") {
		return "# [" + strings.ReplaceAll(t, "<name>", "example") + "]"
	}
	return "[" + t + "]"
}

func writeKey(b *strings.Builder, k Key, name string, set map[string]string) {
	doc := k.Doc
	if k.Reload {
		doc += " (reload)"
	}
	for _, line := range wrapText(doc, 76) {
		b.WriteString("# " + line + "\n")
	}
	if v, ok := set[k.Name]; ok {
		fmt.Fprintf(b, "%s = %s\n", name, strconv.Quote(v))
		return
	}
	fmt.Fprintf(b, "# %s = %s\n", name, cmp.Or(k.Default, k.Example, emptyValue(k.Type)))
}

// emptyValue is the zero value of a type in the file.
func emptyValue(kind string) string {
	switch {
	case strings.HasPrefix(kind, "list of "):
		return "[]"
	case kind == "bool":
		return "false"
	case kind == "int":
		return "0"
	case kind == "float64":
		return "0.0"
	case kind == "duration":
		return `"0s"`
	}
	return `""`
}

func wrapText(s string, width int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(s) {
		if line != "" && len(line)+1+len(w) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	return append(lines, line)
}
