// Command testlog prints the output of "go test -json" as "go test" does, and keeps the
// events in a file, which tells internal/conformance which tests ran:
//
//	go test -json ./... | go run ./internal/testlog tests.json
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
)

// event is one line of "go test -json" (go doc test2json; build output as in
// "go help buildjson").
type event struct{ Action, Package, Test, Output string }

// show copies events from in to kept. To out it prints the result of each
// package and all output of tests that failed; with verbose everything.
func show(in io.Reader, kept, out io.Writer, verbose bool) error {
	type test struct{ pkg, name string }
	pending := map[test][]string{}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if _, err := kept.Write(line); err != nil {
				return err
			}
			var e event
			if json.Unmarshal(line, &e) != nil {
				e = event{Action: "build-output", Output: string(line)} // of the go command itself
			}
			t := test{e.Package, e.Test}
			switch {
			case e.Action == "build-output", e.Action == "output" && (verbose || e.Test == ""):
				fmt.Fprint(out, e.Output)
			case e.Action == "output":
				pending[t] = append(pending[t], e.Output)
			case e.Action == "fail":
				for _, text := range pending[t] {
					fmt.Fprint(out, text)
				}
				delete(pending, t)
			case e.Action == "pass", e.Action == "skip":
				delete(pending, t)
			}
		}
		if err == io.EOF {
			// A test that had begun when its program ended has no result.
			for _, texts := range pending {
				for _, text := range texts {
					fmt.Fprint(out, text)
				}
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func main() {
	verbose := flag.Bool("v", false, "print the output of every test")
	flag.Parse()
	if err := run(flag.Args(), *verbose); err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		os.Exit(1)
	}
}

func run(args []string, verbose bool) error {
	if len(args) != 1 {
		return fmt.Errorf("got %d arguments, want the file for the events", len(args))
	}
	f, err := os.Create(args[0])
	if err != nil {
		return err
	}
	if err := show(os.Stdin, f, os.Stdout, verbose); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
