// Command parley is the hub and everything around it: see `parley help`.
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

	"github.com/spf13/cobra"
)

// Exit codes; scripts may rely on them.
const (
	exitOK          = 0
	exitFailed      = 1 // it was tried and failed, or the answer is no
	exitUsage       = 2 // the command line or the configuration is wrong
	exitUnreachable = 3 // no hub answers where one was expected
	exitRefused     = 4 // the hub or the agent refused it
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is main with its surroundings as parameters; testscript calls it too.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{in: in, out: out, errs: errs}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
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

// wanted is how a command is to be called.
func wanted(c *cobra.Command) string {
	help := "`" + c.CommandPath() + " --help`"
	if c.HasAvailableSubCommands() {
		return help + " lists the commands"
	}
	return "usage: " + c.UseLine() + "; " + help + " says more"
}

// exitError is an error with the exit code that goes with it. A nil err says
// that everything has been said already.
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

// usage makes an error about how the command was called.
func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// app is what all commands share.
type app struct {
	in        io.Reader
	out, errs io.Writer
	json      bool
	data      string
	config    string
	admin     string
	parsing   bool // no command has begun to run yet
}

func (a *app) root() *cobra.Command {
	a.parsing = true
	c := &cobra.Command{
		Use:   "parley",
		Short: "A hub through which agents of different protocols talk",
		Long: `Parley carries messages between software agents that speak different protocols:
verified, recorded before they are acknowledged, delivered in each agent's own.`,
		Example: `  parley demo --once
  parley serve --data ./data --listen :8080
  parley send --to weather '{"city":"Bern"}'`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(*cobra.Command, []string) {
			a.parsing = false
		},
	}
	f := c.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "write JSON for programs instead of text for people")
	f.StringVar(&a.data, "data", "", "data directory (default: that of the configuration, or ./parley-data)")
	f.StringVar(&a.config, "config", "", "configuration file (default: ./parley.toml if there is one)")
	f.StringVar(&a.admin, "admin", "", "address of a running hub's admin API (default: as the data directory says)")
	for _, command := range a.commands() {
		c.AddCommand(command)
	}
	a.completing(c)
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

func (a *app) fail(e *exitError) {
	if a.json {
		json.NewEncoder(a.errs).Encode(map[string]any{"error": e.err.Error(), "exit": e.code})
		return
	}
	fmt.Fprintln(a.errs, "parley:", e.err)
}
