package bench

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/node"
)

// ASPRow is one measurement of ASP, on one goroutine.
type ASPRow struct {
	What  string        `json:"what"`
	Each  time.Duration `json:"each"`            // per message
	Floor time.Duration `json:"floor,omitempty"` // one Ed25519 and one P-256 verification and the SHA-256 of the same bytes
	Ratio float64       `json:"ratio,omitempty"` // floor by Parley: 1 is nothing but cryptography
}

// ASPConfig says what to measure.
type ASPConfig struct {
	Config
	Messages int // of the long session; default 100,000
}

// aspSession is a session that was signed before the clock starts.
type aspSession struct {
	id     string
	agents [2]*asp.Identity
	ec     [2]*ecdsa.PrivateKey
	raw    [][]byte
}

// sign makes a session of n messages by two agents in turn.
func (c *ASPConfig) sign(n int) (*aspSession, error) {
	id, err := asp.NewSessionID()
	if err != nil {
		return nil, err
	}
	s := &aspSession{id: id}
	for i, name := range []string{"anna", "ben"} {
		_, signing, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		if s.ec[i], err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, err
		}
		if s.agents[i], err = asp.NewIdentity("agent://bench.example/load/"+name, "org_bench", signing, s.ec[i]); err != nil {
			return nil, err
		}
	}
	head := asp.ZeroHash
	var next [2]int64
	text := strings.Repeat("x", max(0, c.Payload-100))
	for i := range n {
		d := asp.Draft{SessionID: id, PreviousHash: head, Performative: asp.Inform, Body: asp.Information{InformType: "result", Data: map[string]any{"n": i, "text": text}}}
		who := i % 2
		switch i {
		case 0:
			d.Performative, d.Body = asp.Propose, asp.Proposal{ProposalID: "p", Type: "session-invitation", Subject: "bench", Terms: map[string]any{}}
			d.Recipient = &asp.Party{AgentID: s.agents[1].ID(), OrgID: "org_bench"}
		case 1:
			d.Performative, d.Body = asp.Accept, asp.Answer{ReferenceID: "p"}
		}
		// Not ahead of the clock: signing takes longer than a millisecond only
		// on slow machines, and the check allows for more.
		d.Time = time.Now()
		d.SequenceNumber = next[who]
		e, err := d.Sign(s.agents[who])
		if err != nil {
			return nil, err
		}
		next[who]++
		head = e.Integrity.Hash
		s.raw = append(s.raw, e.Raw())
	}
	return s, nil
}

// floor is what cannot be left out of checking message i.
func (s *aspSession) floor(i int) (func() bool, error) {
	raw := s.raw[i]
	e, err := asp.Decode(raw)
	if err != nil {
		return nil, err
	}
	input := e.SigningInput()
	sig, err := hex.DecodeString(strings.TrimPrefix(e.Integrity.Signature, "ed25519:"))
	if err != nil {
		return nil, err
	}
	at := strings.LastIndexByte(e.Sender.DPoPProof, '.')
	proof, err := base64.RawURLEncoding.DecodeString(e.Sender.DPoPProof[at+1:])
	if err != nil {
		return nil, err
	}
	signed := []byte(e.Sender.DPoPProof[:at])
	who := i % 2
	public, ec := s.agents[who].Public().Signing, &s.ec[who].PublicKey
	r, z := new(big.Int).SetBytes(proof[:32]), new(big.Int).SetBytes(proof[32:])
	return func() bool {
		sha256.Sum256(raw)
		digest := sha256.Sum256(signed)
		return ed25519.Verify(public, input, sig) && ecdsa.Verify(ec, digest[:], r, z)
	}, nil
}

// ASP measures, on one goroutine: the checks of a message next to their floor;
// what a message costs a hub at the beginning of a session and at its end, all
// of it recorded in memory; and the offline verification of that session.
func ASP(ctx context.Context, c ASPConfig, each func(ASPRow)) error {
	c.defaults()
	if c.Messages == 0 {
		c.Messages = 100_000
	}
	if err := c.aspChecks(ctx, each); err != nil {
		return err
	}
	return c.aspSession(ctx, each)
}

func (c *ASPConfig) aspChecks(ctx context.Context, each func(ASPRow)) error {
	const n = 4000
	s, err := c.sign(n)
	if err != nil {
		return err
	}
	v := &asp.Verifier{Keys: asp.StaticKeys{s.agents[0].ID(): {s.agents[0].Public()}, s.agents[1].ID(): {s.agents[1].Public()}}}
	var checks, least time.Duration
	for i := range n { // in turns, so that both see the same machine
		f, err := s.floor(i)
		if err != nil {
			return err
		}
		begin := time.Now()
		_, err = v.Verify(ctx, s.raw[i], asp.Transport{Agent: s.agents[i%2].ID()})
		middle := time.Now()
		ok := f()
		end := time.Now()
		if err != nil || !ok {
			return fmt.Errorf("message %d: %w", i, errors.Join(err, ctx.Err()))
		}
		checks += middle.Sub(begin)
		least += end.Sub(middle)
	}
	each(ASPRow{What: "checks of a message", Each: checks / n, Floor: least / n, Ratio: float64(least) / float64(checks)})
	return nil
}

func (c *ASPConfig) aspSession(ctx context.Context, each func(ASPRow)) (err error) {
	dir, err := os.MkdirTemp(c.Dir, "parley-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	n, err := node.Open(ctx, node.Config{Data: filepath.Join(dir, "data"), Durability: "memory", Log: c.Log, Listen: node.Listen{HTTP: "127.0.0.1:0"},
		Limits: node.Limits{SenderRate: -1}})
	if err != nil {
		return err
	}
	defer func() {
		if cerr := n.Close(context.WithoutCancel(ctx)); err == nil {
			err = cerr
		}
	}()
	if err := n.Start(ctx); err != nil {
		return err
	}
	s, err := c.sign(c.Messages)
	if err != nil {
		return err
	}
	for _, id := range s.agents {
		card, err := id.Card().JSON()
		if err == nil {
			_, err = n.ASP().Enroll(ctx, card)
		}
		if err != nil {
			return err
		}
	}
	server := n.ASP().Server()
	stop := func() {}
	if c.Profile != nil {
		stop = c.Profile("asp-session")
	}
	window := min(2000, c.Messages/4)
	var began time.Time
	for i, raw := range s.raw {
		if i == 10 || i == c.Messages-window {
			began = time.Now()
		}
		if _, err := server.Ingest(ctx, raw, asp.Transport{Agent: s.agents[i%2].ID()}, s.id); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if i == 10+window-1 {
			each(ASPRow{What: fmt.Sprintf("recorded, messages 10 to %d", 10+window), Each: time.Since(began) / time.Duration(window)})
		}
	}
	each(ASPRow{What: fmt.Sprintf("recorded, messages %d to %d", c.Messages-window, c.Messages), Each: time.Since(began) / time.Duration(window)})
	stop()
	var out bytes.Buffer
	if err := server.WriteTranscript(ctx, s.id, &out); err != nil {
		return err
	}
	began = time.Now()
	report, err := asp.VerifyTranscript(&out)
	if err != nil {
		return err
	}
	each(ASPRow{What: fmt.Sprintf("verified offline, %d messages", report.Messages), Each: time.Since(began) / time.Duration(report.Messages)})
	return nil
}
