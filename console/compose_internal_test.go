package console

import (
	"fmt"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
)

// TestHistoriesAreBounded: of many tokens the hundred that sent last have a history.
func TestHistoriesAreBounded(t *testing.T) {
	var l sentLog
	for i := range sentTokens {
		l.add(fmt.Sprint("token-", i), SentRow{To: "a"})
	}
	l.add("token-0", SentRow{To: "b"})
	l.add("one more", SentRow{To: "c"})
	now := time.Unix(1_800_000_000, 0)
	if got := l.of("token-0", now); len(got) != 2 || got[0].To != "b" || !got[0].When.Now.Equal(now) {
		t.Errorf("the token that was used again: %+v", got)
	}
	if len(l.of("token-1", now)) != 0 || len(l.of("token-2", now)) != 1 || len(l.of("one more", now)) != 1 {
		t.Error("not the token that was used first gave way")
	}
}

func TestQuoted(t *testing.T) {
	for in, want := range map[string]string{"crew/scout": "crew/scout", "": "''", "a b": "'a b'", "it's": `'it'\''s'`,
		"$(x)": "'$(x)'", "agent://a.example:80": "agent://a.example:80", "~": "'~'", "é": "'é'"} {
		if got := quoted(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

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
