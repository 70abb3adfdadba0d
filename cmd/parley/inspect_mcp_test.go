package main

import (
	"strings"
	"testing"
)

// TestInspectMCP: requests, results and lists of tools are recognised, and each mistake is explained by one sentence.
func TestInspectMCP(t *testing.T) {
	t.Parallel()
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{}}`
	call := func(rest string) string {
		return `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"weather__forecast",` +
			`"arguments":{"city":"Pune"}` + rest + `}}`
	}
	post := func(headers, body string) string {
		return "POST /mcp HTTP/1.1\nHost: hub.example\nContent-Type: application/json\n" +
			"Accept: application/json, text/event-stream\n" + headers + "\n\n" + body
	}
	const modern = "MCP-Protocol-Version: 2026-07-28\nMcp-Method: tools/call\nMcp-Name: weather__forecast"
	result := func(text string) string { return `{"jsonrpc":"2.0","id":3,"result":` + text + `}` }
	const fine = "It is a well-formed "
	for _, c := range []struct{ sample, sentence, fix string }{
		{call(""), fine + "request of MCP.", ""},
		{call("," + meta), fine + "request of MCP.", ""},
		{post(modern, call(","+meta)), fine + "request of MCP.", ""},
		{post("MCP-Protocol-Version: 2025-11-25", call("")), fine + "request of MCP.", ""},
		{post("MCP-Protocol-Version: 2025-11-26", call("")), "MCP has no revision 2025-11-26.", "2026-07-28"},
		{post(strings.Replace(modern, "forecast", "other", 1), call(","+meta)), "The header Mcp-Name says", "-32020"},
		{post("MCP-Protocol-Version: 2026-07-28\nMcp-Method: tools/call\nMcp-Name: weather__forecast", call("")),
			"The header MCP-Protocol-Version says", "equal"},
		{call(`,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`), "Its _meta has no", "empty object"},
		{strings.Replace(call(""), `"id":3,`, "", 1), "It has no id, so it is a notification", "Give it an id."},
		{strings.Replace(call(""), `"id":3,`, `"id":null,`, 1), "Its id is neither", ""},
		{strings.Replace(call(""), `"id":3,`, `"id":3.5,`, 1), "Its id is neither", ""},
		{strings.Replace(call(""), `{"city":"Pune"}`, `[]`, 1), "The arguments are no JSON object.", ""},
		{strings.Replace(call(""), "weather__", "weather.", 1), "Some clients refuse the name", ""},
		{`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}`, "It does not name the request", ""},
		{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`,
			fine + "notification of MCP.", ""},
		{result(`{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}`), fine + "response of MCP.", ""},
		{result(`{"tools":[{"name":"a","inputSchema":{"type":"object"}},{"name":"a","inputSchema":{"type":"object"}}]}`),
			"Two tools are named a.", ""},
		{result(`{"tools":[{"name":"a","inputSchema":{"type":"string"}}]}`), "The input schema of a is not of type object.",
			"whole list"},
		{result(`{"content":[{"type":"text","text":"hi"}],"structuredContent":{"a":1.50}}`), fine + "response of MCP.", ""},
		{result(`{"content":[{"text":"hi"}]}`), "It has no result.content[0].type", ""},
		{result(`{"content":[{"type":"text","text":"no"}],"isError":true}`), "The tool failed", ""},
		{`{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"no"}}`, "The server refused: the server does not", ""},
	} {
		var out strings.Builder
		if code := run([]string{"inspect", "-"}, strings.NewReader(c.sample), &out, &out); code != exitOK {
			t.Errorf("%s: exit code %d", c.sample, code)
		}
		text := strings.Join(strings.Fields(out.String()), " ")
		if !strings.Contains(text, "mcp") || !strings.Contains(text, c.sentence) || !strings.Contains(text, c.fix) {
			t.Errorf("%s: want %q and %q in\n%s", c.sample, c.sentence, c.fix, &out)
		}
	}
}
