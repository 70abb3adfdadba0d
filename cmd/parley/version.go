package main

import (
	"fmt"
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
		Example: "  parley version --json\n  parley --version",
		RunE: func(*cobra.Command, []string) error {
			return a.print(map[string]string{"parley": version, "go": runtime.Version(), "engine": engineVersion(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH}, "%s", versionText())
		},
	}
}

// versionText is what `parley version` and `parley --version` write.
func versionText() string {
	return fmt.Sprintf("parley %s (%s, %s/%s, JetStream %s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH,
		engineVersion())
}

// engineVersion is the version of the NATS server that is built in.
func engineVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, d := range info.Deps {
			if d.Path == "github.com/nats-io/nats-server/v2" {
				return d.Version
			}
		}
	}
	return "unknown"
}
