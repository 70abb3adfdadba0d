package admin

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/journal"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/keyring"
)

// An export is a conversation as a file that proves itself: one JSON object a
// line, in the form of RFC 8785. The first line is the header, then comes one
// line for each record of the journal that concerns the conversation, the
// oldest first, and at last the end, which is signed.
//
// The hash of a line is SHA-256 over the hash of the line before it (nothing
// for the first) and the line itself without "hash" and "signature". The
// signature is Ed25519 over "parley export 1", a zero byte, and the hash of
// the last line.

// exportMediaType is the media type of an export.
const exportMediaType = "application/jsonl"

// backupMediaType is the media type of a backup.
const backupMediaType = "application/vnd.parley.backup"

// exportVersion is the version of the format.
const exportVersion = 1

const (
	exportPurpose = "export"
	exportSigned  = "parley export 1\x00"
	maxExport     = 1 << 20   // records of one conversation
	maxExportLine = 128 << 20 // bytes
)

// ExportLine is one line of an export; exactly one of Header, Record and End
// is set.
type ExportLine struct {
	Line      int           `json:"line"` // from 0
	Header    *ExportHeader `json:"header,omitzero"`
	Record    *ExportRecord `json:"record,omitzero"`
	End       *ExportEnd    `json:"end,omitzero"`
	Previous  string        `json:"previous,omitzero"` // hash of the line before, hexadecimal
	Hash      string        `json:"hash,omitzero"`
	Signature []byte        `json:"signature,omitzero"` // of the end
}

// ExportHeader names the hub, the conversation and the key that signs the file.
type ExportHeader struct {
	Format       string    `json:"format"` // "parley conversation"
	Version      int       `json:"version"`
	Hub          string    `json:"hub"`
	Conversation parley.ID `json:"conversation"`
	Exported     time.Time `json:"exported"`
	Base         string    `json:"base,omitzero"` // URL of the hub's agents: SAMVAD signs its path
	Content      bool      `json:"content"`       // false: digests in place of bytes
	KeyID        string    `json:"keyId"`         // of the key that signs the file
	Key          []byte    `json:"key"`           // the public key, Ed25519
}

// ExportEnd closes the file.
type ExportEnd struct {
	Records int `json:"records"`
}

// ExportRecord is one record of the journal.
type ExportRecord struct {
	Position journal.Position `json:"position"`
	Removed  bool             `json:"removed,omitzero"` // the journal no longer has it
	Time     time.Time        `json:"time,omitzero"`
	Node     string           `json:"node,omitzero"`
	Message  *ExportMessage   `json:"message,omitzero"`
	Refused  *index.Reason    `json:"refused,omitzero"`
	Opened   []ExportOpening  `json:"opened,omitzero"`
	Losses   []string         `json:"losses,omitzero"` // of an event that has no delivery
	Steps    []ExportStep     `json:"steps,omitzero"`
	Erased   *ExportErased    `json:"erased,omitzero"` // the message's content was erased
}

// ExportMessage is a message.
type ExportMessage struct {
	ID           parley.ID         `json:"id"`
	Kind         parley.Kind       `json:"kind"`
	State        parley.State      `json:"state,omitzero"`
	Number       int               `json:"number,omitzero"`
	Error        *index.Reason     `json:"error,omitzero"`
	From         string            `json:"from"`
	To           string            `json:"to,omitzero"`
	Audience     []string          `json:"audience,omitzero"`
	Conversation parley.ID         `json:"conversation"`
	InReplyTo    parley.ID         `json:"inReplyTo,omitzero"`
	Skill        string            `json:"skill,omitzero"`
	Act          string            `json:"act,omitzero"`
	Schema       string            `json:"schema,omitzero"`
	Sent         time.Time         `json:"sent,omitzero"`
	Expires      time.Time         `json:"expires,omitzero"`
	Deadline     time.Time         `json:"deadline,omitzero"`
	TraceParent  string            `json:"traceParent,omitzero"`
	TraceState   string            `json:"traceState,omitzero"`
	Foreign      map[string]string `json:"foreign,omitzero"` // ids of the protocol's own
	Hops         []string          `json:"hops,omitzero"`
	Extensions   map[string]string `json:"extensions,omitzero"` // JSON texts
	Parts        []ExportPart      `json:"parts"`
	Origin       ExportOrigin      `json:"origin"`
}

// ExportPart is one piece of content. Its bytes are Data, or lie in the raw
// envelope at Offset.
type ExportPart struct {
	MediaType string `json:"mediaType,omitzero"`
	Name      string `json:"name,omitzero"`
	URI       string `json:"uri,omitzero"`
	Size      int    `json:"size"`
	Digest    string `json:"digest,omitzero"` // RFC 9530: of the bytes, or of the content at URI
	Offset    *int   `json:"offset,omitzero"`
	Data      []byte `json:"data,omitzero"`
}

// ExportOrigin is how a message reached the hub.
type ExportOrigin struct {
	Protocol  string            `json:"protocol"`
	Peer      string            `json:"peer,omitzero"`
	Address   string            `json:"address,omitzero"`
	Received  time.Time         `json:"received,omitzero"`
	Header    map[string]string `json:"header,omitzero"`
	Raw       []byte            `json:"raw,omitzero"` // as received, with a digest in place of a bearer token
	RawSize   int               `json:"rawSize,omitzero"`
	RawDigest string            `json:"rawDigest,omitzero"`
	Assurance parley.Assurance  `json:"assurance"`
	KeyID     string            `json:"keyId,omitzero"`
	Checks    []Check           `json:"checks,omitzero"`
	Keys      []ExportKey       `json:"keys,omitzero"` // of the sender, as they were enrolled at the time of the export
}

// ExportKey is a public key of a sender, or a card that holds its keys.
type ExportKey struct {
	KeyID     string `json:"keyId"`
	Algorithm string `json:"algorithm"` // a keyring's, or AlgorithmASPCard
	Public    []byte `json:"public"`
	By        string `json:"by,omitzero"` // the operator or agent that enrolled it
}

// AlgorithmASPCard says that Public is the JSON text of an ASP agent's card,
// with the keys that were good when the message was received.
const AlgorithmASPCard = "asp-card"

// ExportOpening is a delivery that was opened.
type ExportOpening struct {
	To      string `json:"to"`
	Attempt int    `json:"attempt,omitzero"`
	Sync    bool   `json:"sync,omitzero"`
}

// ExportStep is a step of a delivery.
type ExportStep struct {
	Message   parley.ID            `json:"message"`
	To        string               `json:"to"`
	State     parley.DeliveryState `json:"state"`
	Attempt   int                  `json:"attempt,omitzero"`
	Postponed bool                 `json:"postponed,omitzero"`
	Next      time.Time            `json:"next,omitzero"`
	Reply     parley.ID            `json:"reply,omitzero"`
	Error     *index.Reason        `json:"error,omitzero"`
	Losses    []string             `json:"losses,omitzero"`
}

// export is a running export.
type export struct {
	a            *Admin
	x            *index.Index
	conversation index.Conversation
	content      bool
	signer       keyring.Signer
	ids          map[parley.ID]bool
	positions    []timedPosition
}

type timedPosition struct {
	time     time.Time
	position journal.Position
}

// Export writes a conversation as a file that proves itself. Without content
// it has digests in place of bytes.
func (a *Admin) Export(ctx context.Context, by Actor, id string, content bool, w io.Writer) error {
	e, err := a.export(ctx, by, id, content)
	if err != nil {
		return err
	}
	return e.write(ctx, w)
}

// export finds all records before the first line is written, so that errors come first.
func (a *Admin) export(ctx context.Context, by Actor, id string, content bool) (*export, error) {
	if err := by.may(Read); err != nil {
		return nil, err
	}
	x, err := a.fresh(ctx, by)
	if err != nil {
		return nil, err
	}
	e := &export{a: a, x: x, content: content, ids: map[parley.ID]bool{}}
	if e.conversation, err = x.Conversation(ctx, id); err != nil {
		return nil, unresolved(err, "conversation", id)
	}
	if e.signer, err = a.c.Keys.Ensure(keyring.New{Owner: keyring.Hub, Purpose: exportPurpose,
		Algorithm: keyring.Ed25519, By: "parley"}); err != nil {
		return nil, err
	}
	for cursor := ""; ; {
		page, err := x.History(ctx, e.conversation.ID, cursor, index.MaxLimit)
		if err != nil {
			return nil, err
		}
		for _, m := range page.Messages {
			e.ids[m.ID] = true
			e.positions = append(e.positions, timedPosition{m.Time, m.Position})
			for _, d := range m.Deliveries {
				for _, s := range d.Steps {
					e.positions = append(e.positions, timedPosition{s.Time, s.Position})
				}
			}
		}
		if len(e.positions) > maxExport {
			return nil, parley.Refuse(parley.TooLarge, "the conversation has more than %d records", maxExport)
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	slices.SortFunc(e.positions, func(p, q timedPosition) int {
		return cmp.Or(p.time.Compare(q.time), cmp.Compare(p.position.Partition, q.position.Partition),
			cmp.Compare(p.position.Sequence, q.position.Sequence))
	})
	e.positions = slices.Compact(e.positions)
	return e, nil
}

// Transcript writes the session of a conversation in the transcript format of the
// session's protocol.
func (a *Admin) Transcript(ctx context.Context, by Actor, id, protocol string, w io.Writer) error {
	write, _, err := a.transcript(ctx, by, id, protocol)
	if err != nil {
		return err
	}
	return write(ctx, w)
}

// transcript finds the session of a conversation.
func (a *Admin) transcript(ctx context.Context, by Actor, id, protocol string) (write func(context.Context,
	io.Writer) error, session string, err error) {
	if err := by.may(Read); err != nil {
		return nil, "", err
	}
	x, err := a.fresh(ctx, by)
	if err != nil {
		return nil, "", err
	}
	c, err := x.Conversation(ctx, id)
	if err != nil {
		return nil, "", unresolved(err, "conversation", id)
	}
	p := a.protocol(protocol)
	for cursor := ""; p.Transcript != nil; {
		page, err := x.History(ctx, c.ID, cursor, index.MaxLimit)
		if err != nil {
			return nil, "", err
		}
		for _, m := range page.Messages {
			if m.Protocol != protocol || m.Refused {
				continue
			}
			r, err := a.c.Hub.Journal().Read(ctx, m.Position)
			if errors.Is(err, journal.ErrNotFound) {
				continue // retention let it go
			}
			if err != nil {
				return nil, "", err
			}
			s, own, f := p.Transcript(r.Message)
			switch {
			case f == nil || s == session:
			case own:
				return f, s, nil
			case session != "":
				return nil, "", parley.Refuse(parley.Conflict,
					"the conversation was held in several sessions (%s, %s, …): export each by its own "+
						"conversation, or all in the hub's format", session, s)
			default:
				write, session = f, s
			}
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if write == nil {
		return nil, "", parley.Refuse(parley.Unsupported,
			"nothing in conversation %s was said in a session of %s: export it in the hub's format", c.ID, protocol)
	}
	return write, session, nil
}

func (e *export) write(ctx context.Context, w io.Writer) error {
	out := bufio.NewWriterSize(w, 64<<10)
	c := chain{w: out}
	hub := e.a.c.Hub.ID()
	base := e.a.c.Info().SAMVAD.Base
	err := c.add(&ExportLine{Header: &ExportHeader{Format: "parley conversation", Version: exportVersion, Hub: hub,
		Conversation: e.conversation.ID, Exported: e.a.c.Now().UTC().Truncate(time.Millisecond), Base: base,
		Content: e.content, KeyID: e.signer.ID(), Key: e.signer.Public()}}, nil)
	if err != nil {
		return err
	}
	for _, p := range e.positions {
		if err := ctx.Err(); err != nil {
			return err
		}
		v, err := e.record(ctx, p.position)
		if err == nil {
			err = c.add(&ExportLine{Record: v}, nil)
		}
		if err != nil {
			return err
		}
	}
	if err := c.add(&ExportLine{End: &ExportEnd{Records: len(e.positions)}}, e.signer); err != nil {
		return err
	}
	return out.Flush()
}

// chain writes the lines of an export.
type chain struct {
	w    io.Writer
	next int
	last []byte
}

func (c *chain) add(l *ExportLine, s keyring.Signer) error {
	l.Line, l.Previous = c.next, hex.EncodeToString(c.last)
	c.next++
	hash, err := hashLine(l, c.last)
	if err != nil {
		return err
	}
	c.last, l.Hash = hash, hex.EncodeToString(hash)
	if s != nil {
		if l.Signature, err = s.Sign(append([]byte(exportSigned), hash...)); err != nil {
			return err
		}
	}
	b, err := canonical(l)
	if err != nil {
		return err
	}
	_, err = c.w.Write(append(b, '\n'))
	return err
}

func canonical(l *ExportLine) ([]byte, error) {
	b, err := jsonx.Encode(l)
	if err != nil {
		return nil, err
	}
	return jsonx.Canonicalize(b)
}

func hashLine(l *ExportLine, previous []byte) ([]byte, error) {
	bare := *l
	bare.Hash, bare.Signature = "", nil
	b, err := canonical(&bare)
	if err != nil {
		return nil, err
	}
	h := sha256.New()
	h.Write(previous)
	h.Write(b)
	return h.Sum(nil), nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// record gives the part of a record that belongs to the conversation.
func (e *export) record(ctx context.Context, at journal.Position) (*ExportRecord, error) {
	r, err := e.a.c.Hub.Journal().Read(ctx, at)
	if errors.Is(err, journal.ErrNotFound) {
		return &ExportRecord{Position: at, Removed: true}, nil
	}
	if err != nil {
		return nil, err
	}
	v := &ExportRecord{Position: at, Time: r.Time, Node: r.Node}
	if m := r.Message; m != nil && m.Conversation == e.conversation.ID {
		if v.Message, err = e.message(ctx, e.a.masked(m)); err != nil {
			return nil, err
		}
		v.Refused = index.ReasonOf(r.Refused)
		for _, o := range r.Open {
			v.Opened = append(v.Opened, ExportOpening{o.To, o.Attempt, o.Sync})
		}
		for _, l := range r.Losses {
			v.Losses = append(v.Losses, l.String())
		}
	}
	for _, s := range r.Steps {
		if !e.ids[s.Message] {
			continue
		}
		x := ExportStep{Message: s.Message, To: s.To, State: s.State, Attempt: s.Attempt, Postponed: s.Postponed,
			Next: s.Next, Reply: s.Reply, Error: index.ReasonOf(s.Error)}
		for _, l := range s.Losses {
			x.Losses = append(x.Losses, l.String())
		}
		v.Steps = append(v.Steps, x)
	}
	v.mark(r, e.a.erasure(ctx, r))
	return v, nil
}

// origin describes how a message reached the hub, with the sender's keys that prove it.
func (e *export) origin(ctx context.Context, m *parley.Message) (ExportOrigin, error) {
	o := &m.Origin
	v := ExportOrigin{Protocol: o.Protocol, Peer: o.Peer, Address: o.Address, Received: o.Received, Header: o.Header,
		Assurance: o.Verdict.Assurance, KeyID: o.Verdict.KeyID, Checks: viewChecks(o.Verdict.Checks)}
	if len(o.Raw) > 0 {
		v.RawSize, v.RawDigest = len(o.Raw), digest(o.Raw)
		if e.content {
			v.Raw = o.Raw
		}
	}
	if o.Verdict.Assurance != parley.Signed {
		return v, nil
	}
	for _, k := range e.a.c.Keys.Enrolled(m.From, o.Protocol) {
		v.Keys = append(v.Keys, ExportKey{k.KeyID, string(k.Algorithm), k.Public, k.By})
	}
	if p := e.a.protocol(o.Protocol); p.SenderKeys != nil {
		more, err := p.SenderKeys(ctx, m)
		if err != nil {
			return v, err
		}
		v.Keys = append(v.Keys, more...)
	}
	return v, nil
}

func (e *export) message(ctx context.Context, m *parley.Message) (*ExportMessage, error) {
	o := &m.Origin
	origin, err := e.origin(ctx, m)
	if err != nil {
		return nil, err
	}
	v := &ExportMessage{ID: m.ID, Kind: m.Kind, State: m.State, Number: m.Number, Error: index.ReasonOf(m.Error),
		From: m.From, To: m.To, Audience: m.Audience, Conversation: m.Conversation, InReplyTo: m.InReplyTo,
		Skill: m.Skill, Act: m.Act, Schema: m.Schema, Sent: m.Sent, Expires: m.Expires, Deadline: m.Deadline,
		TraceParent: m.Trace.Parent, TraceState: m.Trace.State, Foreign: m.Trace.Foreign, Hops: m.Hops,
		Parts: []ExportPart{}, Origin: origin}
	for name, b := range m.Extensions {
		if v.Extensions == nil {
			v.Extensions = map[string]string{}
		}
		v.Extensions[name] = string(b)
	}
	for _, p := range m.Parts {
		x := ExportPart{MediaType: p.MediaType, Name: p.Name, URI: p.URI, Size: len(p.Data), Digest: p.Digest}
		if p.URI == "" && (len(p.Data) > 0 || p.Digest == "") {
			x.Digest = digest(p.Data)
			if at := bytes.Index(o.Raw, p.Data); at >= 0 && len(o.Raw) > 0 && len(p.Data) > 0 {
				x.Offset = &at
			} else if e.content {
				x.Data = p.Data
			}
		}
		v.Parts = append(v.Parts, x)
	}
	return v, nil
}

// Report is the result of verifying an export.
type Report struct {
	Header   *ExportHeader
	Records  int
	Messages int
	Signed   bool // the signature is that of the header's key
	Problems []string
}

// OK reports whether the file is as the hub wrote it.
func (r *Report) OK() bool { return r.Signed && len(r.Problems) == 0 }

// maxProblems bounds the problems that a report names.
const maxProblems = 100

func (r *Report) add(format string, args ...any) {
	switch {
	case len(r.Problems) < maxProblems:
		r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
	case len(r.Problems) == maxProblems:
		r.Problems = append(r.Problems, "and more")
	}
}

// seenLine is the part of a line that the checks between lines need.
type seenLine struct {
	at             int // in the file, from 1
	number         int
	hash, previous string
	intact, end    bool
}

// VerifyExport reads an export and reports every change: lines that were changed,
// removed, moved or inserted. It trusts the key in the header: the caller must know that
// it is the hub's. For each intact record it calls each with the header, which may be
// nil, the record's line number in the file, and the record. The error is that of r.
func VerifyExport(r io.Reader, each func(h *ExportHeader, line int, record *ExportRecord)) (*Report, error) {
	out := &Report{}
	var lines []seenLine
	var end *ExportLine
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 64<<10), maxExportLine)
	at := 0
	for scan.Scan() {
		at++
		var l ExportLine
		if err := jsonx.DecodeKnown(scan.Bytes(), &l); err != nil {
			out.add("line %d is not a line of an export: %v", at, err)
			continue
		}
		s := seenLine{at: at, number: l.Line, hash: l.Hash, previous: l.Previous, end: l.End != nil}
		s.intact = intact(&l, scan.Bytes())
		lines = append(lines, s)
		switch {
		case l.Header != nil && at == 1:
			out.Header = l.Header
		case l.Record != nil:
			out.Records++
			if l.Record.Message != nil {
				out.Messages++
			}
			if s.intact && each != nil {
				each(out.Header, at, l.Record)
			}
		case l.End != nil:
			end = &l
		}
	}
	if err := scan.Err(); err != nil {
		return out, err
	}
	h := out.Header
	switch {
	case h == nil:
		out.add("the first line is not the header of an export")
	case h.Format != "parley conversation" || h.Version != exportVersion:
		out.add("the file is %.40q, version %d; this program reads %q, version %d", h.Format, h.Version,
			"parley conversation", exportVersion)
	}
	out.chain(lines)
	out.signature(h, end)
	return out, nil
}

// intact reports whether a line has its own hash and is in canonical form.
func intact(l *ExportLine, raw []byte) bool {
	previous, err := hex.DecodeString(l.Previous)
	if err != nil {
		return false
	}
	hash, err := hashLine(l, previous)
	if err != nil || hex.EncodeToString(hash) != l.Hash {
		return false
	}
	b, err := canonical(l)
	return err == nil && bytes.Equal(b, raw)
}

// chain checks that each line continues the line before.
func (r *Report) chain(lines []seenLine) {
	byHash := map[string]int{}        // place in kept
	byNumber := map[int][]*seenLine{} // intact ones
	present := map[int]bool{}
	var kept []*seenLine
	var end *seenLine
	ended, highest := false, 0
	for i := range lines {
		l := &lines[i]
		present[l.number] = true
		highest = max(highest, l.number)
		ended = ended || l.end
		if !l.intact {
			r.add("line %d was changed", l.at)
			continue
		}
		if first, is := byHash[l.hash]; is {
			r.add("line %d is a copy of line %d: it was inserted", l.at, kept[first].at)
			continue
		}
		byHash[l.hash] = len(kept)
		byNumber[l.number] = append(byNumber[l.number], l)
		kept = append(kept, l)
		if l.end {
			end = l
		}
	}
	if !ended {
		r.add("the last line of the export is missing: the file was cut off")
	}
	// Of several lines with one number, the line that the next line names is genuine.
	named := map[string]bool{}
	for _, l := range lines {
		named[l.previous] = true
	}
	genuine := kept[:0:0]
	for _, l := range kept {
		if same := byNumber[l.number]; len(same) > 1 && !named[l.hash] &&
			slices.ContainsFunc(same, func(o *seenLine) bool { return named[o.hash] }) {
			r.add("line %d was inserted: another line is number %d", l.at, l.number)
			continue
		}
		genuine = append(genuine, l)
	}
	if end != nil && !slices.Contains(genuine, end) {
		end = nil
	}
	if end != nil {
		highest = end.number
	}
	r.missing(present, highest)
	inOrder := longestRise(genuine)
	for i, l := range genuine {
		switch {
		case end != nil && l.number > end.number:
			r.add("line %d was inserted: it has a number behind the end", l.at)
		case !inOrder[i]:
			r.add("line %d was moved: it is number %d", l.at, l.number)
		}
	}
	at := map[int]*seenLine{}
	for _, l := range genuine {
		if end == nil || l.number <= end.number {
			at[l.number] = l
		}
	}
	for _, n := range slices.Sorted(maps.Keys(at)) {
		l := at[n]
		if before := at[l.number-1]; before != nil && l.previous != before.hash {
			r.add("line %d was replaced, or line %d: the one does not continue the other", before.at, l.at)
		}
	}
}

// missing names the numbers that no line has.
func (r *Report) missing(present map[int]bool, highest int) {
	if highest > len(present)+maxExport {
		r.add("lines are missing: the last one is number %d, and there are only %d", highest, len(present))
		return
	}
	for n := 0; n <= highest; n++ {
		if present[n] {
			continue
		}
		first := n
		for n < highest && !present[n+1] {
			n++
		}
		if first == n {
			r.add("line number %d is missing", first)
		} else {
			r.add("lines number %d to %d are missing", first, n)
		}
	}
}

// longestRise marks the lines of a longest run of growing numbers: the other lines were
// moved.
func longestRise(lines []*seenLine) []bool {
	var tails []int // index of the smallest last line of a run of each length
	before := make([]int, len(lines))
	for i, l := range lines {
		k, _ := slices.BinarySearchFunc(tails, l.number, func(t, n int) int { return cmp.Compare(lines[t].number, n) })
		before[i] = -1
		if k > 0 {
			before[i] = tails[k-1]
		}
		if k == len(tails) {
			tails = append(tails, i)
		} else {
			tails[k] = i
		}
	}
	in := make([]bool, len(lines))
	if len(tails) > 0 {
		for i := tails[len(tails)-1]; i >= 0; i = before[i] {
			in[i] = true
		}
	}
	return in
}

func (r *Report) signature(h *ExportHeader, end *ExportLine) {
	switch {
	case h == nil || end == nil:
		return // said already
	case len(h.Key) != ed25519.PublicKeySize:
		r.add("the header's key is not an Ed25519 key")
		return
	}
	hash, err := hex.DecodeString(end.Hash)
	if err != nil || !ed25519.Verify(h.Key, append([]byte(exportSigned), hash...), end.Signature) {
		r.add("the signature of the last line is not that of the header's key: the file was rewritten without that key")
		return
	}
	if end.End.Records != r.Records && len(r.Problems) == 0 {
		r.add("the file has %d records, its last line says %d", r.Records, end.End.Records)
	}
	r.Signed = true
}

// Check compares the content of a message with the digests beside it.
func (m *ExportMessage) Check() error {
	raw := m.Origin.Raw
	if raw != nil && digest(raw) != m.Origin.RawDigest {
		return errors.New("the envelope does not match its digest")
	}
	for i, p := range m.Parts {
		data := p.Data
		if p.Offset != nil && raw != nil {
			if *p.Offset < 0 || p.Size < 0 || *p.Offset > len(raw)-p.Size {
				return fmt.Errorf("part %d lies outside the envelope", i+1)
			}
			data = raw[*p.Offset : *p.Offset+p.Size]
		}
		if data != nil && digest(data) != p.Digest {
			return fmt.Errorf("part %d does not match its digest", i+1)
		}
	}
	return nil
}
