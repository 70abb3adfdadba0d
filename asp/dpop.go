package asp

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"math/big"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// DPoP proofs, "DPoP proof structure" and RFC 9449. One kind of proof goes into
// sender.dpopProof (htm ASP, htu asp://SESSION), the other into an HTTP request
// (htm and htu are its method and URL). Because htm and htu differ, a proof of
// one kind is not valid as the other.

// messageMethod is the htm of proofs in messages.
const messageMethod = "ASP"

// messageURL is the htu of proofs in the messages of a session.
func messageURL(session string) string { return "asp://" + session }

// maxProof bounds a proof in bytes (project).
const maxProof = 8 << 10

// window bounds the age of proofs, inclusive at both ends. The zero value is the
// project's: 300 s back and 60 s ahead. A transcript states its window.
type window struct {
	Past   time.Duration
	Future time.Duration
}

func (w window) past() time.Duration   { return cmp.Or(w.Past, 300*time.Second) }
func (w window) future() time.Duration { return cmp.Or(w.Future, 60*time.Second) }

func (w window) holds(iat, now time.Time) bool {
	return !iat.Before(now.Add(-w.past())) && !iat.After(now.Add(w.future()))
}

// until is the first moment at which a proof is too old, so that its jti may be
// forgotten. For a proof dated ahead, the time counts from iat, too.
func (w window) until(iat time.Time) time.Time { return iat.Add(w.past() + time.Nanosecond) }

// proofClaims are the expected claims of a proof.
type proofClaims struct {
	Method      string    // htm
	URL         string    // htu, exact text
	Key         *ProofKey // the registered key; nil: any key (its thumbprint is in the result)
	AccessToken string    // empty: the transport carried none, ath is not checked
	Now         time.Time
	Window      window
}

// A Proof is a verified DPoP proof.
type Proof struct {
	JTI        string
	Thumbprint string // RFC 7638, of the key that signed it
	IssuedAt   time.Time
	Until      time.Time // the jti must be remembered until then
}

// ReplayKey is the key of the proof in a [Memory]: the thumbprint and the jti. The
// proof's text would not do, since an ES256 signature has a second valid form.
func (p *Proof) ReplayKey() string { return p.Thumbprint + " " + p.JTI }

// checkProof does the checks that need no memory, in this order: form
// (dpop_malformed), header (dpop_bad_header), signature
// (dpop_bad_signature), key (dpop_key_mismatch), htm, htu, iat, jti
// (dpop_malformed), ath. The caller then checks the jti against its [Memory].
func checkProof(proof string, c proofClaims) (*Proof, error) {
	header, rest, ok1 := strings.Cut(proof, ".")
	payload, sig, ok2 := strings.Cut(rest, ".")
	if !ok1 || !ok2 || strings.Contains(sig, ".") || len(proof) > maxProof {
		return nil, refuse("dpop_malformed", "")
	}
	signature, ok := decode64(sig)
	p := jsonSegment(payload)
	key, err := headerKey(header, c.Key)
	if p == nil || !ok || errors.Is(err, &Error{Code: "dpop_malformed"}) {
		return nil, refuse("dpop_malformed", "")
	}
	if err != nil {
		return nil, err
	}
	if !key.verify(proof[:len(header)+1+len(payload)], signature) {
		return nil, refuse("dpop_bad_signature", "")
	}
	if c.Key != nil && !c.Key.Equal(key) {
		return nil, refuse("dpop_key_mismatch", "")
	}
	if p.text("htm") != c.Method {
		return nil, refuse("dpop_htm_mismatch", "")
	}
	if p.text("htu") != c.URL {
		return nil, refuse("dpop_htu_mismatch", "")
	}
	iat, ok := issuedAt(p.get("iat"))
	if !ok || !c.Window.holds(iat, c.Now) {
		return nil, refuse("dpop_iat_out_of_window", "")
	}
	jti := p.get("jti")
	if jti == nil || jti.kind != '"' || jti.str == "" || utf8.RuneCountInString(jti.str) > 256 {
		return nil, refuse("dpop_malformed", "")
	}
	if c.AccessToken != "" && !athMatches(p.text("ath"), c.AccessToken) {
		return nil, refuse("dpop_ath_mismatch", "")
	}
	return &Proof{JTI: jti.str, Thumbprint: key.thumbprint, IssuedAt: iat,
		Until: c.Window.until(iat)}, nil
}

// headerKey parses the header and gives its key.
func headerKey(header string, registered *ProofKey) (*ProofKey, error) {
	h := jsonSegment(header)
	if h == nil {
		return nil, refuse("dpop_malformed", "")
	}
	if h.text("typ") != "dpop+jwt" || h.text("alg") != "ES256" || h.get("crit") != nil {
		return nil, refuse("dpop_bad_header", "")
	}
	key := proofKeyOf(h.get("jwk"), registered)
	if key == nil {
		return nil, refuse("dpop_bad_header", "")
	}
	return key, nil
}

func jsonSegment(s string) *node {
	b, ok := decode64(s)
	if !ok {
		return nil
	}
	n, err := parseJSON(b)
	if err != nil || n.kind != '{' {
		return nil
	}
	return n
}

func issuedAt(n *node) (time.Time, bool) {
	if n == nil || n.kind != '0' {
		return time.Time{}, false
	}
	f := n.number()
	if f < 0 || f > 1<<40 {
		return time.Time{}, false
	}
	whole := int64(f)
	return time.Unix(whole, int64((f-float64(whole))*1e9)), true
}

func (k *ProofKey) verify(input string, sig []byte) bool {
	if len(sig) != 64 {
		return false
	}
	digest := sha256.Sum256([]byte(input))
	return ecdsa.Verify(k.public, digest[:], new(big.Int).SetBytes(sig[:32]), new(big.Int).SetBytes(sig[32:]))
}

// athMatches accepts both encodings of the token's hash: that of the message
// format page and that of RFC 9449 §4.2.
func athMatches(ath, token string) bool {
	sum := sha256.Sum256([]byte(token))
	want := "sha256:" + hex.EncodeToString(sum[:])
	if len(ath) != len(want) {
		want = b64.EncodeToString(sum[:])
	}
	return subtle.ConstantTimeCompare([]byte(ath), []byte(want)) == 1
}

// MessageProof makes the proof for one message of a session. accessToken is the
// token of the connection, or empty.
func (id *Identity) MessageProof(session, accessToken string, now time.Time) (string, error) {
	proof, _, err := id.messageProof(session, accessToken, now)
	return proof, err
}

// messageProof also gives the claims of the proof, without Until.
func (id *Identity) messageProof(session, accessToken string, now time.Time) (string, Proof, error) {
	ath := ""
	if accessToken != "" {
		ath = hashOf([]byte(accessToken))
	}
	return id.makeProof(messageMethod, messageURL(session), ath, now)
}

// HTTPProof makes the proof for one HTTP request, RFC 9449 §4.2. url has
// neither query nor fragment.
func (id *Identity) HTTPProof(method, url, accessToken string, now time.Time) (string, error) {
	ath := ""
	if accessToken != "" {
		sum := sha256.Sum256([]byte(accessToken))
		ath = b64.EncodeToString(sum[:])
	}
	proof, _, err := id.makeProof(method, url, ath, now)
	return proof, err
}

func (id *Identity) makeProof(htm, htu, ath string, now time.Time) (string, Proof, error) {
	claims := Proof{
		JTI:        rand.Text(),
		Thumbprint: id.proof.thumbprint,
		IssuedAt:   time.Unix(now.Unix(), 0),
	}
	p := append(make([]byte, 0, 256), `{"htm":`...)
	p = append(jsonx.AppendText(p, htm), `,"htu":`...)
	p = append(jsonx.AppendText(p, htu), `,"iat":`...)
	p = append(appendNumber(p, float64(now.Unix())), `,"jti":`...)
	p = jsonx.AppendText(p, claims.JTI)
	if ath != "" {
		p = jsonx.AppendText(append(p, `,"ath":`...), ath)
	}
	p = append(p, '}')
	out := append(make([]byte, 0, 640), id.proofHeader...)
	out = b64.AppendEncode(append(out, '.'), p)
	sig, err := id.signES256(out)
	if err != nil {
		return "", Proof{}, err
	}
	return string(b64.AppendEncode(append(out, '.'), sig[:])), claims, nil
}
