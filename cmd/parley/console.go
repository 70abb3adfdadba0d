package main

import (
	"context"
	"os/exec"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/admin"
)

func (a *app) consoleCommand() *cobra.Command {
	var open bool
	c := &cobra.Command{
		Use:   "console",
		Short: "Print a link that opens the console in a browser",
		Long: `Print a link to the hub's console. It works once, within ten minutes, and lets the browser
in with the role of your token. With --open it opens the browser of this machine.`,
		Example: `  parley console
  parley console --open
  PARLEY_TOKEN=parley_… parley console --admin https://hub.corp:9090`,
		Args: cobra.NoArgs,
		RunE: a.withHub(func(ctx context.Context, hub *admin.Client, _ []string) error {
			l, err := hub.ConsoleLink(ctx)
			if err != nil {
				return err
			}
			url := strings.TrimSuffix(hub.Base, "/") + l.Path
			if open {
				if err := openBrowser(ctx, url); err != nil {
					return usage("cannot open a browser: %s; open this link yourself: %s", err, url)
				}
			}
			return a.print(map[string]any{"url": url, "name": l.Name, "role": l.Role, "expires": l.Expires},
				"%s\n  lets one browser in as %s, %s, until %s\n", url, l.Name, l.Role, stamp(l.Expires))
		}),
	}
	c.Flags().BoolVar(&open, "open", false, "open the link in the browser of this machine")
	return c
}

// openBrowser has the desktop open a link.
func openBrowser(ctx context.Context, url string) error {
	name, args := "xdg-open", []string{url}
	if runtime.GOOS == "darwin" {
		name = "open"
	}
	return exec.CommandContext(ctx, name, args...).Run()
}
