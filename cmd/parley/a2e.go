package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	bridge "github.com/parley-hub/parley/bridge/a2e"
)

func (a *app) a2eCommand() *cobra.Command {
	token := &cobra.Command{
		Use: "token", Short: "Make a token for an A2E agent", Args: cobra.NoArgs,
		Example: "  parley a2e token > alice.token && chmod 600 alice.token",
		RunE: func(*cobra.Command, []string) error {
			t, err := bridge.NewToken()
			if err != nil {
				return err
			}
			return a.print(map[string]string{"token": t}, "%s\n", t)
		},
	}
	var at string
	stdio := &cobra.Command{
		Use:   "stdio",
		Short: "Join standard input and output to a running hub: what an A2E agent starts as its host",
		Long: `Join standard input and output to a running hub. An A2E agent whose host is a
child process starts this command; its token goes in its own handshake. Nothing
but NDJSON is written to standard output. It ends with its input.

The hub is that of the data directory, or the one at --url.`,
		Example: `  parley a2e stdio --data ./data
  parley a2e stdio --url https://hub.corp`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			base, err := a.hubURL(at)
			if err != nil {
				return err
			}
			return a.stdio(cmd.Context(), base)
		},
	}
	stdio.Flags().StringVar(&at, "url", "", "base URL of the hub (default: as the data directory says)")
	return group("a2e", "For A2E agents: a host as a child process, tokens", "  parley a2e stdio --data ./data\n  parley a2e token",
		helps, stdio, token)
}

// hubURL is where the A2E endpoints of a hub are.
func (a *app) hubURL(at string) (*url.URL, error) {
	c, err := a.load()
	if err != nil {
		return nil, err
	}
	path := c.A2E.Path
	if path == "" {
		path = bridge.DefaultPath
	}
	if at == "" {
		hub, err := announced(c.Data)
		if err != nil {
			return nil, err
		}
		if hub.Local == "" {
			return nil, &exitError{exitUnreachable, fmt.Errorf("no hub runs on the data directory %s; start one with `parley serve`, or name one with --url", c.Data)}
		}
		at = hub.Local
	}
	u, err := url.Parse(strings.TrimRight(at, "/"))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usage("--url %q: want http(s)://HOST[:PORT][/PATH]", at)
	}
	if !strings.HasSuffix(u.Path, path) {
		u.Path += path
	}
	return u, nil
}

// stdio copies both ways until the input ends, and then what the hub still has
// to say.
func (a *app) stdio(ctx context.Context, base *url.URL) error {
	conn, in, err := dialHub(ctx, base)
	if err != nil {
		return &exitError{exitUnreachable, err}
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(conn, a.in)
		if half, ok := conn.(interface{ CloseWrite() error }); ok && err == nil {
			err = half.CloseWrite()
		}
		sent <- err
	}()
	received := make(chan error, 1)
	go func() { _, err := io.Copy(a.out, in); received <- err }()
	select {
	case err = <-received: // the hub ended the session: the input is not waited for
	case err = <-sent:
		// The agent has closed its end. It waits at most three seconds.
		t := time.NewTimer(2500 * time.Millisecond)
		defer t.Stop()
		select {
		case err = <-received:
		case <-t.C:
		}
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
		return &exitError{exitFailed, fmt.Errorf("the connection to the hub broke: %w", err)}
	}
	return nil
}

// dialHub makes an HTTP connection a stream of NDJSON.
func dialHub(ctx context.Context, base *url.URL) (net.Conn, io.Reader, error) {
	host := base.Host
	if base.Port() == "" {
		host = net.JoinHostPort(base.Hostname(), map[string]string{"http": "80", "https": "443"}[base.Scheme])
	}
	wait, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var conn net.Conn
	var err error
	if base.Scheme == "https" {
		conn, err = (&tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}}).DialContext(wait, "tcp", host)
	} else {
		conn, err = (&net.Dialer{}).DialContext(wait, "tcp", host)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("no hub answers at %s: %w", base.Host, err)
	}
	fail := func(err error) (net.Conn, io.Reader, error) { return nil, nil, errors.Join(err, conn.Close()) }
	deadline, _ := wait.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return fail(err)
	}
	r, err := http.NewRequestWithContext(wait, http.MethodGet, base.String()+"/connect", nil)
	if err != nil {
		return fail(err)
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", bridge.Upgrade)
	if err := r.Write(conn); err != nil {
		return fail(err)
	}
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, r)
	if err != nil {
		return fail(fmt.Errorf("what answers at %s is no hub: %w", base.Host, err))
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_ = resp.Body.Close()
		return fail(fmt.Errorf("what answers at %s has no A2E endpoint %s/connect: HTTP %d", base.Host, base.Path, resp.StatusCode))
	}
	return conn, in, conn.SetDeadline(time.Time{})
}
