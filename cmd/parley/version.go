package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker for releases.
var version = "0.1.0-dev"

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  parley version --json",
		RunE: func(*cobra.Command, []string) error {
			engine := "unknown"
			if info, ok := debug.ReadBuildInfo(); ok {
				for _, d := range info.Deps {
					if d.Path == "github.com/nats-io/nats-server/v2" {
						engine = d.Version
					}
				}
			}
			return a.print(map[string]string{"parley": version, "go": runtime.Version(), "engine": engine,
				"platform": runtime.GOOS + "/" + runtime.GOARCH},
				"parley %s (%s, %s/%s, JetStream %s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
				engine)
		},
	}
}
