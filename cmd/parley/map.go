package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/jqmap"
	"github.com/parley-hub/parley/internal/jsonx"
)

func (a *app) mapCommand() *cobra.Command {
	return group("map", "Try a content mapping of the configuration",
		"  parley map test --agent weather --skill forecast question.json", helps, a.mapTest())
}

// mapTested is the result of `parley map test`.
type mapTested struct {
	Agent   string          `json:"agent"`
	Skill   string          `json:"skill"`
	JQ      string          `json:"jq"`
	Input   json.RawMessage `json:"input"`
	Message map[string]any  `json:"message"`         // the value of $message
	Output  json.RawMessage `json:"output,omitzero"` // none: the mapping failed
	Failed  string          `json:"failed,omitzero"` // why
	Schema  json.RawMessage `json:"schema,omitzero"` // none: it is not known
	Applied bool            `json:"applied"`         // false: the content fits as it is, and the hub leaves it so
	Fits    bool            `json:"fits"`            // the output
	Why     string          `json:"why,omitzero"`    // where it does not fit
}

func (a *app) mapTest() *cobra.Command {
	var agent, skill, from, protocol, program, schemaFile string
	var response bool
	c := &cobra.Command{
		Use:   "test --agent AGENT --skill SKILL [FILE|-]",
		Short: "Show the output of a mapping, and whether it fits the skill",
		Long: `Run the configured mapping of a skill over the content of FILE or the standard input, as
the hub does. The content is JSON, or text, which a mapping reads as a JSON string. The
command shows the input, the output, and whether the output fits the skill's schema:
that of --schema, or the one that the running hub knows. The exit code is 0 if the output
fits or no schema is known, 1 if the mapping fails or its output does not fit, 2 if there
is no such mapping.`,
		Example: `  echo '{"text": "Bern"}' | parley map test --agent weather --skill forecast
  parley map test --agent weather --skill forecast --jq '{city: .text}' --schema forecast.json question.json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if agent == "" {
				return usage("say which mapping: --agent AGENT --skill SKILL (without --skill: an agent whose " +
					"skills are not known)")
			}
			p, err := a.mappingFor(agent, skill, response, program)
			if err != nil {
				return err
			}
			raw, isJSON, err := a.content(fileArg(args))
			if err != nil {
				return err
			}
			part := parley.Part{MediaType: "application/json", Data: bytes.TrimSpace(raw)}
			if !isJSON {
				part = parley.Text(strings.TrimSuffix(string(raw), "\n"))
			}
			m := &parley.Message{Kind: parley.Request, From: from, To: agent, Skill: skill, Parts: []parley.Part{part},
				Origin: parley.Origin{Protocol: protocol}}
			if response {
				m.Kind, m.From, m.To = parley.Response, agent, from
			}
			v := mapTested{Agent: agent, Skill: skill, JQ: p.String(), Input: hub.Content(m),
				Message: hub.MappingInput(m)}
			if v.Schema, err = a.schemaOf(cmd, schemaFile, agent, skill, response); err != nil {
				return err
			}
			v.Applied = len(v.Schema) == 0 || hub.CheckContent(v.Schema, v.Input) != nil
			out, err := p.Run(cmd.Context(), v.Input, v.Message)
			if err != nil {
				v.Failed = err.Error()
			} else {
				v.Output, v.Fits = out, true
				if err := hub.CheckContent(v.Schema, out); err != nil {
					v.Fits, v.Why = false, err.Error()
				}
			}
			return a.verdict(v.Fits, v, func() error { return a.showMapTested(v) })
		},
	}
	f := c.Flags()
	f.StringVar(&agent, "agent", "", "directory name of the agent")
	f.StringVar(&skill, "skill", "", "id of its skill")
	f.BoolVar(&response, "response", false, "try the mapping of the skill's answer")
	f.StringVar(&program, "jq", "", "try this jq program in place of the configured one")
	f.StringVar(&schemaFile, "schema", "", "file with the skill's JSON Schema")
	f.StringVar(&from, "from", "somebody", "sender of the message, for $message")
	f.StringVar(&protocol, "protocol", "", "protocol of the message, for $message")
	return c
}

// mappingFor is the program to try.
func (a *app) mappingFor(agent, skill string, response bool, program string) (hub.Program, error) {
	if program != "" {
		p, err := jqmap.Compile(program)
		if err != nil {
			return nil, usage("--jq: %w", err)
		}
		return p, nil
	}
	c, err := a.load()
	if err != nil {
		return nil, err
	}
	list, err := c.Mappings()
	if err != nil {
		return nil, &exitError{exitUsage, err}
	}
	direction := "request"
	if response {
		direction = "response"
	}
	for _, m := range list {
		if m.Agent == agent && m.Skill == skill && m.Response == response {
			return m.Program, nil
		}
	}
	return nil, usage("the configuration has no [[map]] for agent %q, skill %q, direction %q; write one, or try a "+
		"program with --jq", agent, skill, direction)
}

// schemaOf finds the schema of a skill in a file, or at the running hub.
func (a *app) schemaOf(cmd *cobra.Command, file, agent, skill string, response bool) (json.RawMessage, error) {
	if file != "" {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, &exitError{exitUsage, err}
		}
		if err := jsonx.Valid(b, 0); err != nil {
			return nil, usage("%s: %w", file, err)
		}
		return b, nil
	}
	client, err := a.hub()
	if err != nil {
		return nil, nil // no hub runs here: the schema is not known
	}
	e, err := client.Agent(cmd.Context(), agent, 0)
	if err != nil {
		return nil, nil // it does not run, or does not know the agent yet
	}
	for _, s := range e.Skills {
		if s.ID == skill || skill == "" && s.Default {
			if response {
				return s.Output, nil
			}
			return s.Input, nil
		}
	}
	return nil, nil
}

func (a *app) showMapTested(v mapTested) error {
	message, err := jsonx.Encode(v.Message)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "jq        %s\ninput     %s\n$message  %s\n", clean(v.JQ), clean(string(v.Input)),
		clean(string(message)))
	if v.Failed != "" {
		fmt.Fprintf(a.out, "failed    %s\n", clean(v.Failed))
	} else {
		fmt.Fprintf(a.out, "output    %s\n", clean(string(v.Output)))
	}
	switch {
	case len(v.Schema) == 0:
		fmt.Fprintln(a.out, "schema    not known: name a file with --schema, or start the hub")
	case v.Failed != "":
	case v.Fits:
		fmt.Fprintln(a.out, "schema    it fits")
	default:
		fmt.Fprintf(a.out, "schema    it does not fit: %s\n          expected %s\n", clean(v.Why),
			clean(string(v.Schema)))
	}
	if !v.Applied {
		fmt.Fprintln(a.out, "note      the input fits as it is, so the hub would not run the mapping")
	}
	return nil
}
