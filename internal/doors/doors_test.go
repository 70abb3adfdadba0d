// Package doors keeps the import rules of the design: which of Parley's packages may
// reach which, transitively.
package doors

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/parley-hub/parley/bridge"
)

const module = "github.com/parley-hub/parley"

// protocols have a package of their own. A2A and MCP stand on their official SDKs instead.
var protocols = slices.DeleteFunc(slices.Clone(bridge.Protocols), func(p string) bool { return p == "a2a" || p == "mcp" })

// below lists the packages that a package may reach besides internal/…; unlisted
// packages may reach none of Parley's. "bridge/*" stands for each protocol.
func below(pkg string) ([]string, bool) {
	stores := []string{"journal/store", "journal/sqlite", "journal/jetstream"}
	core := []string{"", "journal/store", "journal", "directory", "policy", "delivery", "keyring", "hub"}
	all := append(append(slices.Clone(core), stores...), "journal/index", "bridge", "bridge/follow", "bridge/peerauth",
		"node", "admin", "console", "conform", "agh/aghnats", "bridge/a2a", "bridge/mcp",
		"internal/bench", "internal/bench/load", "internal/bench/floor", "internal/pairs",
		"internal/browser", "internal/browser/stage")
	for _, p := range protocols {
		all = append(all, p, p+"/"+p+"test", "bridge/"+p)
	}
	switch pkg {
	case "":
		return nil, true
	case "agh/aghnats":
		return []string{"agh"}, true
	case "keyring":
		return []string{""}, true
	case "journal":
		return []string{"", "journal/store"}, true
	case "journal/store":
		return nil, true
	case "journal/sqlite", "journal/jetstream", "journal/store/storetest":
		return []string{"journal/store"}, true
	case "internal/testjournal":
		return stores, true
	case "journal/index":
		return []string{"", "journal/store", "journal"}, true
	case "directory":
		return []string{"", "journal/store", "journal"}, true
	case "policy":
		return []string{"", "directory", "journal/store", "journal"}, true
	case "delivery":
		return []string{"", "journal/store", "journal", "directory"}, true
	case "hub":
		return core[:len(core)-1], true
	case "bridge":
		return core, true
	case "bridge/follow":
		return append(slices.Clone(core), "bridge", "journal/index"), true
	case "bridge/peerauth":
		return []string{"", "journal/store", "journal", "keyring"}, true
	case "bridge/a2a", "bridge/mcp": // they have no store of calls: they find them by the index
		return append(slices.Clone(core), "bridge", "bridge/follow", "bridge/peerauth", "journal/index"), true
	case "bridge/bridgetest":
		return append(slices.Clone(core), "bridge"), true
	case "admin":
		return append(slices.Clone(core), "journal/index"), true
	case "console":
		return append(slices.Clone(core), "admin", "journal/index"), true
	case "conform":
		return append(slices.Clone(protocols), "agh/aghnats"), true
	case "internal/inspect", "internal/connect", "internal/doctor":
		return all, true
	case "node", "parleytest", "internal/pairs", "internal/pairs/cluster", "internal/bench", "cmd/parley", "internal/interop",
		"internal/faults", "internal/testhub", "internal/browser/stage", "internal/browser/flows",
		"internal/browser/pictures", "examples":
		return all, true
	case "internal/attack":
		return []string{"uagents", "asp"}, true
	case "internal/bench/load", "internal/bench/floor":
		return []string{"internal/bench/load"}, true
	}
	for _, p := range protocols {
		switch pkg {
		case p:
			return nil, true
		case p + "/" + p + "test":
			return []string{p}, true
		case "bridge/" + p:
			b := append(slices.Clone(core), "bridge", p)
			if p == "agh" {
				b = append(b, "agh/aghnats")
			}
			return b, true
		}
	}
	if strings.HasPrefix(pkg, "examples/") {
		return all, true
	}
	return nil, strings.HasPrefix(pkg, "internal/")
}

func TestDoors(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}:{{join .Deps " "}}`, module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) < 10 {
		t.Fatalf("only %d packages found", len(lines))
	}
	for _, line := range lines {
		path, deps, _ := strings.Cut(line, ":")
		pkg := short(path)
		allowed, known := below(pkg)
		if !known {
			t.Errorf("package %s has no rule here: add one that fits the design", pkg)
			continue
		}
		for _, dep := range strings.Fields(deps) {
			if dep != module && !strings.HasPrefix(dep, module+"/") {
				if pkg == "" && strings.Contains(strings.Split(dep, "/")[0], ".") {
					t.Errorf("the vocabulary imports %s; it may import the standard library only", dep)
				}
				continue
			}
			d := short(dep)
			if strings.HasPrefix(d, "internal/") && pkg != "" && !strings.HasPrefix(pkg, "internal/") || d == pkg ||
				slices.Contains(allowed, d) {
				continue
			}
			if strings.HasPrefix(pkg, "internal/") && strings.HasPrefix(d, "internal/") {
				continue
			}
			t.Errorf("%s reaches %s, which it may not", pkg, d)
		}
	}
}

func short(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
}
