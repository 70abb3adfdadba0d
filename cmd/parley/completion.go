package main

import "github.com/spf13/cobra"

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Write the completion script of a shell",
		Long: `Write a script that lets a shell complete commands, flags and, while a hub runs, the
names of agents. SHELL is bash, zsh, fish or powershell.`,
		Example: `  source <(parley completion bash)
  parley completion zsh > "${fpath[1]}/_parley"
  parley completion fish > ~/.config/fish/completions/parley.fish`,
		Args:                  cobra.ExactArgs(1),
		ValidArgs:             []string{"bash", "zsh", "fish", "powershell"},
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			case "fish":
				return root.GenFishCompletion(a.out, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(a.out)
			}
			return usage("shell %q is not supported: want bash, zsh, fish or powershell", args[0])
		},
	}
}

// completeAgents completes the names of the agents of a running hub, and nothing
// without one.
func (a *app) completeAgents(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var names []string
	if hub, err := a.hub(); err == nil && len(args) == 0 {
		list, _ := hub.Agents(cmd.Context()) // none, if the hub does not answer
		for _, v := range list {
			names = append(names, v.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completing gives commands their defaults: no arguments, and completion where the first
// argument is an agent.
func (a *app) completing(c *cobra.Command) {
	for _, sub := range c.Commands() {
		a.completing(sub)
	}
	if c.Args == nil && c.Runnable() {
		c.Args = cobra.NoArgs
	}
	switch c.CommandPath() {
	case "parley agents show", "parley agents remove", "parley agents pause", "parley agents resume",
		"parley agents expose", "parley agents link", "parley agents delivery",
		"parley doctor", "parley listen", "parley keys enroll", "parley keys unenroll":
		c.ValidArgsFunction = a.completeAgents
	}
}
