package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/spf13/cobra"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/mcp"
	"github.com/parley-hub/parley/internal/jsonx"
)

func (a *app) mcpStdioCommand() *cobra.Command {
	var at, agent, tokenFile string
	c := &cobra.Command{
		Use:   "stdio",
		Short: "Join standard input and output to a running hub: what an MCP client starts as its server",
		Long: `Join standard input and output to a running hub. An MCP client that starts its servers as
processes, such as an editor, starts this command. Nothing but messages of MCP is written
to standard output. It ends with its input. It also ends, with exit code 3, when the
connection to the hub is lost: an MCP session cannot be resumed, so the client must start
it again.

The hub is that of the data directory, or the one at --url. The token is that of an agent
(parley tokens add NAME --agent NAME); without one the caller is a guest.`,
		Example: `  parley mcp stdio --data ./data
  parley mcp stdio --url https://hub.corp --token-file ~/.parley.token
  parley mcp stdio --url https://hub.corp --agent weather`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/connect"
			if agent != "" {
				if err := parley.CheckName(agent); err != nil {
					return usage("--agent: %w", err)
				}
				path += "/agents/" + agent
			}
			to, err := a.mcpTunnelTo(at, tokenFile, path)
			if err != nil {
				return err
			}
			return a.mcpStdio(cmd.Context(), to)
		},
	}
	f := c.Flags()
	f.StringVar(&at, "url", "", "base URL of the hub (default: as the data directory says)")
	f.StringVar(&agent, "agent", "", "only the tools of this agent (default: of all agents that the caller may use)")
	f.StringVar(&tokenFile, "token-file", "", "file with the token that says who calls (default: a guest)")
	return c
}

// Bounds of the tunnels of MCP at this end. The hub has its own.
const (
	mcpMessage = maxInput         // bytes of a message
	mcpDial    = 10 * time.Second // to open a tunnel
	mcpWrite   = 30 * time.Second // for the hub to take a message
	mcpPing    = 30 * time.Second // between pings, and for the answer to one
	mcpLast    = 2500 * time.Millisecond
)

// An mcpTunnelTo is an endpoint of a hub for tunnels, with the caller's token; "": none.
type mcpTunnelTo struct {
	url   *url.URL
	token string
}

func (a *app) mcpTunnelTo(at, tokenFile, path string) (to mcpTunnelTo, err error) {
	if tokenFile != "" {
		if to.token, err = secretIn(tokenFile); err != nil {
			return to, usage("--token-file: %w", err)
		}
		if to.token == "" {
			return to, usage("--token-file: %s holds no token", tokenFile)
		}
	}
	c, err := a.load()
	if err == nil {
		to.url, err = hubEndpoint(c.Data, at, mcp.Base)
	}
	if err == nil {
		to.url = to.url.JoinPath(path)
	}
	return to, err
}

// open opens the tunnel. An error with exitRefused means that another attempt has no other result.
func (to mcpTunnelTo) open(ctx context.Context) (*mcpTunnel, error) {
	h := http.Header{}
	if to.token != "" {
		h.Set("Authorization", "Bearer "+to.token)
	}
	ctx, cancel := context.WithTimeout(ctx, mcpDial)
	defer cancel()
	// A redirect would take the token elsewhere.
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	conn, r, err := websocket.Dial(ctx, to.url.String(), &websocket.DialOptions{HTTPClient: client, HTTPHeader: h})
	if err == nil {
		conn.SetReadLimit(mcpMessage)
		t := &mcpTunnel{conn: conn}
		t.ctx, t.lose = context.WithCancelCause(context.Background())
		t.pings.Go(t.ping)
		return t, nil
	}
	if r == nil || r.StatusCode < 300 {
		return nil, &exitError{exitUnreachable, fmt.Errorf("no hub answers at %s: %s", to.url.Host, rootCause(err))}
	}
	text, code := "", exitRefused
	switch r.StatusCode {
	case http.StatusUnauthorized:
		text = "the hub does not know the caller\n        --token-file FILE names the file with a token that " +
			"`parley tokens add NAME --agent NAME` has shown"
	case http.StatusForbidden:
		text = "the caller may not do this\n        is the token that of the agent, and is the address of the hub in its " +
			"configuration (public_url)?"
	case http.StatusNotFound:
		text = "the hub has no such endpoint or agent\n        is the agent exposed in mcp (parley agents expose NAME mcp)" +
			", or added for parley mcp attach\n        (parley agents add NAME --mcp-attached), and is --url that of the hub?"
	default:
		text, code = fmt.Sprintf("the hub answered HTTP %d", r.StatusCode), exitUnreachable
	}
	return nil, &exitError{code, fmt.Errorf("%s: %s", to.url, text)}
}

// An mcpTunnel is a WebSocket to the hub, with one message of MCP in each text frame.
type mcpTunnel struct {
	conn  *websocket.Conn
	ctx   context.Context // ends with the tunnel
	lose  context.CancelCauseFunc
	pings sync.WaitGroup
}

// ping finds out when the hub is gone.
func (t *mcpTunnel) ping() {
	tick := time.NewTicker(mcpPing)
	defer tick.Stop()
	for {
		select {
		case <-t.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(t.ctx, mcpPing)
		err := t.conn.Ping(ctx)
		cancel()
		if err != nil {
			t.lose(errors.New("the hub does not answer any more"))
			_ = t.conn.CloseNow()
			return
		}
	}
}

func (t *mcpTunnel) read() ([]byte, error) {
	kind, data, err := t.conn.Read(context.Background()) // until close
	if err == nil && kind != websocket.MessageText {
		err = errors.New("the hub sent a binary frame")
	}
	if lost := context.Cause(t.ctx); err != nil && lost != nil {
		err = lost
	}
	return data, err
}

func (t *mcpTunnel) write(message []byte) error {
	ctx, cancel := context.WithTimeout(t.ctx, mcpWrite)
	defer cancel()
	return t.conn.Write(ctx, websocket.MessageText, message)
}

// close ends the tunnel, and read with it. The text goes to the hub.
func (t *mcpTunnel) close(code websocket.StatusCode, text string) {
	_ = t.conn.Close(code, text[:min(len(text), 120)]) // the hub may be gone
	t.lose(nil)
	t.pings.Wait()
}

// lostHub says why a tunnel ended.
func lostHub(err error) error {
	var e websocket.CloseError
	if !errors.As(err, &e) {
		return fmt.Errorf("the connection to the hub broke: %s", rootCause(err))
	}
	if e.Reason == "" {
		return fmt.Errorf("the hub ended the session (code %d)", e.Code)
	}
	return fmt.Errorf("the hub ended the session: %s", clean(e.Reason))
}

// mcpStdio copies messages both ways until the input ends and the calls are answered.
func (a *app) mcpStdio(ctx context.Context, to mcpTunnelTo) error {
	t, err := to.open(ctx)
	if err != nil {
		return err
	}
	defer t.close(websocket.StatusNormalClosure, "")
	var calls openCalls
	sent := make(chan error, 1)
	go func() { sent <- a.mcpSend(t, &calls) }()
	received := make(chan error, 1)
	go func() { received <- a.mcpReceive(t, &calls) }()
	lost := func(err error) error {
		if e, ok := errors.AsType[*exitError](err); ok {
			return e
		}
		return &exitError{exitUnreachable, fmt.Errorf("%w\n        an MCP session cannot be resumed: the client must start "+
			"this command again", lostHub(err))}
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-received: // do not wait for the input
		return lost(err)
	case err := <-sent:
		if err != nil {
			return lost(err)
		}
	}
	timer := time.NewTimer(mcpLast)
	defer timer.Stop()
	select {
	case <-calls.ended():
	case <-received:
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil
}

// mcpSend sends the lines of the input.
func (a *app) mcpSend(t *mcpTunnel, calls *openCalls) error {
	lines := bufio.NewScanner(a.in)
	lines.Buffer(nil, mcpMessage)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		calls.sent(line)
		if err := t.write(line); err != nil {
			return err
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return &exitError{exitFailed, fmt.Errorf("a message on standard input has more than %d MiB", mcpMessage>>20)}
	}
	return nil // an input that broke has ended
}

// mcpReceive writes the messages of the hub as lines.
func (a *app) mcpReceive(t *mcpTunnel, calls *openCalls) error {
	for {
		m, err := t.read()
		if err != nil {
			return err
		}
		if bytes.ContainsAny(m, "\r\n") {
			var b bytes.Buffer
			if err := json.Compact(&b, m); err != nil {
				return fmt.Errorf("the hub sent no JSON: %w", err)
			}
			m = b.Bytes()
		}
		if _, err := a.out.Write(append(m, '\n')); err != nil {
			return &exitError{exitFailed, fmt.Errorf("standard output: %w", err)}
		}
		calls.received(m)
	}
}

// openCalls counts calls without an answer. The zero value is ready.
type openCalls struct {
	mu   sync.Mutex
	n    int
	done chan struct{} // closed when n is 0; nil: nobody waits
}

func (o *openCalls) sent(m []byte) {
	if method, id := messageKind(m); method && id {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.n++
	}
}

func (o *openCalls) received(m []byte) {
	if method, _ := messageKind(m); method {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n--; o.n <= 0 && o.done != nil {
		close(o.done)
		o.done = nil
	}
}

// ended is closed when all calls are answered.
func (o *openCalls) ended() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	done := make(chan struct{})
	if o.n <= 0 {
		close(done)
	} else {
		o.done = done
	}
	return done
}

// messageKind says whether a message has a method and an id.
func messageKind(m []byte) (method, id bool) {
	jsonx.Members(m, func(name string, _ jsonx.Value) bool {
		method, id = method || name == "method", id || name == "id"
		return true
	})
	return method, id
}
