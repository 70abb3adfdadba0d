package inspect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/agh"
)

func TestInspectAGH(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	room, err := agh.DirectID("acme", "builders", "ana", "ben")
	if err != nil {
		t.Fatal(err)
	}
	plain := fmt.Sprintf(`{"protocol":"agh-network/v0","id":"m1","workspace_id":"acme","kind":"say","channel":"builders","surface":"direct","direct_id":%q,"from":"ana","to":"ben","ts":1800000000,"body":{"text":"hi"}}`, room)
	me, err := agh.NewIdentity("ana")
	if err != nil {
		t.Fatal(err)
	}
	e := &agh.Envelope{ID: "m2", WorkspaceID: "acme", Channel: "builders", Surface: agh.SurfaceThread,
		ThreadID: "thread_abc", From: me.ID(), TS: now.Unix()}
	if err := e.SetContent(&agh.Say{Text: "hi"}); err != nil {
		t.Fatal(err)
	}
	b, err := me.Sign(e)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body     string
		verified bool
		failed   string // the check
		says     string
	}{
		"plain":    {plain, false, "", "is a claim"},
		"signed":   {string(b), true, "", "It is proved"},
		"tampered": {strings.Replace(string(b), `"hi"`, `"ho"`, 1), false, "proof", "verification_failed"},
		"stale":    {strings.Replace(plain, "1800000000", "1700000000", 1), false, "freshness", "expired"},
		"wrong room": {strings.Replace(plain, room, "direct_"+strings.Repeat("0", 32), 1), false,
			"room", "delivered to no peer"},
		"no surface": {strings.Replace(plain, `"surface":"direct",`, "", 1), false, "surface", "malformed"},
		"blank":      {strings.Replace(plain, `"hi"`, `" "`, 1), false, "body", "malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Sample{form: "envelope", Body: []byte(c.body)}
			if !recognisesAGH(s) {
				t.Error("not recognised")
			}
			v, err := inspectAGH(t.Context(), s, Options{Now: now})
			if err != nil {
				t.Fatal(err)
			}
			failed := ""
			for _, check := range v.Checks {
				if check.State == admin.CheckFailed {
					failed = check.Name
				}
			}
			if v.Verified != c.verified || failed != c.failed || !strings.Contains(v.Sentence, c.says) {
				t.Errorf("%+v", v)
			}
		})
	}
}
