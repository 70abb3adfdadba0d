package asp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A transcript is the server's log of a session, in a form that can be verified
// offline (project). It is one JSON object, written and read line by line, so that
// neither side ever holds more than one record:
//
//	{"header":HEADER,"chain":"HEX",
//	"records":[
//	{"record":RECORD,"chain":"HEX"}
//	,{"record":RECORD,"chain":"HEX"}
//	],
//	"trailer":TRAILER}
//
// Each chain value is the SHA-256 of the previous value and the exact bytes beside
// it, so that it locates a change. The trailer counts the records and holds the
// head; the server signs it when it has a key. Messages are as received.

type transcriptHeader struct {
	Format       string                  `json:"format"` // transcriptFormat
	SessionID    string                  `json:"sessionId"`
	Version      string                  `json:"version"`
	Opened       time.Time               `json:"opened"`
	PastSeconds  float64                 `json:"proofPastSeconds"`
	AheadSeconds float64                 `json:"proofFutureSeconds"`
	Participants []transcriptParticipant `json:"participants"`
	Server       string                  `json:"server,omitempty"`    // its agent URI
	ServerKey    string                  `json:"serverKey,omitempty"` // "ed25519:"+hex
}

const transcriptFormat = "asp-transcript/1"

type transcriptParticipant struct {
	AgentID string        `json:"agentId"`
	OrgID   string        `json:"orgId"`
	Cards   []CardVersion `json:"cards"`
}

type transcriptRecord struct {
	Position int64      `json:"position"`
	Kind     RecordKind `json:"kind"`
	Time     time.Time  `json:"time"`
	From     State      `json:"from"`
	To       State      `json:"to"`
	Digest   string     `json:"digest,omitempty"`
	Format   Format     `json:"format,omitempty"`
	Raw      []byte     `json:"raw,omitempty"`
	By       string     `json:"by,omitempty"`
	Reason   string     `json:"reason,omitempty"`
	Dispute  *Dispute   `json:"dispute,omitempty"`

	// Fields of a message whose content was erased.
	MessageID string `json:"messageId,omitempty"`
	Sender    string `json:"sender,omitempty"`
	Sequence  int64  `json:"sequence,omitzero"`

	Message jsonx.Value `json:"message,omitempty"` // last, as received
}

type transcriptTrailer struct {
	Count     int64  `json:"count"`
	Messages  int64  `json:"messages"`
	Head      string `json:"head"`
	State     State  `json:"state"`
	Chain     string `json:"chain"`
	Signature string `json:"signature,omitempty"`
}

const chainDomain = "asp-transcript\x00"

func chainNext(previous [32]byte, b []byte) [32]byte {
	h := sha256.New()
	h.Write(previous[:])
	h.Write(b)
	return [32]byte(h.Sum(nil))
}

func chainStart(header []byte) [32]byte {
	return chainNext(sha256.Sum256([]byte(chainDomain)), header)
}

// WriteTranscript writes the transcript of a session as it is now.
func (s *Server) WriteTranscript(ctx context.Context, session string, w io.Writer) error {
	ledger, err := s.Session(ctx, session, "")
	if err != nil {
		return err
	}
	h := transcriptHeader{Format: transcriptFormat, SessionID: session, Version: ledger.Version, Opened: ledger.Opened,
		PastSeconds: window{}.past().Seconds(), AheadSeconds: window{}.future().Seconds()}
	for _, p := range ledger.Participants {
		a, err := s.store.Agent(ctx, p.AgentID)
		if err != nil {
			return err
		}
		h.Participants = append(h.Participants, transcriptParticipant{p.AgentID, p.OrgID, a.Cards})
	}
	if s.Identity != nil {
		h.Server, h.ServerKey = s.Identity.ID(), "ed25519:"+hex.EncodeToString(s.Identity.public)
	}
	out := &transcriptWriter{w: bufio.NewWriter(w)}
	if err := out.header(h); err != nil {
		return err
	}
	t := transcriptTrailer{Head: ZeroHash, State: Idle}
	for t.Count < ledger.Head.Count {
		page, err := s.store.Records(ctx, session, t.Count, int(min(64, ledger.Head.Count-t.Count)))
		if err != nil {
			return err
		}
		if len(page) == 0 {
			return fmt.Errorf("asp: records of %s end at %d of %d", session, t.Count, ledger.Head.Count)
		}
		for _, r := range page {
			if err := out.record(r, t.Count == 0); err != nil {
				return err
			}
			t.Count++
			t.State = r.To
			if r.Kind == RecordMessage || r.Kind == RecordErased {
				t.Messages++
			}
		}
	}
	t.Head = ledger.Head.Hash
	t.Chain = hex.EncodeToString(out.chain[:])
	if s.Identity != nil {
		if t.Signature, err = s.Identity.sign(t.input()); err != nil {
			return err
		}
	}
	b, err := jsonx.Encode(t)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out.w, "],\n\"trailer\":%s}\n", b)
	return out.w.Flush()
}

// input is the server's signing input. Through the chain it covers the whole
// transcript.
func (t transcriptTrailer) input() []byte {
	return fmt.Appendf([]byte(chainDomain), "%d\x00%d\x00%s\x00%s\x00%s", t.Count, t.Messages, t.Head, t.State, t.Chain)
}

type transcriptWriter struct {
	w     *bufio.Writer // keeps its first error
	chain [32]byte
}

func (t *transcriptWriter) header(h transcriptHeader) error {
	b, err := jsonx.Encode(h)
	if err != nil {
		return err
	}
	t.chain = chainStart(b)
	_, err = fmt.Fprintf(t.w, "{\"header\":%s,\"chain\":\"%x\",\n\"records\":[\n", b, t.chain)
	return err
}

func (t *transcriptWriter) record(r *Record, first bool) error {
	rec := transcriptRecord{Position: r.Position, Kind: r.Kind, Time: r.Time, From: r.From, To: r.To, Digest: r.Digest,
		By: r.By, Reason: r.Reason, Dispute: r.Dispute}
	var message []byte
	if r.Kind == RecordErased {
		rec.MessageID, rec.Sender, rec.Sequence = r.MessageID, r.Sender, r.Sequence
	}
	if r.Kind == RecordMessage {
		rec.Format = r.Format
		if r.Format == JSON && !bytes.ContainsAny(r.Raw, "\r\n") {
			message = r.Raw
		} else {
			rec.Raw = r.Raw
		}
	}
	b, err := jsonx.Encode(rec)
	if err != nil {
		return err
	}
	if message != nil { // an encoder would change its spelling
		b = append(append(append(b[:len(b)-1], `,"message":`...), message...), '}')
	}
	t.chain = chainNext(t.chain, b)
	if !first {
		_ = t.w.WriteByte(',')
	}
	_, err = fmt.Fprintf(t.w, "{\"record\":%s,\"chain\":\"%x\"}\n", b, t.chain)
	return err
}

func (s *Server) serveTranscript(w http.ResponseWriter, r *http.Request, c *caller, args []string) error {
	if _, err := s.Session(r.Context(), args[0], c.agent.ID); err != nil {
		return err
	}
	answerHeader(w, "application/json")
	if err := s.WriteTranscript(r.Context(), args[0], w); err != nil {
		// The answer has begun. Without a trailer it does not verify.
		s.refused(r.Context(), c.agent.ID, args[0], nil, err)
	}
	return nil
}

// A TranscriptVerifier checks transcripts offline. The zero value trusts the cards
// in the transcript.
type TranscriptVerifier struct {
	Keys      Keys              // instead of the cards in the transcript
	ServerKey ed25519.PublicKey // of the server that must have signed; nil: the key in the transcript, if any
}

// A TranscriptReport is the result of a verification.
type TranscriptReport struct {
	SessionID string
	State     State
	Head      string
	Records   int64
	Messages  int64
	Erased    int64  // messages with content erased by the server, which cannot be verified
	Signed    bool   // the server's signature is valid
	Rewritten bool   // a fault: the file was saved as other JSON, so the server's seal cannot be compared
	Server    string // the signer, only claimed by the transcript unless ServerKey was given
	Faults    []TranscriptFault
	Warnings  []TranscriptFault
}

// A TranscriptFault is a fault and its place: the position of the record, -1 for
// the header, or the number of records for the trailer.
type TranscriptFault struct {
	Position int64
	Code     string
	Detail   string
}

func (f TranscriptFault) String() string {
	if f.Detail == "" {
		return fmt.Sprintf("record %d: %s", f.Position, f.Code)
	}
	return fmt.Sprintf("record %d: %s (%s)", f.Position, f.Code, f.Detail)
}

// ErrTranscript is the error for a transcript with faults; they are in its text and
// in the report.
var ErrTranscript = errors.New("asp: the transcript does not verify")

// VerifyTranscript checks a transcript with the keys in it and the server that it
// names. [TranscriptVerifier] can take them from elsewhere.
func VerifyTranscript(r io.Reader) (*TranscriptReport, error) {
	return TranscriptVerifier{}.Verify(context.Background(), r)
}

// Verify reads a transcript to its end. It always gives a report, and an error that
// wraps [ErrTranscript] if there is a fault. Memory does not grow with the
// transcript, except for eight bytes a message (see [Chain]).
func (v TranscriptVerifier) Verify(ctx context.Context, r io.Reader) (*TranscriptReport, error) {
	t := &transcriptReader{v: v, in: bufio.NewReader(r), report: &TranscriptReport{Head: ZeroHash, State: Idle}}
	if err := t.read(ctx); err != nil {
		return t.report, err
	}
	if len(t.report.Faults) > 0 {
		return t.report, fmt.Errorf("%w: %s", ErrTranscript, t.report.Faults[0])
	}
	return t.report, nil
}

type transcriptReader struct {
	v      TranscriptVerifier
	in     *bufio.Reader
	report *TranscriptReport
	header transcriptHeader
	window window
	keys   Keys
	chain  [32]byte
	links  Chain
	before State
	last   time.Time
}

// maxFaults bounds the faults of a report, and its warnings.
const maxFaults = 1000

func (t *transcriptReader) fault(at int64, code, detail string) {
	if len(t.report.Faults) < maxFaults {
		t.report.Faults = append(t.report.Faults, TranscriptFault{at, code, detail})
	}
}

func (t *transcriptReader) warn(at int64, code, detail string) {
	if len(t.report.Warnings) < maxFaults {
		t.report.Warnings = append(t.report.Warnings, TranscriptFault{at, code, detail})
	}
}

// line reads one line of bounded length, without the line break. It gives an
// unfinished line with [io.ErrUnexpectedEOF].
func (t *transcriptReader) line() ([]byte, error) {
	limit := maxMessage*3/2 + maxParticipants*4*maxCard
	var out []byte
	for {
		part, err := t.in.ReadSlice('\n')
		out = append(out, part...)
		switch {
		case err == nil:
			return out[:len(out)-1], nil
		case len(out) > limit, err == io.EOF:
			return out, io.ErrUnexpectedEOF
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}

// sealed parses PREFIX OBJECT ,"chain":"HEX" SUFFIX and compares the chain. It
// reports a wrong chain value and goes on with the stated value, so that one fault
// does not cause others.
func (t *transcriptReader) sealed(line []byte, prefix, suffix string, at int64) []byte {
	const mid = `,"chain":"`
	end := len(line) - len(suffix) - 64 - len(mid)
	if end < len(prefix) || string(line[:len(prefix)]) != prefix || string(line[end:end+len(mid)]) != mid ||
		string(line[len(line)-len(suffix):]) != suffix {
		t.fault(at, "malformed_json", "not a line of a transcript")
		return nil
	}
	obj := line[len(prefix):end]
	stated := line[end+len(mid) : end+len(mid)+64]
	if at < 0 {
		t.chain = chainStart(obj)
	} else {
		t.chain = chainNext(t.chain, obj)
	}
	if hex.EncodeToString(t.chain[:]) != string(stated) {
		t.fault(at, "chain_mismatch", "the record is not what was sealed here")
		if raw, err := hex.DecodeString(string(stated)); err == nil {
			t.chain = [32]byte(raw)
		}
	}
	return obj
}

func (t *transcriptReader) read(ctx context.Context) error {
	line, err := t.line()
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if err != nil || !bytes.HasPrefix(line, []byte(`{"header":`)) || !bytes.HasSuffix(line, []byte(`",`)) {
		if err == nil {
			line = append(line, '\n')
		}
		return t.rewritten(ctx, io.MultiReader(bytes.NewReader(line), t.in), err)
	}
	obj := t.sealed(line, `{"header":`, `",`, -1)
	if obj == nil || jsonx.DecodeKnown(obj, &t.header) != nil || t.header.Format != transcriptFormat {
		t.fault(-1, "malformed_json", "not a transcript")
		return nil
	}
	t.open()
	if line, err = t.line(); err != nil {
		return t.cut(0, err)
	}
	if string(line) != `"records":[` {
		t.fault(-1, "malformed_json", "not a line of a transcript")
	}
	for n := int64(0); ; n++ {
		if line, err = t.line(); err != nil {
			return t.cut(n, err)
		}
		if string(line) == "]," {
			return t.trailer(n)
		}
		prefix := `,{"record":`
		if n == 0 {
			prefix = prefix[1:]
		}
		if err := t.record(ctx, t.sealed(line, prefix, `"}`, n), n); err != nil {
			return err
		}
		t.report.Records = n + 1
	}
}

// cut reports a truncated transcript; it returns other errors of the reader.
func (t *transcriptReader) cut(at int64, err error) error {
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	t.fault(at, "truncated", "the transcript ends here")
	return nil
}

func (t *transcriptReader) open() {
	h := &t.header
	t.report.SessionID = h.SessionID
	seconds := func(f float64) time.Duration { return time.Duration(min(max(f, 1), 1e6) * float64(time.Second)) }
	t.window = window{seconds(h.PastSeconds), seconds(h.AheadSeconds)}
	static := make(StaticKeys)
	for _, p := range h.Participants {
		a := Agent{ID: p.AgentID, Cards: p.Cards}
		keys, err := a.Keys(context.Background(), p.AgentID)
		if err != nil || a.card == nil || a.card.AgentID != p.AgentID {
			t.fault(-1, "card_mismatch", p.AgentID)
			continue
		}
		static[p.AgentID] = keys
	}
	t.keys = t.v.Keys
	if t.keys == nil {
		t.keys = static
	}
	t.links = Chain{}
}

func (t *transcriptReader) record(ctx context.Context, obj []byte, n int64) error {
	if obj == nil {
		return nil
	}
	var rec transcriptRecord
	if err := jsonx.DecodeKnown(obj, &rec); err != nil {
		t.fault(n, "malformed_json", "not a record")
		return nil
	}
	if rec.Position != n {
		t.fault(n, "sequence_gap", fmt.Sprintf("position %d", rec.Position))
	}
	if rec.From != t.report.State {
		t.fault(n, "invalid_transition", fmt.Sprintf("from %s, was %s", rec.From, t.report.State))
	}
	if rec.Time.Before(t.last) {
		t.warn(n, "order_anomaly", "received before its predecessor")
	}
	t.last = rec.Time
	if rec.Kind == RecordMessage {
		if err := t.message(ctx, &rec, n); err != nil {
			return err
		}
	} else if rec.Kind == RecordErased && rec.Raw == nil && rec.Message == nil {
		t.links.skip(t.header.SessionID, rec.Sender, rec.Sequence)
		t.report.Messages++
		t.report.Erased++
		t.report.Head = ""
		t.warn(n, "erased", "the content of this message was erased; nothing proves what it was")
	} else if rec.Raw != nil || rec.Message != nil {
		t.fault(n, "invalid_field", "a message in a record of another kind")
	}
	if rec.To == Escalated && rec.From != Escalated {
		t.before = rec.From
	}
	t.report.State = rec.To
	return nil
}

func (t *transcriptReader) message(ctx context.Context, rec *transcriptRecord, n int64) error {
	raw := rec.Raw
	if rec.Message != nil {
		raw = rec.Message
	}
	if (rec.Raw == nil) == (rec.Message == nil) {
		t.fault(n, "missing_field", "message")
		return nil
	}
	// Keys and proofs are checked at the time of receipt.
	t.links.Keys = keysAt{t.keys, rec.Time}
	found, err := t.links.Add(ctx, raw, rec.Format)
	if err != nil {
		return err
	}
	t.report.Messages++
	for _, code := range found.Codes {
		t.fault(n, code, found.Detail)
	}
	for _, code := range found.Warnings {
		t.warn(n, code, "")
	}
	e := found.Envelope
	if e == nil {
		return nil
	}
	t.report.Head = e.Integrity.Hash
	if e.SessionID != t.header.SessionID {
		t.fault(n, "session_mismatch", e.SessionID)
	}
	if e.Digest() != rec.Digest {
		t.fault(n, "digest_mismatch", "a member outside hash and signature was changed")
	}
	if next, err := Next(rec.From, e.event(), t.before); err != nil || next != rec.To {
		t.fault(n, "invalid_transition", fmt.Sprintf("%s in %s gives %s", e.event(), rec.From, rec.To))
	}
	keys, err := t.keys.Keys(ctx, e.Sender.AgentID)
	if err != nil {
		return err
	}
	if key, ok := keyAt(keys, rec.Time); ok {
		if key.OrgID != "" && key.OrgID != e.Sender.OrgID {
			t.fault(n, "sender_mismatch", e.Sender.OrgID)
		}
		if key.Proof != nil {
			if _, err := e.checkProof(key, "", rec.Time, t.window, false); err != nil {
				t.fault(n, asError(err).Code, "")
			}
		}
	}
	return nil
}

// keysAt gives only the keys valid at one time, without their spans.
type keysAt struct {
	keys Keys
	at   time.Time
}

func (k keysAt) Keys(ctx context.Context, agentID string) ([]Key, error) {
	all, err := k.keys.Keys(ctx, agentID)
	if err != nil {
		return nil, err
	}
	key, ok := keyAt(all, k.at)
	if !ok {
		return nil, nil
	}
	key.NotBefore, key.NotAfter = time.Time{}, time.Time{}
	return []Key{key}, nil
}

// maxRewritten bounds a file that is not read line by line (project).
const maxRewritten = 48 << 20

// rewritten verifies a transcript that was saved as other JSON: indented, or with
// members in another order. It checks hashes, links, signatures, counters and the
// trailer. It cannot compare the chain of the records, which is over their exact
// bytes. lineErr is the error in the first line.
func (t *transcriptReader) rewritten(ctx context.Context, r io.Reader, lineErr error) error {
	b, err := io.ReadAll(io.LimitReader(r, maxRewritten+1))
	if err != nil {
		return err
	}
	if len(b) > maxRewritten {
		t.fault(-1, "rewritten", fmt.Sprintf("the file is not as the server wrote it, and larger than %d MiB: "+
			"verify the file as it was exported", maxRewritten>>20))
		return nil
	}
	var f struct {
		Header  jsonx.Value `json:"header"`
		Chain   string      `json:"chain"`
		Records []struct {
			Record jsonx.Value `json:"record"`
			Chain  string      `json:"chain"`
		} `json:"records"`
		Trailer jsonx.Value `json:"trailer"`
	}
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	if jsonx.DecodeKnown(b, &f) != nil || jsonx.DecodeKnown(f.Header, &t.header) != nil ||
		t.header.Format != transcriptFormat {
		if lineErr != nil {
			return t.cut(-1, lineErr)
		}
		t.fault(-1, "malformed_json", "not a transcript")
		return nil
	}
	t.report.Rewritten = true
	t.fault(-1, "rewritten", "the file is other JSON than the server wrote; hashes, links, signatures and sequence "+
		"were verified, but the server's seal needs the original bytes: verify the file as it was exported")
	t.open()
	chain := f.Chain
	for n, r := range f.Records {
		if err := t.record(ctx, r.Record, int64(n)); err != nil {
			return err
		}
		chain = r.Chain
		t.report.Records++
	}
	n := t.report.Records
	var tr transcriptTrailer
	if jsonx.DecodeKnown(f.Trailer, &tr) != nil {
		t.fault(n, "malformed_json", "not a trailer")
		return nil
	}
	t.conclude(&tr, n, chain)
	t.report.Signed = false // the signature covers the chain, which was not compared
	return nil
}

func (t *transcriptReader) trailer(n int64) error {
	line, err := t.line()
	if err != nil {
		return t.cut(n, err)
	}
	const prefix = `"trailer":`
	var tr transcriptTrailer
	if !bytes.HasPrefix(line, []byte(prefix)) || !bytes.HasSuffix(line, []byte("}}")) ||
		jsonx.DecodeKnown(line[len(prefix):len(line)-1], &tr) != nil {
		t.fault(n, "malformed_json", "not a trailer")
		return nil
	}
	if exact, err := jsonx.Encode(tr); err != nil || prefix+string(exact)+"}" != string(line) {
		t.fault(n, "malformed_json", "not the trailer as written")
	}
	if rest, err := io.ReadAll(io.LimitReader(t.in, 1)); err != nil || len(rest) > 0 {
		t.fault(n, "malformed_json", "data behind the trailer")
	}
	t.conclude(&tr, n, hex.EncodeToString(t.chain[:]))
	return nil
}

// conclude compares the trailer with the n records before it; chain is the chain value
// of the last record.
func (t *transcriptReader) conclude(tr *transcriptTrailer, n int64, chain string) {
	if tr.Count != n || tr.Messages != t.report.Messages {
		t.fault(n, "truncated", fmt.Sprintf("%d of %d records", n, tr.Count))
	}
	if t.report.Head == "" && t.report.Erased > 0 {
		t.report.Head = tr.Head // only claimed by the server
	}
	if tr.Head != t.report.Head {
		t.fault(n, "chain_mismatch", "head")
	}
	if tr.State != t.report.State {
		t.fault(n, "invalid_transition", "state "+string(tr.State))
	}
	if tr.Chain != chain {
		t.fault(n, "chain_mismatch", "the records are not those that were sealed")
	}
	t.signature(tr, n)
}

func (t *transcriptReader) signature(tr *transcriptTrailer, n int64) {
	key := t.v.ServerKey
	if key == nil && t.header.ServerKey != "" {
		stated, err := signingKeyOf(&node{kind: '"', str: t.header.ServerKey})
		if err != nil {
			t.fault(-1, "weak_or_invalid_key", "serverKey")
			return
		}
		key = stated
	}
	if key == nil {
		if tr.Signature != "" {
			t.fault(n, "key_unknown", "signed by a server that is not named")
		}
		return
	}
	if !signatureHolds(key, tr.input(), tr.Signature) {
		t.fault(n, "bad_signature", "of the server")
		return
	}
	t.report.Signed, t.report.Server = true, t.header.Server
}
