package conformance

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A tree with one package: two files of vectors, of which the tests run one.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for path, content := range map[string]string{
		"testdata/vectors/samvad/sign.json":   "{}",
		"testdata/vectors/samvad/verify.json": "{}",
		"samvad/a_test.go": `package samvad

// SAM-001 is proved by a helper.
func helper() {}

func TestHelped(t *testing.T) { helper() }

// SAM-002
func TestSkipped(t *testing.T) { t.Skip() }

func TestNamed(t *testing.T) {
	t.Run("SAM-003 runs", func(t *testing.T) {})
	t.Run("SAM-004 is skipped", func(t *testing.T) { t.Skip() })
}

// SAM-005
func TestAllSkipped(t *testing.T) { t.Run("some", func(t *testing.T) { t.Skip() }) }

// SAM-007
func vectorVerify() {}

func TestVectors(t *testing.T) {
	table := map[string]func(){
		// SAM-006
		"sign.json":   vectorSign, // SAM-009
		"verify.json": vectorVerify,
	}
	switch name {
	case "verify.json": // SAM-010
		table[name]()
	}
}
`,
		"samvad/b_test.go": `//go:build never

package samvad

// SAM-008
func TestTagged(t *testing.T) {}
`} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const events1 = `{"Action":"start","Package":"github.com/parley-hub/parley/samvad"}
{"Action":"pass","Package":"github.com/parley-hub/parley/samvad","Test":"TestHelped"}
{"Action":"skip","Package":"github.com/parley-hub/parley/samvad","Test":"TestSkipped"}
{"Action":"pass","Package":"github.com/parley-hub/parley/samvad","Test":"TestNamed/SAM-003_runs"}
{"Action":"skip","Package":"github.com/parley-hub/parley/samvad","Test":"TestNamed/SAM-004_is_skipped"}
{"Action":"pass","Package":"github.com/parley-hub/parley/samvad","Test":"TestNamed"}
{"Action":"skip","Package":"github.com/parley-hub/parley/samvad","Test":"TestAllSkipped/some"}
{"Action":"pass","Package":"github.com/parley-hub/parley/samvad","Test":"TestAllSkipped"}
{"Action":"pass","Package":"github.com/parley-hub/parley/samvad","Test":"TestVectors/sign.json/one"}
{"Action":"pass","Package":"github.com/parley-hub/parley/samvad","Test":"TestVectors/sign.json"}
{"Action":"pass","Package":"github.com/parley-hub/parley/samvad","Test":"TestVectors"}
{"Action":"pass","Package":"github.com/parley-hub/parley/samvad"}
`

func TestOnlyWhatRanCounts(t *testing.T) {
	t.Parallel()
	all, err := claims(tree(t))
	if err != nil {
		t.Fatal(err)
	}
	ran := outcomes{}
	if err := ran.read(strings.NewReader(events1)); err != nil {
		t.Fatal(err)
	}
	var yes, no []string
	for c := range all {
		if s := c.rule + " " + c.String(); ran.ran(c) {
			yes = append(yes, s)
		} else {
			no = append(no, s)
		}
	}
	slices.Sort(yes)
	slices.Sort(no)
	if want := []string{"SAM-001 samvad.TestHelped", "SAM-003 samvad.TestNamed", "SAM-006 samvad.TestVectors/sign.json",
		"SAM-009 samvad.TestVectors/sign.json"}; !slices.Equal(yes, want) {
		t.Errorf("counted %q, want %q", yes, want)
	}
	if want := []string{"SAM-002 samvad.TestSkipped", "SAM-004 samvad.TestNamed", "SAM-005 samvad.TestAllSkipped",
		"SAM-007 samvad.TestVectors/verify.json", "SAM-008 samvad.TestTagged",
		"SAM-010 samvad.TestVectors/verify.json"}; !slices.Equal(no, want) {
		t.Errorf("not counted %q, want %q", no, want)
	}

	// The page reads back as it was written.
	checklist := []rule{{"SAM-001", "a | b"}, {"SAM-002", "c"}, {"SAM-003", "d"}, {"SAM-099", "e. Not offered: f"}}
	page, missing := render(map[string][]rule{"samvad": checklist}, all, ran.ran)
	if !slices.Equal(missing, []string{"SAM-002"}) {
		t.Errorf("missing %q", missing)
	}
	want := map[claim]bool{
		{"SAM-001", proof{"samvad", "TestHelped"}}: true,
		{"SAM-003", proof{"samvad", "TestNamed"}}:  true,
	}
	if got := counted(page); !maps.Equal(got, want) {
		t.Errorf("read %v, want %v from\n%s", got, want, page)
	}
}

func TestAFailureIsNoProof(t *testing.T) {
	t.Parallel()
	ran := outcomes{}
	for _, run := range []string{events1,
		`{"Action":"fail","Package":"github.com/parley-hub/parley/samvad","Test":"TestHelped"}`} {
		if err := ran.read(strings.NewReader(run)); err != nil {
			t.Fatal(err)
		}
	}
	if ran.ran(claim{"SAM-001", proof{"samvad", "TestHelped"}}) {
		t.Error("a test that failed in one of two runs counts")
	}
	if err := ran.read(strings.NewReader("ok  samvad 0.1s")); err == nil {
		t.Error("text that is no JSON was read as events")
	}
}
