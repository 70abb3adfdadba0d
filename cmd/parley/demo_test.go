package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// TestDemo: the demo verifies everything it does, and its exit code is the result; with
// --json each line is one event, with the protocols by which a message comes and goes,
// the assurance of its sender, and the time.
func TestDemo(t *testing.T) {
	t.Parallel()
	t.Run("json", func(t *testing.T) {
		t.Parallel()
		var out, errs bytes.Buffer
		if code := run([]string{"demo", "--once", "--json", "--data", t.TempDir()}, strings.NewReader(""), &out,
			&errs); code != exitOK || errs.Len() > 0 {
			t.Fatalf("exit code %d\n%s\n%s", code, &errs, &out)
		}
		in, on := map[string]bool{}, map[string]bool{}
		steps, trips := 0, 0
		lines := bufio.NewScanner(&out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var e struct {
				Step                  int
				What                  string
				OK                    bool
				Milliseconds          float64
				Recorded, In, Out, To string
				Kind, State, From     string
				Assurance             string
				Time                  time.Time
			}
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				t.Fatalf("%v: %s", err, lines.Bytes())
			}
			switch {
			case e.Step > 0:
				if steps++; e.Step != steps || !e.OK || e.What == "" || e.Milliseconds <= 0 {
					t.Errorf("step %d: %s", steps, lines.Bytes())
				}
				if strings.HasPrefix(e.What, "the trip, ") {
					trips++
				}
			case e.Recorded == "" || e.Time.IsZero() || e.Out == "":
				t.Errorf("an event that says too little: %s", lines.Bytes())
			case e.Kind != "":
				if e.From == "" || e.In == "" || e.Assurance == "" {
					t.Errorf("a message that says too little: %s", lines.Bytes())
				}
				in[e.In], on[e.Out] = true, true
			case e.State == "":
				t.Errorf("neither step, message nor delivery: %s", lines.Bytes())
			}
		}
		for _, p := range []string{"samvad", "uagents", "a2e", "agh", "asp", "a2a", "mcp"} {
			if !in[p] || !on[p] {
				t.Errorf("nothing came by %s, or nothing went out in it", p)
			}
		}
		if trips != 6 {
			t.Errorf("%d legs of the trip", trips)
		}
	})
	t.Run("text", func(t *testing.T) {
		t.Parallel()
		var out, errs bytes.Buffer
		if code := run([]string{"demo", "--once"}, strings.NewReader(""), &out, &errs); code != exitOK ||
			errs.Len() > 0 {
			t.Fatalf("exit code %d\n%s\n%s", code, &errs, &out)
		}
		for _, want := range []string{"request  traveller (samvad, signed) → weather (go)", "accepted means",
			" steps verified.\n"} {
			if !strings.Contains(strings.ToLower(out.String()), strings.ToLower(want)) {
				t.Errorf("nothing says %q in\n%s", want, &out)
			}
		}
	})
}
