package console_test

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley/admin"
)

// key2 and key3 are further Ed25519 public keys.
const (
	key2 = "O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik="
	key3 = "tK71jkKkXslaPpFCOLTrnLSgR6zDJGYANl/wt9EZ+ec="
)

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([a-z]+)" value="([^"]*)">`)

// asked is the form of the dialog that an address shows.
func (w *browser) asked(path, id string) url.Values {
	w.t.Helper()
	_, rest, ok := strings.Cut(w.page(path), `<div class="scrim" id="`+id+`"`)
	if !ok {
		w.t.Fatalf("%s shows no dialog", path)
	}
	rest, _, _ = strings.Cut(rest, "</form>")
	form := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(rest, -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	return form
}

// TestKeysAreChangedAsForetold: link, enrol and rotate show what would happen, do it when it is ordered, and are in the
// audit list.
func TestKeysAreChangedAsForetold(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("root", admin.Administer))
	has(t, detail(t, w.page("/console/agents/acme/buyer"), "acme/buyer"), `id="link"`, `id="enroll"`, `id="rotate"`,
		`<option value="asp">ASP</option>`)
	for _, c := range []struct {
		ask, command string
		says         []string
	}{
		{"link&in=agh&id=telex:buyer&keyid=k9&key=" + url.QueryEscape(key2), "parley agents link acme/buyer --protocol agh " +
			"--id telex:buyer --key " + key2 + " --key-id k9", []string{"acme/buyer is telex:buyer in agh, too."}},
		{"enroll&in=samvad&key=" + url.QueryEscape(key2), "parley keys enroll acme/buyer --protocol samvad --key " + key2,
			[]string{"are from acme/buyer from now on", "stay valid: 1"}},
		{"rotate&in=asp&overlap=48h", "parley keys rotate acme/buyer --protocol asp --overlap 48h0m0s",
			[]string{"The new key signs at once", "stays valid until"}},
	} {
		name, _, _ := strings.Cut(c.ask, "&")
		page := w.page("/console/agents/acme/buyer?ask=" + c.ask)
		has(t, html.UnescapeString(page), append(c.says, `<code class="dim">`+c.command+`</code>`)...)
		before := b.keys("acme/buyer")
		form := w.asked("/console/agents/acme/buyer?ask="+c.ask, "ask")
		if !slices.Equal(before, b.keys("acme/buyer")) {
			t.Fatalf("%s: the question alone changed keys", name)
		}
		form.Set("name", "acme/buyer")
		if status, page := w.agentForm(name, form); status != http.StatusOK {
			t.Fatalf("%s: %d %s", name, status, page)
		}
		if after := b.keys("acme/buyer"); len(after) != len(before)+1 {
			t.Errorf("%s: keys %q, before %q", name, after, before)
		}
		action := map[string]string{"link": "agent.link", "enroll": "key.enroll", "rotate": "key.rotate"}[name]
		if list, err := b.api.Audit(t.Context(), admin.AuditFilter{Action: action}); err != nil || len(list) != 1 ||
			list[0].Actor != "root" || list[0].Via != "console" {
			t.Errorf("%s: the audit list has %+v, %v", name, list, err)
		}
	}
	v, err := b.api.Agent(t.Context(), "acme/buyer", 0)
	if err != nil || !slices.ContainsFunc(v.Identities, func(i admin.Identity) bool { return i.ID == "telex:buyer" }) {
		t.Errorf("%+v, %v", v.Identities, err)
	}
}

// keys are the keys of an agent, the hub's own among them.
func (b *bench) keys(agent string) (out []string) {
	b.t.Helper()
	k, err := b.node.Admin().Keys(b.t.Context(), admin.Actor{Name: "test", Role: admin.Observe}, agent)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, o := range k.Own {
		out = append(out, o.ID+" "+string(o.State))
	}
	for _, e := range k.Enrolled {
		out = append(out, e.Purpose+" "+e.KeyID)
	}
	return out
}

// TestChangesAreCountedAgain: what is not as the operator read it is not done; the dialog comes back.
func TestChangesAreCountedAgain(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("root", admin.Administer))
	for ask, meanwhile := range map[string]func() error{
		"enroll&in=samvad&key=" + url.QueryEscape(key2): func() error {
			return b.api.Enroll(t.Context(), admin.Enrolment{Agent: "acme/buyer", NewIdentity: admin.NewIdentity{
				Protocol: "samvad", PublicKey: key3}})
		},
		"rotate&in=asp&overlap=48h": func() error {
			_, err := b.api.Rotate(t.Context(), admin.Rotation{Owner: "acme/buyer", Purpose: "asp"})
			return err
		},
		"link&in=agh&id=telex:buyer": func() error {
			_, err := b.api.Expose(t.Context(), "acme/buyer", []string{"asp", "agh"})
			return err
		},
		"expose&p=asp&p=a2a": func() error {
			_, err := b.api.Expose(t.Context(), "acme/buyer", []string{"asp", "a2a"})
			return err
		},
	} {
		name, _, _ := strings.Cut(ask, "&")
		form := w.asked("/console/agents/acme/buyer?ask="+ask, "ask")
		b.clock.move(61e9) // the times that it says are later by now: that is no change
		if err := meanwhile(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		before := b.keys("acme/buyer")
		status, page := w.agentForm(name, form)
		if status != http.StatusOK || !strings.Contains(page, "data-changed") {
			t.Errorf("%s: %d, and the dialog does not come back", name, status)
		}
		if after := b.keys("acme/buyer"); !slices.Equal(before, after) {
			t.Errorf("%s was done: %q, before %q", name, after, before)
		}
		again := w.asked("/console/agents/acme/buyer?ask="+ask, "ask")
		b.clock.move(61e9)
		if status, page := w.agentForm(name, again); status != http.StatusOK || strings.Contains(page, "data-changed") {
			t.Errorf("%s, read again: %d, changed %t", name, status, strings.Contains(page, "data-changed"))
		}
	}
}

// TestAgentDialogsNeedTheRole: an operator has no form of them, and sends none by hand.
func TestAgentDialogsNeedTheRole(t *testing.T) {
	b := hall(t)
	w := b.entered(b.token("ops", admin.Operate))
	d := detail(t, w.page("/console/agents/acme/buyer"), "acme/buyer")
	for _, name := range []string{"link", "enroll", "rotate"} {
		if strings.Contains(d, `id="`+name+`"`) {
			t.Errorf("an operator has the form %s", name)
		}
		form := url.Values{"name": {"acme/buyer"}, "in": {"samvad"}, "id": {"agent://x"}, "key": {key2}, "seen": {""}}
		if status, _ := w.agentForm(name, form); status != http.StatusForbidden {
			t.Errorf("%s by a hand-made form: %d", name, status)
		}
	}
}

// TestForgetCountsAndAsks: the dialog counts; the digits are typed; what is not as it was read is not erased.
func TestForgetCountsAndAsks(t *testing.T) {
	b, m := told(t, "a word to forget")
	id := m.Conversation.String()
	path := "/console/conversations/" + id
	w := b.entered(b.token("root", admin.Administer))
	there := func() bool { return strings.Contains(w.page(path+"?view=content"), "a word to forget") }
	page := w.page(path + "?ask=forget")
	has(t, page, "there is no content to erase", "1 not delivered yet", "parley forget --conversation "+id[:8])
	b.collect("reader")
	form := w.asked(path+"?ask=forget", "forget")
	has(t, w.page(path+"?ask=forget"), "the content of 1 message would go")
	form.Set("why", "asked to")
	for _, typed := range []string{"", id[:7], id} {
		form.Set("typed", typed)
		if status, _ := w.post(path+"/forget", form); status != http.StatusBadRequest || !there() {
			t.Errorf("typed %q: %d, there %t", typed, status, there())
		}
	}
	b.say("another word", id)
	b.collect("reader")
	form.Set("typed", id[:8])
	status, page := w.post(path+"/forget", form)
	if status != http.StatusOK || !there() {
		t.Fatalf("what was read is not so any more: %d, there %t", status, there())
	}
	has(t, page, "data-changed", "the content of 2 messages would go", `name="why" value="asked to"`)
	form = w.asked(path+"?ask=forget", "forget")
	form.Set("typed", id[:8])
	form.Set("why", "asked to")
	if status, _ := w.post(path+"/forget", form); status != http.StatusOK || there() {
		t.Errorf("the digits: %d, there %t", status, there())
	}
	list, err := b.api.Audit(t.Context(), admin.AuditFilter{Action: "forget"})
	if err != nil || len(list) != 1 || list[0].Via != "console" || list[0].Detail != "asked to" {
		t.Errorf("the audit list has %+v, %v", list, err)
	}
	ops := b.entered(b.token("ops", admin.Operate))
	has(t, ops.page(path+"?ask=forget"), `disabled title="needs the role admin">Forget`)
	if status, _ := ops.post(path+"/forget", form); status != http.StatusForbidden {
		t.Errorf("an operator, by a hand-made form: %d", status)
	}
}
