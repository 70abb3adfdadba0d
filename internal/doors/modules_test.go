package doors

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// modules lists the modules of others that a program builds which imports a protocol
// package. The package with its helpers for tests needs no more.
var modules = map[string][]string{
	"": nil,
	"samvad": {"code.dny.dev/ssrf", "github.com/dunglas/httpsfv", "github.com/go-jose/go-jose/v4",
		"github.com/go-json-experiment/json", "github.com/google/uuid", "github.com/santhosh-tekuri/jsonschema/v6",
		"golang.org/x/net", "golang.org/x/text"},
	"uagents": {"code.dny.dev/ssrf", "github.com/decred/dcrd/dcrec/secp256k1/v4", "github.com/go-json-experiment/json",
		"github.com/google/uuid", "golang.org/x/crypto", "golang.org/x/text", "golang.org/x/time"},
	"a2e": {"code.dny.dev/ssrf", "github.com/go-json-experiment/json", "github.com/google/uuid", "golang.org/x/text"},
	"agh": {"github.com/go-json-experiment/json", "golang.org/x/time"}, // without NATS, which agh/aghnats brings
	"asp": {"github.com/coder/websocket", "github.com/go-json-experiment/json", "github.com/google/uuid",
		"github.com/vmihailenco/msgpack/v5", "github.com/vmihailenco/tagparser/v2", "golang.org/x/crypto",
		"golang.org/x/text", "golang.org/x/time"},
}

// maxModules is the most that one protocol package may need.
const maxModules = 8

// heavy are the modules of a hub. No protocol package may need one.
var heavy = []string{"nats-io", "opentelemetry", "sqlite", "prometheus", "cobra"}

// TestModules: a program that imports one protocol package gets few modules of others.
func TestModules(t *testing.T) {
	for _, p := range protocols {
		if modules[p] == nil {
			t.Errorf("package %s has no list of modules here", p)
		}
	}
	for p, want := range modules {
		if len(want) > maxModules {
			t.Errorf("package %s needs %d modules, more than %d", p, len(want), maxModules)
		}
		if !slices.IsSorted(want) {
			t.Errorf("the modules of package %s are not sorted", p)
		}
		packages := []string{p}
		if p != "" {
			packages = append(packages, p+"/"+p+"test")
		}
		for _, pkg := range packages {
			got := needs(t, pkg)
			if !slices.Equal(got, want) {
				t.Errorf("a program that imports package %q builds the modules %q, want %q", pkg, got, want)
			}
			for _, m := range got {
				if slices.ContainsFunc(heavy, func(h string) bool { return strings.Contains(m, h) }) {
					t.Errorf("package %q needs %s", pkg, m)
				}
			}
		}
	}
}

// needs gives the modules of others whose packages a package reaches, sorted. It asks no
// network.
func needs(t *testing.T, pkg string) []string {
	t.Helper()
	list := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}",
		strings.TrimSuffix(module+"/"+pkg, "/"))
	list.Env = append(os.Environ(), "GOPROXY=off")
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list %s: %v", pkg, err)
	}
	found := strings.Fields(string(out))
	slices.Sort(found)
	return slices.Compact(found)
}
