package admin

import (
	"context"
	"io"

	"github.com/parley-hub/parley/internal/readable"
)

// Curl is a curl command for [Client.Send], or with wait for [Client.Ask]. It has no token: the shell takes that from
// PARLEY_TOKEN. A large message is in the file message.json, which Curl does not write.
func (c *Client) Curl(s Send, wait bool) (string, error) {
	mode := ""
	if wait {
		mode = "wait"
	}
	r, err := c.sending(context.Background(), s, mode)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return "", err
	}
	headers := []string{`"Authorization: Bearer $PARLEY_TOKEN"`}
	for _, name := range []string{"Content-Type", "Idempotency-Key"} {
		if v := r.Header.Get(name); v != "" {
			headers = append(headers, readable.ShellWord(name+": "+v))
		}
	}
	return readable.CurlCommand(r.Method, r.URL.String(), headers, body, "message.json"), nil
}
