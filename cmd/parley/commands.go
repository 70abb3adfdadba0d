package main

import (
	"cmp"
	"os"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley/node"
)

// commands are the commands of parley.
func (a *app) commands() []*cobra.Command {
	return append([]*cobra.Command{
		a.initCommand(), a.doctorCommand(),
		a.demoCommand(), a.serveCommand(),
		a.sendCommand(), a.listenCommand(),
		a.agentsCommand(), a.keysCommand(), a.tokensCommand(),
		a.inspectCommand(), a.verifyCommand(), a.mapCommand(),
		a.conversationCommand(), a.tailCommand(),
		a.deadCommand(), a.refusedCommand(), a.explainCommand(),
		a.backupCommand(), a.restoreCommand(), a.journalCommand(), a.forgetCommand(),
		a.configCommand(), a.benchCommand(), a.versionCommand(),
		a.completionCommand(), a.manCommand(),
	}, a.ofProtocols(func(p *protocol) func(*app) *cobra.Command { return p.command })...)
}

// load reads the configuration that the flags name, or gives the defaults if there
// is no file.
func (a *app) load() (node.Config, error) {
	path := a.config
	if path == "" {
		if _, err := os.Stat("parley.toml"); err != nil {
			return a.override(node.Config{}), nil
		}
		path = "parley.toml"
	}
	c, err := node.Load(path)
	if err != nil {
		return node.Config{}, &exitError{exitUsage, err}
	}
	return a.override(c), nil
}

// located is the configuration for finding a hub. If the command line names the
// hub (told), an error in ./parley.toml is ignored, unless --config names that file.
func (a *app) located(told bool) (node.Config, error) {
	c, err := a.load()
	if err != nil && told && a.config == "" {
		return a.override(node.Config{}), nil
	}
	return c, err
}

func (a *app) override(c node.Config) node.Config {
	c.Data = cmp.Or(a.data, c.Data, node.DefaultData)
	return c
}
