package flows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/internal/browser"
)

// aKey is an Ed25519 public key.
const aKey = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="

// foretold fills the first form of a dialog of an agent, and waits for the one that says what would change.
func (v *tab) foretold(dialog string, fields map[string]string, want ...string) {
	v.t.Helper()
	v.do(browser.Click(`.changes a[href="#`+dialog+`"]`), browser.Has("#"+dialog+":target"))
	for name, text := range fields {
		if name == "in" {
			v.is(fmt.Sprintf(`(document.querySelector('#%s [name="in"]').value = %q)`, dialog, text), "a protocol")
			continue
		}
		v.do(browser.Type(`#`+dialog+` input[name="`+name+`"]`, text))
	}
	v.shot("agent-" + dialog)
	v.do(browser.Click(submit), browser.Has("#ask:target"))
	v.says("#ask", want...)
	v.shot("agent-" + dialog + "-ask")
}

// TestFlowChangesOfAgents: link, enrol and rotate say what they would do, and do it; if the effect has changed
// meanwhile, they ask again.
func TestFlowChangesOfAgents(t *testing.T) {
	c := begin(t)
	v := c.entered(browser.Look{Width: 1440, Height: 1400}, admin.Administer)
	const page = "/console/agents/museum"
	keys := func() (own int, enrolled []string) {
		k, err := c.API.Keys(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range k.Own {
			if o.Owner == "museum" {
				own++
			}
		}
		for _, e := range k.Enrolled {
			if e.Agent == "museum" {
				enrolled = append(enrolled, e.Purpose+" "+e.KeyID)
			}
		}
		return own, enrolled
	}
	v.to(page)
	v.foretold("link", map[string]string{"in": "agh", "id": "telex:museum"}, "museum is telex:museum in agh, too",
		"parley agents link museum --protocol agh --id telex:museum")
	v.do(browser.ClickTo(submit, page))
	v.says(`[data-binding="agh"]`, "itself", "telex:museum")

	v.to(page)
	v.foretold("enroll", map[string]string{"in": "samvad", "key": aKey, "keyid": "second"},
		"are from museum from now on", "parley keys enroll museum --protocol samvad --key "+aKey+" --key-id second")
	v.do(browser.ClickTo(submit, page))
	if _, list := keys(); !slices.Contains(list, "samvad second") {
		t.Errorf("enrolled: %q", list)
	}

	v.to(page)
	own, _ := keys()
	v.foretold("rotate", map[string]string{"in": "asp", "overlap": "48h"}, "stays valid until",
		"parley keys rotate museum --protocol asp --overlap 48h0m0s")
	if _, err := c.API.Rotate(t.Context(), admin.Rotation{Owner: "museum", Purpose: "asp"}); err != nil {
		t.Fatal(err)
	}
	v.do(browser.Click(submit), browser.Has("#ask:target [data-changed]"))
	if now, _ := keys(); now != own+1 {
		t.Errorf("%d own keys, and %d before: what was read is not so any more", now, own)
	}
	v.do(browser.ClickTo(submit, page))
	if now, _ := keys(); now != own+2 {
		t.Errorf("%d own keys, and %d before", now, own)
	}
	list, err := c.API.Audit(t.Context(), admin.AuditFilter{By: "laptop of the administer"})
	var done []string
	for _, e := range slices.Backward(list) {
		done = append(done, e.Action+" "+e.Via)
	}
	if got := strings.Join(done, ", "); err != nil || got != "agent.link console, key.enroll console, key.rotate console" {
		t.Errorf("the audit list has %s, %v", got, err)
	}
}

// TestFlowForget: the dialog counts, wants the digits typed, asks again if there is more by then, and erases.
func TestFlowForget(t *testing.T) {
	c := begin(t)
	c.trip()
	id := c.planned()
	page := "/console/conversations/" + id
	v := c.entered(browser.Look{Width: 1440, Height: 1400}, admin.Administer)
	v.to(page)
	v.do(browser.Click(".title a.danger"), browser.Has("#forget:target"))
	v.says("#forget", "would go, for good", "parley forget --conversation "+id[:8])
	v.shot("forget")
	v.do(browser.Type(`#forget input[name="why"]`, "asked to"), browser.Type(`#forget input[name="typed"]`, "01234567"),
		browser.Click(submit), browser.HasText("main h1", "This was not done"))
	v.says("main", id[:8])

	v.to(page + "?ask=forget#forget")
	v.do(browser.Type(`#forget input[name="why"]`, "asked to"), browser.Type(`#forget input[name="typed"]`, id[:8]))
	more := "one more"
	if _, err := c.API.AddAgent(t.Context(), admin.NewAgent{Name: "shelf", Inbox: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.API.Send(t.Context(), admin.Send{From: "planner", To: "shelf", Kind: parley.Notice, Conversation: id,
		Text: &more}); err != nil {
		t.Fatal(err)
	}
	v.do(browser.Click(submit), browser.Has("#forget:target [data-changed]"))
	v.says("#forget [data-kept]", "1 not delivered yet")
	v.is(`document.querySelector('#forget input[name="why"]').value === "asked to"`, "the reason stays")
	v.do(browser.Type(`#forget input[name="typed"]`, id[:8]), browser.ClickTo(submit, page))
	v.says("main", "erased")
	list, err := c.API.Erasures(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != id || list[0].Reason != "asked to" {
		t.Errorf("%+v, %v", list, err)
	}
}
