package node

import (
	"strings"
	"testing"
)

// TestTemplate: the file is valid as it is made, and also when every line that shows a
// key is uncommented.
func TestTemplate(t *testing.T) {
	text := Template(map[string]string{"data": "/var/lib/a \"b\""})
	c, err := Load(file(t, text))
	if err != nil || c.Data != `/var/lib/a "b"` {
		t.Fatalf("%q, %v\n%s", c.Data, err, text)
	}
	var on []string
	for line := range strings.Lines(text) {
		bare := strings.TrimPrefix(line, "# ")
		if bare != line && (strings.HasPrefix(bare, "[") || strings.Contains(bare, " = ") &&
			!strings.Contains(strings.SplitN(bare, " = ", 2)[0], " ")) {
			line = bare
		}
		on = append(on, line)
	}
	all := strings.Join(on, "")
	if _, err := Load(file(t, all)); err != nil {
		t.Fatalf("%v\n%s", err, all)
	}
	for _, k := range Keys() {
		name := k.Name[strings.LastIndexByte(k.Name, '.')+1:]
		if !strings.Contains(all, "\n"+name+" = ") {
			t.Errorf("%s is missing", k.Name)
		}
		if strings.Contains(k.Doc, "CANNOT") && k.Reload {
			t.Errorf("%s cannot be changed, and can", k.Name)
		}
	}
}
