package console

import (
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
)

// steps makes a checklist whose steps are in these states.
func steps(now time.Time, whole admin.StepState, states ...admin.StepState) *admin.Checklist {
	names := []admin.ConnectStepName{admin.StepProtocol, admin.StepAddress, admin.StepReached, admin.StepCard,
		admin.StepHubKey, admin.StepFirstMessage, admin.StepAnswered}
	l := &admin.Checklist{Agent: "town/museum", Protocol: "samvad", State: whole, Begun: now.Add(-100 * time.Second),
		Ends: now.Add(time.Hour)}
	for i, s := range states {
		l.Steps = append(l.Steps, admin.ConnectStep{Step: names[i], State: s})
	}
	return l
}

// TestChecklistSteps: the page looks again until all is done or the hub gave up; one waiting step is the next.
func TestChecklistSteps(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	const done, waits, failed, none, gave = admin.StepDone, admin.StepWaiting, admin.StepFailed, admin.StepNotNeeded,
		admin.StepGaveUp
	for _, c := range []struct {
		list    *admin.Checklist
		polls   bool
		classes string
		word    string
	}{
		{steps(now, waits, done, done, done, none, done, waits, waits), true, "done done done later done now later",
			"waiting"},
		{steps(now, failed, done, done, done, done, failed, waits, waits), true, "done done done done failed now later",
			"failed at step 5"},
		{steps(now, failed, done, done, failed, waits, waits, waits, waits), true, "done done failed later later now later",
			"failed at step 3"},
		{steps(now, done, done, done, done, none, done, done, done), false, "done done done later done done done",
			"connected"},
		{steps(now, gave, done, done, done, done, done, gave, gave), false, "done done done done done later later",
			"the hub waits no longer"},
	} {
		v := checklistView(c.list, now)
		var got []string
		for _, s := range v.Steps {
			got = append(got, s.Class)
			if s.Title == "" {
				t.Errorf("step %s has no title", s.Step)
			}
		}
		if s := strings.Join(got, " "); s != c.classes || v.Polls != c.polls || v.Sign.Word != c.word {
			t.Errorf("%s: %s, polls %t, %q", c.list.State, s, v.Polls, v.Sign.Word)
		}
	}
	late := steps(now, failed, failed)
	late.Ends = now
	if checklistView(late, now).Polls {
		t.Error("the page looks on after the hub's last look")
	}
}

// TestFailedStepSaysWhatHelps: a failed step shows its detail, the setting that mends it and the refusal, as text.
func TestFailedStepSaysWhatHelps(t *testing.T) {
	p, err := parsePages("/console/static/")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	l := steps(now, admin.StepFailed, admin.StepDone, admin.StepDone, admin.StepFailed)
	s := &l.Steps[2]
	s.Detail, s.Fix, s.Ref, s.Time = "TCP: <b>refused</b>", "set `network.allow`", "r-12345678", now
	v := checklistView(l, now)
	var b strings.Builder
	page := Page{Base: Base, Data: &Connect{One: &v}, By: &admin.Actor{Role: admin.Read}}
	if err := p.by["connect"].ExecuteTemplate(&b, "body", page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`class="failed" data-step="reached" data-state="failed"`,
		"TCP: &lt;b&gt;refused&lt;/b&gt;",
		"set <code>network.allow</code>", `href="/console/?m=r-12345678"`, "parley explain r-12345678", "failed at step 3"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the page lacks %s", want)
		}
	}
}
