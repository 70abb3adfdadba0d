package main

import (
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/internal/bench"
)

func (a *app) benchUAgentsCommand() *cobra.Command {
	return a.compareCommand(&cobra.Command{
		Use:   "uagents",
		Short: "Signed synchronous uAgents envelopes to a Go handler",
		Long: `Measure signed synchronous uAgents envelopes to a Go handler, whose answers the
hub signs, next to a floor with one secp256k1 verification, two appends and no
signature.`,
		Example: `  parley bench uagents
  parley bench uagents --connections 64 --storage disk --dir . --duration 10s`,
	}, bench.UAgents, nil)
}
