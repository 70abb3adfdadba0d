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
	"strings"
	"time"

	"github.com/parley-hub/parley/asp"
)

func recognisesASP(s *sample) bool {
	return s.http && strings.HasPrefix(s.path(), "/v1/asp/sessions") || s.has("performative", "sessionId", "integrity")
}

// aspMeanings of the envelope's members.
var aspMeanings = []meaning{
	{"version", "asp/1.0; signed"},
	{"messageId", "UUID of version 7; not signed"},
	{"sessionId", "UUID of version 7; signed"},
	{"sequenceNumber", "the sender's own counter, from 0 without gaps; signed"},
	{"timestamp", "milliseconds and Z; signed"},
	{"sender", "agentId is signed; orgId, trustScore and dpopProof are not"},
	{"recipient", "the agent that should act; not signed"},
	{"performative", "what the message does; signed"},
	{"content", "what the hash covers: mimeType, body, context"},
	{"integrity", "content hash, link to the message before, signature"},
	{"constraints", "wishes for the answer; advisory, not signed"},
}

func inspectASP(ctx context.Context, s *sample, o inspecting) (*inspection, error) {
	v := newInspection()
	v.members(s.members(), aspMeanings, unquoted, "")
	e, err := asp.Decode(s.body)
	if err != nil {
		aspFailed(v, err, "It is no message of ASP: ")
		return v, nil
	}
	hash, err := asp.ContentHash(e.CanonicalContent())
	if err != nil {
		return nil, err
	}
	v.Signed = append(v.Signed,
		inspectSigned{"content in canonical JSON", string(e.CanonicalContent())},
		inspectSigned{"its SHA-256, which integrity.hash must be", hash},
		inspectSigned{"eight texts joined by NUL (shown as line ends), which Ed25519 signs",
			strings.ReplaceAll(string(e.SigningInput()), "\x00", "\n")})
	keys, err := aspKeys(e.Sender.AgentID, o)
	if err != nil {
		return nil, err
	}
	if keys == nil {
		v.pass("size", "syntax", "schema", "version", "body size")
		if hash != e.Integrity.Hash {
			v.fail("content hash", "it is "+hash,
				"The content was changed: it does not have the hash that was signed.", "")
			return v, nil
		}
		v.pass("content hash")
		v.skip("no key of the sender is known", "signature", "proof")
		v.Sentence = "It is well-formed and its content has its hash; its sender is not proved without the " +
			"sender's card (--card FILE)."
		return v, nil
	}
	verifier := &asp.Verifier{Keys: keys, Now: func() time.Time { return o.now }}
	got, err := verifier.Verify(ctx, s.body, asp.Transport{})
	if err != nil {
		aspFailed(v, err, "It would be refused: ")
		return v, nil
	}
	for _, c := range got.Verdict.Checks {
		v.pass(c.Name)
	}
	v.Verified = true
	v.Sentence = fmt.Sprintf("%s signed it, as message %d of its own in session %s. Whether it is a part of that "+
		"session, the session's transcript says.", e.Sender.AgentID, e.SequenceNumber, e.SessionID)
	return v, nil
}

// aspFailed shows the checks that led to a refusal.
func aspFailed(v *inspection, err error, lead string) {
	e, ok := errors.AsType[*asp.Error](err)
	if !ok {
		v.fail("message", err.Error(), lead+"it cannot be read.", "")
		return
	}
	name := "message"
	for _, c := range asp.VerdictOf(err).Checks {
		if c.Code == "" {
			v.pass(c.Name)
		} else {
			name = c.Name
		}
	}
	fix := ""
	switch e.Code {
	case "timestamp_out_of_window", "dpop_iat_out_of_window":
		fix = "It may have been in time: judge it with --now at the time of its arrival."
	case "bad_signature":
		fix = "Compare the signed texts above with what the sender signs; the hash is lower-case hexadecimal with " +
			"its prefix."
	case "dpop_ath_mismatch", "dpop_htu_mismatch":
		fix = "The proof of a message is for htm ASP and htu asp://SESSION."
	}
	v.fail(name, strings.TrimSpace(e.Code+" "+e.Path), lead+e.Text+".", fix)
}

// aspKeys gives the user's keys: a card, or a bare Ed25519 key. A bare key cannot check
// proofs, so with it no message is verified in full.
func aspKeys(sender string, o inspecting) (asp.Keys, error) {
	if o.card == nil {
		if len(o.keys) > 0 {
			return nil, errors.New("an ASP message is verified with the sender's card, which holds both of its " +
				"keys: --card FILE")
		}
		return nil, nil
	}
	card, err := asp.ParseCard(o.card)
	if err != nil {
		return nil, fmt.Errorf("--card: %w", err)
	}
	if card.AgentID != sender {
		return nil, fmt.Errorf("--card is that of %s, the message claims to be from %s", card.AgentID, sender)
	}
	return card, nil
}

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
