package bridge

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
)

func TestHops(t *testing.T) {
	for _, hops := range [][]string{nil, {"a"}, {"a", "b.example", "hub-3"}} {
		m := &parley.Message{From: `x"; hops="forged`, Hops: hops, Origin: parley.Origin{Protocol: "samvad"}}
		if got := HopsIn(Provenance(m)); !slices.Equal(got, hops) {
			t.Errorf("%q came back as %q", hops, got)
		}
		b, err := json.Marshal(map[string]any{"hops": hops, "more": 1})
		if err != nil {
			t.Fatal(err)
		}
		if got := HopsOf(b); !slices.Equal(got, hops) {
			t.Errorf("%s came back as %q", b, got)
		}
	}
	for _, bad := range []string{"", "hops", `; hops="`, `; hops="\x"`, `; hops=""`} {
		if got := HopsIn(bad); got != nil {
			t.Errorf("%q gave %q", bad, got)
		}
	}
	for _, bad := range []string{"", "[]", `{"hops":7}`, `{"hops":["a"],"hops":["b"]}`} {
		if got := HopsOf([]byte(bad)); got != nil {
			t.Errorf("%q gave %q", bad, got)
		}
	}
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprint(i) + strings.Repeat("x", 500)
	}
	if got := HopsIn(Provenance(&parley.Message{Hops: many})); len(got) != parley.MaxHops+1 || len(got[0]) != 128 {
		t.Errorf("%d hops are kept", len(got))
	}
}
