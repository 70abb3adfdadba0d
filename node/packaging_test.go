package node

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func shipped(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "packaging", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPackaging(t *testing.T) {
	c, err := Load(filepath.Join("..", "packaging", "compose.toml"))
	if err != nil || c.Listen.HTTP != ":8080" || len(c.Listen.Hosts) != 1 {
		t.Errorf("%+v, %v", c.Listen, err)
	}
	var compose struct {
		Services map[string]struct {
			User     string
			ReadOnly bool `yaml:"read_only"`
			Volumes  []string
			Ports    []string
		}
	}
	if err := yaml.Unmarshal([]byte(shipped(t, "compose.yaml")), &compose); err != nil {
		t.Fatal(err)
	}
	hub := compose.Services["parley"]
	if hub.User != "65532:65532" || !hub.ReadOnly {
		t.Errorf("%+v", hub)
	}
	for _, p := range hub.Ports {
		if strings.HasSuffix(p, ":9090") && !strings.HasPrefix(p, "127.0.0.1:") {
			t.Errorf("the admin API is published: %s", p)
		}
	}
	for _, s := range compose.Services {
		for _, v := range s.Volumes {
			if from, _, _ := strings.Cut(v, ":"); strings.HasPrefix(from, "./") {
				shipped(t, from[2:])
			}
		}
	}
	for _, name := range []string{"prometheus.yaml", "prometheus-rules.yaml"} {
		var v struct {
			Groups []struct {
				Rules []struct{ Alert, Expr string }
			}
			Scrape []struct{} `yaml:"scrape_configs"`
		}
		if err := yaml.Unmarshal([]byte(shipped(t, name)), &v); err != nil || len(v.Groups)+len(v.Scrape) == 0 {
			t.Errorf("%s: %v", name, err)
		}
		for _, g := range v.Groups {
			for _, r := range g.Rules {
				if r.Alert == "" || r.Expr == "" {
					t.Errorf("%s: %+v", name, r)
				}
			}
		}
	}
	file := shipped(t, "Containerfile")
	last := file[strings.LastIndex(file, "\nFROM "):]
	for _, want := range []string{"FROM scratch", "USER 65532:65532", "VOLUME /var/lib/parley", "CGO_ENABLED=0"} {
		if !strings.Contains(file, want) {
			t.Errorf("the container file lacks %q", want)
		}
	}
	if strings.Contains(last, "RUN ") || regexp.MustCompile(`(?m)^RUN .*(apt|apk|curl|wget)`).MatchString(file) {
		t.Error("the container file fetches more than modules")
	}
	unit := shipped(t, "parley.service")
	for _, want := range []string{"User=parley", "ExecReload=/bin/kill -HUP $MAINPID", "ProtectSystem=strict",
		"StateDirectory=parley", "NoNewPrivileges=yes"} {
		if !strings.Contains(unit, "\n"+want) {
			t.Errorf("the unit lacks %q", want)
		}
	}
}
