// Command parley runs a hub and controls it: see `parley help`.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Exit codes; scripts may rely on them.
const (
	exitOK          = 0
	exitFailed      = 1 // the command failed, or the answer is no
	exitUsage       = 2 // the command line or the configuration is wrong
	exitUnreachable = 3 // no hub answers
	exitRefused     = 4 // the hub or the agent refused the request
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main with the standard streams as parameters; testscript calls it too.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	a := &app{in: in, out: out, errs: errs, now: time.Now, screen: screenOf(out, os.Getenv)}
	return a.run(args)
}

// run runs the command that the arguments name, and gives its exit code.
func (a *app) run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errs)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var e *exitError
	if !errors.As(err, &e) {
		e = &exitError{code: exitFailed, err: err}
		if a.parsing {
			e = &exitError{exitUsage, fmt.Errorf("%w\n        %s", err, wanted(command))}
		}
	}
	if e.err != nil {
		a.fail(e)
	}
	return e.code
}

// wanted gives the usage of a command, for an error.
func wanted(c *cobra.Command) string {
	help := "`" + c.CommandPath() + " --help`"
	if c.HasAvailableSubCommands() {
		return help + " lists the commands"
	}
	return "usage: " + c.UseLine() + "; " + help + " says more"
}

// exitError is an error with its exit code, which is exitFailed for any other error.
// With a nil err, the command has already written everything.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage makes an error about the command line.
func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// app is the state that all commands share.
type app struct {
	in        io.Reader
	out, errs io.Writer
	now       func() time.Time
	screen    screen
	utc       bool // exact times
	json      bool
	data      string
	config    string
	admin     string
	parsing   bool // no command runs yet
}

func (a *app) root() *cobra.Command {
	a.parsing = true
	colour := "auto"
	c := &cobra.Command{
		Use:   "parley",
		Short: "A hub through which agents of different protocols talk",
		Long: `Parley carries messages between software agents that speak different protocols. It
verifies each message, records it before it acknowledges it, and delivers it in the
recipient's own protocol.

On a terminal tables fit its width, long names are shortened in the middle, ids to their
beginning (which every command takes), and times are relative. Elsewhere output is plain
and complete, with exact times. The environment's NO_COLOR, or TERM=dumb, switches colours
off.`,
		Example: `  parley demo --once
  parley serve --data ./data --listen :8080
  parley send --to weather '{"city":"Bern"}'`,
		Version:       version,
		RunE:          helps,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			a.parsing = false
			return a.setColour(colour)
		},
	}
	c.SetVersionTemplate(versionText())
	f := c.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "write JSON, for programs")
	f.BoolVar(&a.utc, "utc", false, "write exact times in UTC, also on a terminal")
	f.StringVar(&colour, "color", colour, "auto, always or never (auto: on a terminal)")
	f.StringVar(&a.data, "data", "", "data directory (default: data in the configuration, or ./parley-data)")
	f.StringVar(&a.config, "config", "", "configuration file (default: ./parley.toml if it exists)")
	f.StringVar(&a.admin, "admin", "", "address of a running hub's admin API (default: that of the hub on the data "+
		"directory)")
	for _, command := range a.commands() {
		c.AddCommand(command)
	}
	a.prepare(c)
	return c
}

// print writes v as one line of JSON with --json, else the text.
func (a *app) print(v any, format string, args ...any) error {
	if a.json {
		return json.NewEncoder(a.out).Encode(v)
	}
	_, err := fmt.Fprintf(a.out, format, args...)
	return err
}

// verdict writes v with --json, else lets show write it. The exit code is 0 only if ok.
func (a *app) verdict(ok bool, v any, show func() error) error {
	if a.json {
		show = func() error { return a.print(v, "") }
	}
	if err := show(); err != nil || ok {
		return err
	}
	return &exitError{code: exitFailed}
}

func (a *app) fail(e *exitError) {
	if a.json {
		json.NewEncoder(a.errs).Encode(map[string]any{"error": e.err.Error(), "exit": e.code})
		return
	}
	fmt.Fprintln(a.errs, "parley:", e.err)
}
