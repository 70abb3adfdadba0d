package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:     "man --dir DIR",
		Short:   "Write the man pages of all commands",
		Example: "  parley man --dir /usr/local/share/man/man1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usage("name the directory: parley man --dir DIR")
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			// The date is left out, so that the same version always writes
			// the same pages.
			epoch := time.Unix(0, 0).UTC()
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "PARLEY", Section: "1", Source: "Parley " + version,
				Manual: "Parley", Date: &epoch}, dir); err != nil {
				return err
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				return err
			}
			return a.print(map[string]any{"dir": dir, "pages": len(entries)}, "%d man pages are in %s\n", len(entries),
				dir)
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "directory for the pages")
	return c
}
