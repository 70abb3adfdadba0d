package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"

	"github.com/parley-hub/parley/asp"
)

// maxShown bounds the faults of a transcript in the text for people.
const maxShown = 10

// aspTranscript is the result of verifying an exported session.
type aspTranscript struct {
	File     string   `json:"file"`
	Protocol string   `json:"protocol"`
	Session  string   `json:"sessionId"`
	State    string   `json:"state"`
	Records  int64    `json:"records"`
	Messages int64    `json:"messages"`
	Head     string   `json:"head"`
	Signed   bool     `json:"signed"` // the server's signature holds
	Server   string   `json:"server,omitempty"`
	KeyGiven bool     `json:"keyGiven"` // the signature is by the key of --key
	OK       bool     `json:"ok"`
	Faults   []string `json:"faults"`
	Warnings []string `json:"warnings"`
}

// isASPTranscript recognises a transcript by its beginning. The returned reader reads
// from the beginning.
func isASPTranscript(in io.Reader) (io.Reader, bool) {
	r := bufio.NewReaderSize(in, 4096)
	// A shorter file is no transcript.
	head, _ := r.Peek(64)
	return r, bytes.HasPrefix(head, []byte(`{"header":{"format":"asp-transcript/`))
}

// verifyASP verifies a transcript.
func (a *app) verifyASP(ctx context.Context, in io.Reader, finish func(), name, key string) error {
	verifier := asp.TranscriptVerifier{}
	if key != "" {
		b, err := base64.StdEncoding.DecodeString(key)
		if err != nil || len(b) != ed25519.PublicKeySize {
			return usage("--key %q: want the server's Ed25519 key, base64", key)
		}
		verifier.ServerKey = b
	}
	report, err := verifier.Verify(ctx, in)
	finish()
	if err != nil && !errors.Is(err, asp.ErrTranscript) {
		return fmt.Errorf("read %s: %w", name, err)
	}
	v := aspTranscript{File: name, Protocol: "asp", Session: report.SessionID, State: string(report.State),
		Records: report.Records, Messages: report.Messages,
		Head: report.Head, Signed: report.Signed, Server: report.Server, KeyGiven: key != "", OK: err == nil,
		Faults: []string{}, Warnings: []string{}}
	for _, f := range report.Faults {
		v.Faults = append(v.Faults, aspPlace(f, report.Records))
	}
	if !v.Signed && len(v.Faults) == 0 {
		// An attacker who changes a file can remove the signature as well.
		v.OK, v.Faults = false, []string{"end of the file: no server signed it, so messages may be missing at the end"}
	}
	for _, f := range report.Warnings {
		v.Warnings = append(v.Warnings, aspPlace(f, report.Records))
	}
	return a.verdict(v.OK, v, func() error { return a.showASP(&v) })
}

// aspPlace names the place of a fault.
func aspPlace(f asp.TranscriptFault, records int64) string {
	place := fmt.Sprintf("message at position %d", f.Position)
	switch {
	case f.Code == "rewritten":
		place = "the file"
	case f.Position < 0:
		place = "header"
	case f.Position >= records:
		place = "end of the file"
	}
	text := place + ": " + f.Code
	if f.Detail != "" {
		text += " (" + f.Detail + ")"
	}
	return text
}

func (a *app) showASP(v *aspTranscript) error {
	line := func(label, format string, args ...any) {
		fmt.Fprintf(a.out, "%-9s %s\n", label, clean(fmt.Sprintf(format, args...)))
	}
	line("session", "%s, %s", v.Session, v.State)
	line("messages", "%d of %d records", v.Messages, v.Records)
	line("head", "%s", v.Head)
	switch {
	case v.Signed && v.KeyGiven:
		line("signed", "by the server whose key was given")
	case v.Signed:
		line("signed", "by %s, by its own word: --key BASE64 says that it is the server you know", v.Server)
	default:
		line("signed", "no")
	}
	for _, l := range []struct {
		label string
		list  []string
	}{{"warning", v.Warnings}, {"fault", v.Faults}} {
		for _, f := range l.list[:min(len(l.list), maxShown)] {
			line(l.label, "%s", f)
		}
		if more := len(l.list) - maxShown; more > 0 {
			line(l.label, "and %d more, or beyond that; --json lists up to 1,000", more)
		}
	}
	last := "The transcript does not verify."
	if v.OK {
		last = "Every message has its hash, its link, its signature and its proof."
	}
	_, err := fmt.Fprintf(a.out, "\n%s\n", last)
	return err
}
