package asp

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

// An access token is an HMAC of the server over the agent, the thumbprint of the
// agent's proof key (RFC 9449 §6) and the expiry.

type tokenClaims struct {
	Agent      string `json:"sub"`
	Thumbprint string `json:"jkt"`
	Expires    int64  `json:"exp"`
}

func (s *Server) issueToken(agent, thumbprint string, now time.Time) (token string, life time.Duration, err error) {
	life = time.Hour
	b, err := jsonx.Encode(tokenClaims{agent, thumbprint, now.Add(life).Unix()})
	if err != nil {
		return "", 0, err
	}
	body := b64.EncodeToString(b)
	return body + "." + b64.EncodeToString(s.tokenMAC(body)), life, nil
}

func (s *Server) tokenMAC(body string) []byte {
	mac := hmac.New(sha256.New, s.tokenKey)
	mac.Write([]byte("asp-access-token\x00" + body))
	return mac.Sum(nil)
}

func (s *Server) readToken(token string, now time.Time) (*tokenClaims, error) {
	body, mac, ok := strings.Cut(token, ".")
	given, okMAC := decode64(mac)
	if len(token) > 4096 || !ok || !okMAC || !hmac.Equal(given, s.tokenMAC(body)) {
		return nil, refuse("token_invalid", "")
	}
	b, _ := decode64(body)
	c := new(tokenClaims)
	if err := jsonx.DecodeKnown(b, c); err != nil {
		return nil, refuseCause("token_invalid", "", err)
	}
	if now.Unix() >= c.Expires {
		return nil, refuse("token_expired", "")
	}
	return c, nil
}

// caller is the authenticated sender of an HTTP request.
type caller struct {
	agent *Agent
	token string
}

// authenticate checks the Authorization and DPoP headers of r.
func (s *Server) authenticate(r *http.Request, used Memory) (*caller, error) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "DPoP") || len(r.Header.Values("DPoP")) != 1 ||
		len(r.Header.Values("Authorization")) != 1 {
		return nil, refuse("auth_required", "")
	}
	return s.admitToken(r, token, r.Header.Get("DPoP"), r.Method, s.url(r), used)
}

// admitToken checks a token and its proof. It remembers the proof last, after all
// other checks.
func (s *Server) admitToken(r *http.Request, token, proof, method, url string, used Memory) (*caller, error) {
	now := s.now()
	claims, err := s.readToken(token, now)
	if err != nil {
		return nil, err
	}
	agent, err := s.agent(r.Context(), claims.Agent)
	if err != nil {
		return nil, refuseCause("token_invalid", "", err)
	}
	card, err := agent.Card()
	if err != nil {
		return nil, err
	}
	if card.ProofKey.Thumbprint() != claims.Thumbprint {
		return nil, refuse("token_invalid", "")
	}
	if err := s.prove(r, agent.ID, proof, proofClaims{Method: method, URL: url, Key: card.ProofKey,
		AccessToken: token, Now: now}, used); err != nil {
		return nil, err
	}
	return &caller{agent, token}, nil
}

// proveRequest checks the proof of a request without a token.
func (s *Server) proveRequest(r *http.Request, agent string, key *ProofKey, now time.Time) error {
	return s.prove(r, agent, r.Header.Get("DPoP"), proofClaims{Method: r.Method, URL: s.url(r), Key: key, Now: now},
		s.store)
}

// prove checks the proof of a request, and refuses a replay.
func (s *Server) prove(r *http.Request, agent, proof string, c proofClaims, used Memory) error {
	p, err := checkProof(proof, c)
	if err != nil {
		return err
	}
	return s.remember(r, agent, p, used)
}

// remember refuses the replay of a proof in an HTTP request. It is the last check
// of authentication.
func (s *Server) remember(r *http.Request, agent string, p *Proof, used Memory) error {
	key := p.Thumbprint + " http " + p.JTI
	if s.Guest != nil && s.Guest(agent) {
		key = GuestOwner + " " + key
	}
	fresh, err := used.Seen(r.Context(), key, p.Until)
	if err != nil {
		return err
	}
	if !fresh {
		return refuse("dpop_jti_replayed", "")
	}
	s.authenticated(r.Context(), agent)
	return nil
}

func (s *Server) authenticated(ctx context.Context, agent string) {
	if s.Authenticated != nil {
		s.Authenticated(ctx, agent)
	}
}

// url is the required htu of a proof for r: no query, no fragment.
func (s *Server) url(r *http.Request) string {
	origin := "http://" + r.Host
	switch {
	case s.PublicURL != "":
		origin = strings.TrimSuffix(s.PublicURL, "/")
	case r.TLS != nil:
		origin = "https://" + r.Host
	}
	return origin + r.URL.EscapedPath()
}
