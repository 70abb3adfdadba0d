package inspect

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/parley-hub/parley/admin"
)

// vectorCase is a case of any vector file.
type vectorCase struct {
	Name  string
	Input struct {
		Now      int64
		Raw      string
		Message  json.RawMessage
		Envelope json.RawMessage
	}
	Expect struct {
		Valid  *bool
		Accept *bool
		OK     *bool
		State  string
	}
}

// TestInspectExplainsEveryVector: for every message of the vectors, valid or broken,
// inspect recognises the protocol, lists the checks in order, and names the fault or the
// proof in one sentence. It never accepts a message that the vectors refuse.
func TestInspectExplainsEveryVector(t *testing.T) {
	t.Parallel()
	for _, f := range []struct {
		protocol, file string
		least          int // cases that are explained
	}{
		{"uagents", "envelope_verify.json", 50}, {"a2e", "messages_valid.json", 80},
		{"a2e", "messages_invalid.json", 300},
		{"agh", "envelope-parse.json", 150}, {"agh", "trust-verify.json", 40}, {"asp", "envelope.json", 30},
	} {
		t.Run(f.protocol+" "+f.file, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("../../testdata/vectors", f.protocol, f.file))
			if err != nil {
				t.Fatal(err)
			}
			var file struct{ Cases []vectorCase }
			if err := json.Unmarshal(b, &file); err != nil {
				t.Fatal(err)
			}
			explained := 0
			for _, c := range file.Cases {
				raw := []byte(c.Input.Raw)
				for _, m := range []json.RawMessage{c.Input.Message, c.Input.Envelope} {
					if len(m) > 0 {
						raw = m
					}
				}
				s, err := Read(raw)
				if err != nil {
					continue // not JSON: the protocol is unknown
				}
				o := Options{Now: time.Unix(1767225500, 0)}
				if c.Input.Now > 0 {
					o.Now = time.Unix(c.Input.Now, 0)
				}
				at := slices.IndexFunc(Protocols, func(p Protocol) bool { return p.Recognises(s) })
				if at < 0 || Protocols[at].Name != f.protocol {
					continue // the fault is in the name of the protocol
				}
				explained++
				v, err := Protocols[at].Inspect(t.Context(), s, o)
				if err != nil {
					t.Errorf("%s: %v", c.Name, err)
					continue
				}
				failed, before := false, true
				for _, check := range v.Checks {
					failed = failed || check.State == admin.CheckFailed
					if check.State != admin.CheckOK {
						before = false
					} else if !before && f.protocol != "samvad" && f.protocol != "uagents" {
						t.Errorf("%s: the check %s was made after one that was not", c.Name, check.Name)
					}
				}
				for _, field := range v.Fields {
					if field.Meaning == "" {
						t.Errorf("%s: the field %s is not explained", c.Name, field.Name)
					}
				}
				if v.Sentence == "" || len(v.Checks) == 0 {
					t.Errorf("%s: %+v says nothing", c.Name, v)
				}
				refused := false
				for _, x := range []*bool{c.Expect.Valid, c.Expect.Accept, c.Expect.OK} {
					refused = refused || x != nil && !*x
				}
				switch {
				case refused && v.Verified:
					t.Errorf("%s is refused by the vectors and said to be proved: %s", c.Name, v.Sentence)
				case failed && v.Verified:
					t.Errorf("%s failed a check and is said to be proved", c.Name)
				}
			}
			if explained < f.least {
				t.Errorf("only %d of %d are explained", explained, len(file.Cases))
			}
		})
	}
}
