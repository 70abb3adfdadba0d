package console

import (
	"testing"

	"github.com/parley-hub/parley/admin"
)

// TestMarkedBytes: the piece that was not signed is marked, and nothing of it is markup.
func TestMarkedBytes(t *testing.T) {
	for _, c := range []struct{ signed, sent, want, note string }{
		{"/a/é", "/x/a/é", `<span class="x">/x</span>/a/é`, "holds without /x"},
		{"/a", "/a/", `/a<span class="x">/</span>`, "holds without /"},
		{"/è", "/é", `/<span class="x">é</span>`, "signed: /è"},
		{"/", "/<b>/", `<span class="x">/&lt;b&gt;</span>/`, "holds without /&lt;b&gt;"},
	} {
		got := string(marked(`"@path": `+c.sent+"\n", []admin.Difference{{Part: "@path", Signed: c.signed, Sent: c.sent}}))
		want := `&#34;@path&#34;: ` + c.want + `     <span class="c">← ` + c.note + "</span>\n"
		if got != want {
			t.Errorf("%s: %s", c.sent, got)
		}
	}
	if got := marked("\"@method\": <GET>\n", []admin.Difference{{Part: "@path", Signed: "<GET>", Sent: "x"}}); got !=
		"&#34;@method&#34;: &lt;GET&gt;\n" {
		t.Errorf("another line: %s", got)
	}
}
