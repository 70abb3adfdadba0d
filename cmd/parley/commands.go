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
		a.initCommand(), a.doctorCommand(), a.statusCommand(),
		a.demoCommand(), a.serveCommand(),
		a.sendCommand(), a.answerCommand(), a.listenCommand(),
		a.agentsCommand(), a.keysCommand(), a.tokensCommand(), a.auditCommand(),
		a.inspectCommand(), a.verifyCommand(), a.mapCommand(),
		a.conversationCommand(), a.messagesCommand(), a.tailCommand(), a.consoleCommand(),
		a.deadCommand(), a.refusedCommand(), a.explainCommand(),
		a.backupCommand(), a.restoreCommand(), a.journalCommand(), a.forgetCommand(),
		a.mcpCommand(), a.configCommand(), a.benchCommand(), a.versionCommand(),
		a.completionCommand(), a.manCommand(),
	}, a.ofProtocols(func(p *protocol) func(*app) *cobra.Command { return p.command })...)
}

// load reads the configuration that the flags name, or gives the defaults if there
// is no file.
func (a *app) load() (c node.Config, err error) {
	if path := a.configFile(); path != "" {
		if c, err = node.Load(path); err != nil {
			return node.Config{}, &exitError{exitUsage, err}
		}
	}
	c.Data = cmp.Or(a.data, c.Data, node.DefaultData)
	return c, nil
}

// configFile is the configuration file that the flags name, or ./parley.toml; "" if
// there is none.
func (a *app) configFile() string {
	if _, err := os.Stat(configName); err != nil {
		return a.config
	}
	return cmp.Or(a.config, configName)
}

// located is the configuration for finding a hub. If the command line names the
// hub (told), an error in ./parley.toml is ignored, unless --config names that file.
func (a *app) located(told bool) (node.Config, error) {
	c, err := a.load()
	if err != nil && told && a.config == "" {
		return node.Config{Data: cmp.Or(a.data, node.DefaultData)}, nil
	}
	return c, err
}
