package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/parley-hub/parley/a2e"
)

// sendA2E calls a tool of an A2E host directly.
func (a *app) sendA2E(ctx context.Context, s sending, raw []byte, isJSON bool) error {
	switch {
	case s.url == "":
		return usage("say which host: --url http(s)://HOST/PATH, tcp://HOST:PORT, tls://HOST:PORT or unix:///PATH")
	case s.skill == "":
		return usage("say which tool: --skill NAME (`--skill tool/list` shows what there is)")
	case s.from != "" || s.to != "" || s.conversation != "" || s.key != "" || s.noWait:
		return usage("--from, --to, --conversation, --idempotency-key and --no-wait are for messages through a hub")
	}
	c := &a2e.Client{URL: s.url, AgentID: s.as, HTTP: &http.Client{}}
	if s.keyFile != "" {
		b, err := os.ReadFile(s.keyFile)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		c.Token = strings.TrimSpace(string(b))
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, s.wait)
	defer cancel()
	if s.skill == "tool/list" {
		list, err := c.Tools(ctx, a2e.ToolQuery{Query: strings.TrimSpace(string(raw)), IncludeDeferred: true})
		if err != nil {
			return a2eError(err)
		}
		if a.json {
			return a.print(list, "")
		}
		var rows [][]string
		for _, t := range list {
			rows = append(rows, []string{t.Name, t.Description})
		}
		return a.table([]string{"TOOL", "DESCRIPTION"}, rows)
	}
	arguments := json.RawMessage("{}")
	switch {
	case len(raw) == 0:
	case isJSON && !s.text && strings.TrimSpace(string(raw))[0] == '{':
		arguments = json.RawMessage(raw)
	default:
		b, err := json.Marshal(map[string]string{"text": strings.TrimSuffix(string(raw), "\n")})
		if err != nil {
			return err
		}
		arguments = b
	}
	var told error
	var onEvent func(a2e.Event)
	if s.stream {
		onEvent = func(e a2e.Event) {
			if a.json {
				told = errors.Join(told, a.print(map[string]any{"kind": e.Kind, "seq": e.Seq, "data": json.RawMessage(e.Data)}, ""))
			} else {
				told = errors.Join(told, a.print(nil, "%3d %s  %s\n", e.Seq, clean(string(e.Kind)), clean(string(e.Data))))
			}
		}
	}
	r, err := c.CallTool(ctx, s.skill, arguments, onEvent)
	if err != nil {
		return a2eError(err)
	}
	if told != nil {
		return told
	}
	data, err := json.Marshal(r.Data)
	if err != nil {
		return err
	}
	if !r.Success {
		return &exitError{exitRefused, fmt.Errorf("the tool failed: %s: %s", clean(r.ErrorCode), clean(r.Error))}
	}
	return a.print(map[string]any{"tool": r.ToolName, "durationMs": r.DurationMS, "result": json.RawMessage(data)}, "%s\n", clean(string(data)))
}

// a2eError says what a host answered, and what to do.
func a2eError(err error) error {
	var e *a2e.Error
	if !errors.As(err, &e) {
		return &exitError{exitUnreachable, err}
	}
	text := fmt.Sprintf("%s: %s", clean(string(e.Code)), clean(e.Text))
	switch {
	case e.Step == "handshake" || errors.Is(e, a2e.ErrUnauthorized):
		text += "\n        is the token right? --key FILE names the file that holds it"
	case e.Step != "peer":
		if cause := e.Unwrap(); cause != nil {
			text += " (" + clean(cause.Error()) + ")"
		}
		return &exitError{exitUnreachable, errors.New(text)}
	}
	return &exitError{exitRefused, errors.New(text)}
}
