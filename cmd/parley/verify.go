package main

import (
	"cmp"

	"github.com/spf13/cobra"
)

func (a *app) verifyCommand() *cobra.Command {
	var f inspectFlags
	c := &cobra.Command{
		Use:   "verify [FILE|-]",
		Short: "Verify a message: exit 0 if it is proved, 1 if not",
		Long: `Make every check of a message of FILE or the standard input, in the forms that
` + "`parley inspect`" + ` takes, with the sender's key or card. It is verified when every
check was made and none failed.

The transcript of an ASP session is verified as by ` + "`parley conversation verify`" + `, which
takes the hub's own exports too; --key is then the key of the server that signed it.`,
		Example: `  parley verify request.http --key BASE64 --now 2026-04-11T10:00:00Z
  parley verify request.http --card card.json --self agent://weather.corp
  parley verify session.json --key BASE64`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := cmp.Or(argument(args), "-")
			in, transcript, finish, err := a.exported(name)
			if err != nil {
				return err
			}
			defer finish()
			if transcript && len(f.keys) > 1 {
				return usage("a transcript is signed by one server: give --key once")
			}
			if transcript {
				return a.verifyASP(cmd.Context(), in, finish, name, cmp.Or(f.keys...))
			}
			if name == "-" {
				a.in = in // the reader still has the bytes that were read
			}
			v, err := a.inspection(cmd.Context(), args, f)
			if err != nil {
				return err
			}
			p := protocolNamed(v.Protocol)
			if p.unsigned != "" {
				return usage("%s; `parley inspect` explains a message", p.unsigned)
			}
			if len(f.keys) == 0 && f.card == "" && !p.keyless {
				return usage("a signature is verified with the sender's key: --key BASE64, or --card FILE; " +
					"`parley inspect` explains a message without")
			}
			return a.verdict(v.Verified, v, func() error { return a.showInspection(v, false) })
		},
	}
	f.register(c)
	return c
}
