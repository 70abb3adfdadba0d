package bench

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/parley-hub/parley/asp"
	"github.com/parley-hub/parley/internal/bench/floor"
	"github.com/parley-hub/parley/internal/bench/load"
	"github.com/parley-hub/parley/node"
)

// ASPRow is one measurement of ASP, on one goroutine.
type ASPRow struct {
	What  string        `json:"what"`
	Each  time.Duration `json:"each"`            // per message
	CPU   time.Duration `json:"cpu"`             // of this process, per message
	Floor time.Duration `json:"floor,omitempty"` // CPU time of one Ed25519 and one P-256 verification and one SHA-256
	Ratio float64       `json:"ratio,omitempty"` // floor by Parley, in CPU time: at 1 all is cryptography
}

// ASPConfig configures [ASP].
type ASPConfig struct {
	Config
	Messages   int    // of the long session
	Transcript string // file that keeps its transcript; "": none
}

// spent is wall clock and CPU time together.
type spent struct{ wall, cpu time.Duration }

// meter starts a measurement; each call of the result gives the time since then.
func meter() func() spent {
	began, cpu := time.Now(), load.CPU()
	return func() spent { return spent{time.Since(began), load.CPU() - cpu} }
}

// row is a measurement of n messages.
func (s spent) row(what string, n int) ASPRow {
	return ASPRow{What: what, Each: s.wall / time.Duration(n), CPU: s.cpu / time.Duration(n)}
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
		if s.agents[i], err = asp.NewIdentity("agent://bench.example/load/"+name, "org_bench", signing,
			s.ec[i]); err != nil {
			return nil, err
		}
	}
	head := asp.ZeroHash
	var next [2]int64
	text := strings.Repeat("x", max(0, c.Payload-100))
	for i := range n {
		d := asp.Draft{SessionID: id, PreviousHash: head, Performative: asp.Inform,
			Body: asp.Information{InformType: "result", Data: map[string]any{"n": i, "text": text}}}
		who := i % 2
		switch i {
		case 0:
			d.Performative, d.Body = asp.Propose, asp.Proposal{ProposalID: "p", Type: "session-invitation",
				Subject: "bench", Terms: map[string]any{}}
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

// floor does the cryptography that checking message i needs, and nothing else.
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

// ASP measures, on one goroutine: the checks of a message next to their floor; the cost
// of a message at the beginning and at the end of a session recorded in memory; and the
// offline verification of that session.
func ASP(ctx context.Context, c ASPConfig, each func(ASPRow)) error {
	c.defaults()
	if err := c.aspChecks(ctx, each); err != nil {
		return err
	}
	hub := node.Config{Listen: node.Listen{HTTP: "127.0.0.1:0"}}
	return c.withHub(ctx, floor.Memory, hub,
		func(dir string, n *node.Node) error { return c.recordSession(ctx, dir, n, each) })
}

func (c *ASPConfig) aspChecks(ctx context.Context, each func(ASPRow)) error {
	const n = 4000
	s, err := c.sign(n)
	if err != nil {
		return err
	}
	v := &asp.Verifier{Keys: asp.StaticKeys{s.agents[0].ID(): {s.agents[0].Public()},
		s.agents[1].ID(): {s.agents[1].Public()}}}
	var floors []func() bool
	for i := range n {
		f, err := s.floor(i)
		if err != nil {
			return err
		}
		floors = append(floors, f)
	}
	var checks, least spent
	const turn = 100
	for from := 0; from < n; from += turn { // alternating, so that other work disturbs both
		took := meter()
		for i := from; i < from+turn; i++ {
			if _, err := v.Verify(ctx, s.raw[i], asp.Transport{Agent: s.agents[i%2].ID()}); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
		}
		t := took()
		checks.wall, checks.cpu = checks.wall+t.wall, checks.cpu+t.cpu
		took = meter()
		for i := from; i < from+turn; i++ {
			if !floors[i]() {
				return fmt.Errorf("message %d does not verify", i)
			}
		}
		t = took()
		least.wall, least.cpu = least.wall+t.wall, least.cpu+t.cpu
	}
	if checks.cpu == 0 { // the system does not report CPU time
		checks.cpu, least.cpu = checks.wall, least.wall
	}
	r := checks.row("checks of a message", n)
	r.Floor, r.Ratio = least.cpu/n, float64(least.cpu)/float64(checks.cpu)
	each(r)
	return nil
}

func (c *ASPConfig) recordSession(ctx context.Context, dir string, n *node.Node, each func(ASPRow)) error {
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
	stop := c.profiled("asp-session")
	window := min(10_000, c.Messages/4) // long enough that each has its share of garbage collection
	var took func() spent
	for i, raw := range s.raw {
		if i == 10 || i == c.Messages-window {
			took = meter()
		}
		if _, err := server.Ingest(ctx, raw, asp.Transport{Agent: s.agents[i%2].ID()}, s.id); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		s.raw[i] = nil
		if i == 10+window-1 {
			each(took().row(fmt.Sprintf("recorded, messages 10 to %d", 10+window), window))
		}
	}
	each(took().row(fmt.Sprintf("recorded, messages %d to %d", c.Messages-window, c.Messages), window))
	stop()
	s.raw = nil
	path := cmp.Or(c.Transcript, filepath.Join(dir, "transcript.json"))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	took = meter()
	if err := server.WriteTranscript(ctx, s.id, f); err != nil {
		return err
	}
	each(took().row(fmt.Sprintf("exported, %d messages", c.Messages), c.Messages))
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	defer c.profiled("asp-verify")()
	took = meter()
	report, err := asp.VerifyTranscript(f)
	if err != nil {
		return err
	}
	each(took().row(fmt.Sprintf("verified offline, %d messages", report.Messages), int(report.Messages)))
	return nil
}
