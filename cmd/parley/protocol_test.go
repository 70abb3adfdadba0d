package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/connect"
	"github.com/parley-hub/parley/internal/inspect"
	"github.com/parley-hub/parley/node"
)

// TestProtocolLists: the lists of a hub, of the command line and of the loss
// table name the same protocols.
func TestProtocolLists(t *testing.T) {
	var hubs, commands []string
	for _, p := range node.Protocols {
		hubs = append(hubs, p.Name)
	}
	for _, p := range protocols {
		commands = append(commands, p.name)
	}
	if !slices.Equal(hubs, bridge.Protocols) || !slices.Equal(commands, bridge.Protocols) {
		t.Errorf("node has %v, cmd/parley %v, bridge %v", hubs, commands, bridge.Protocols)
	}
}

// pigeonSection is the table of a protocol that the hub does not know. It has no field in
// node.Config.
type pigeonSection struct {
	Loft  string        `toml:"loft" doc:"where the pigeons live"`
	Speed node.Duration `toml:"speed" default:"\"1h\"" doc:"of a pigeon"`
}

type pigeonAgent struct {
	Ring string `toml:"ring" doc:"number on the ring of its pigeon"`
}

const pigeon = "pigeon"

type pigeonBinding struct{ delivered chan string }

func (pigeonBinding) Protocol() string { return pigeon }
func (pigeonBinding) Capabilities() hub.Capabilities {
	return hub.Capabilities{Deduplicates: true, CarriesReplies: true}
}
func (b pigeonBinding) Deliver(_ context.Context, o hub.Outbound) hub.Outcome {
	b.delivered <- o.Identity.ID + " " + o.Message.Text()
	return hub.Outcome{}
}
func (pigeonBinding) Serves(r *http.Request) bool { return r.URL.Path == "/loft" }
func (pigeonBinding) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusTeapot)
}

func recognisesPigeon(s *inspect.Sample) bool { return bytes.Contains(s.Body, []byte(`"coo"`)) }
func inspectPigeon(context.Context, *inspect.Sample, inspect.Options) (*inspect.Report, error) {
	return &inspect.Report{Inspected: admin.Inspected{Verified: true, Sentence: "A pigeon coos."}}, nil
}

// addPigeon adds the protocol to the lists until the test ends. Tests that call it must
// not be parallel: parallel tests run after them.
func addPigeon(t *testing.T) (b pigeonBinding) {
	b.delivered = make(chan string, 1)
	was, had, explained, joined := node.Protocols, protocols, inspect.Protocols, connect.Protocols
	t.Cleanup(func() {
		node.Protocols, protocols, inspect.Protocols, connect.Protocols = was, had, explained, joined
	})
	connect.Protocols = append(slices.Clone(joined), connect.Protocol{Name: pigeon,
		Paste: func(*connect.Hub, string, admin.Identity) []admin.Paste {
			return []admin.Paste{{Why: "so that it flies home", SDK: "Loft", Line: "open the hatch"}}
		}})
	inspect.Protocols = append(slices.Clone(explained), inspect.Protocol{Name: pigeon, Recognises: recognisesPigeon,
		Inspect: inspectPigeon})
	node.Protocols = append(slices.Clone(was), &node.Protocol{
		Name:    pigeon,
		Section: func(c *node.Config) any { return node.Section[pigeonSection](c, pigeon) },
		Agent:   func(a *node.Agent) any { return node.AgentSection[pigeonAgent](a, pigeon) },
		Files:   func(c *node.Config) []*string { return []*string{&node.Section[pigeonSection](c, pigeon).Loft} },
		Check: func(c *node.Config) error {
			if node.Section[pigeonSection](c, pigeon).Speed.Duration < 0 {
				return fmt.Errorf("pigeon.speed: pigeons fly forwards")
			}
			return nil
		},
		Assurance: parley.Session,
		Open: func(_ context.Context, n *node.Node) (*node.Binding, error) {
			return &node.Binding{Hub: b, Agent: func(name string, a *node.Agent) (e node.Enrolment, err error) {
				if s := *node.AgentSection[pigeonAgent](a, pigeon); s != nil {
					e.Identity = parley.Identity{Protocol: pigeon, ID: "ring:" + s.Ring}
				}
				return e, nil
			}}, nil
		},
	})
	protocols = append(slices.Clone(had), &protocol{
		name: pigeon,
		add: adding{how: "--pigeon RING", help: "  parley agents add dove --pigeon 7\n",
			flags: func(c *cobra.Command) adder {
				var ring string
				c.Flags().StringVar(&ring, "pigeon", "", "ring of a pigeon")
				return adder{
					given: func() bool { return ring != "" },
					identity: func(string) (admin.NewIdentity, error) {
						return admin.NewIdentity{Protocol: pigeon, ID: "ring:" + ring}, nil
					},
				}
			}},
		keyless: true,
		send: func(a *app, _ context.Context, s sending, content []byte, _ bool) error {
			return a.print(nil, "flies to %s with %s\n", s.to, content)
		},
		command: func(a *app) *cobra.Command {
			return group(pigeon, "Feed the pigeons", "  parley pigeon", helps)
		},
	})
	return b
}

// TestProtocolIsAddedByTheLists: the lists are enough to configure, serve, add,
// reach, inspect and send by a further protocol.
func TestProtocolIsAddedByTheLists(t *testing.T) {
	b := addPigeon(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	parleyIn := func(want int, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		if code := run(append(args, "--data", data), strings.NewReader(""), &out, &out); code != want {
			t.Fatalf("parley %s: exit code %d\n%s", strings.Join(args, " "), code, &out)
		}
		return out.String()
	}
	says := func(text string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			if !strings.Contains(text, p) {
				t.Errorf("%q is missing in\n%s", p, text)
			}
		}
	}
	file := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const head = "[listen]\nhttp = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n"

	// The configuration.
	says(parleyIn(exitOK, "config", "describe", pigeon), "pigeon.loft", "where the pigeons live", "1h")
	says(parleyIn(exitOK, "config", "describe"), "agents.<name>.pigeon.ring")
	says(node.Template(nil), "\n[pigeon]\n", "# [agents.example.pigeon]\n", `# speed = "1h"`)
	good := file("good.toml", head+"[pigeon]\nloft = \"roof\"\n[agents.dove.pigeon]\nring = \"7\"\n")
	says(parleyIn(exitUsage, "config", "check", file("a.toml", head+"[pigeon]\nlofd = \"roof\"\n")),
		`line 5: unknown key "pigeon.lofd"`, `"pigeon.loft"`)
	says(parleyIn(exitUsage, "config", "check", file("b.toml", head+"[agents.dove.pigeon]\nrin = \"7\"\n")),
		`line 5: unknown key "agents.dove.pigeon.rin"`)
	says(parleyIn(exitUsage, "config", "check", file("c.toml", head+"[pigeon]\nspeed = \"-1h\"\n")),
		"pigeons fly forwards")
	says(parleyIn(exitUsage, "config", "check", file("d.toml", head+"[pigeon]\nloft = 7\n")),
		`"pigeon.loft" wants string`)
	c, err := node.Load(good)
	if err != nil {
		t.Fatal(err)
	}
	if s := node.Section[pigeonSection](&c, pigeon); s.Loft != filepath.Join(dir, "roof") {
		t.Errorf("the loft is at %q", s.Loft)
	}

	// A hub.
	c.Data = data
	n, err := node.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e, ok := n.Hub().Directory().Lookup(pigeon, "ring:7"); !ok || e.Name != "dove" {
		t.Error("the agent of the configuration is not in the directory")
	}
	at := n.Addresses()
	for path, want := range map[string]int{at.Local + "/loft": http.StatusTeapot, at.Local +
		"/roof": http.StatusNotFound} {
		resp, err := http.Get(path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: HTTP %d", path, resp.StatusCode)
		}
	}

	// The commands.
	says(parleyIn(exitUsage, "agents", "add", "x"), "--pigeon RING")
	says(parleyIn(exitOK, "agents", "add", "--help"), "--pigeon string", "parley agents add dove --pigeon 7")
	says(parleyIn(exitOK, "agents", "add", "homer", "--pigeon", "9"),
		"ring:9", "so that it flies home", "open the hatch")
	says(parleyIn(exitOK, "agents", "expose", "homer", pigeon), "exposed in pigeon")
	says(parleyIn(exitRefused, "agents", "expose", "homer", "fax"), pigeon)
	parleyIn(exitOK, "send", "--to", "homer", "--kind", "notice", "corn")
	select {
	case got := <-b.delivered:
		if got != "ring:9 corn" {
			t.Errorf("delivered: %q", got)
		}
	case <-time.After(20 * time.Second):
		t.Error("nothing was delivered")
	}
	letter := file("letter.json", `{"coo":true}`)
	says(parleyIn(exitOK, "inspect", letter), "pigeon, from bare envelope", "A pigeon coos.")
	says(parleyIn(exitOK, "verify", letter), "A pigeon coos.")
	says(parleyIn(exitOK, "send", "--protocol", pigeon, "--to", "ring:7", "corn"), "flies to ring:7 with corn")
	says(parleyIn(exitOK, pigeon, "--help"), "Feed the pigeons")
}
