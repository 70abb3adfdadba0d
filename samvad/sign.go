package samvad

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley/internal/httpsig"
)

// The signature headers, canonical spelling (SAMVAD 1.2 §7-L2).
const (
	headerDigest    = "Content-Digest"
	headerInput     = "Signature-Input"
	headerSignature = "Signature"
)

// A Signature holds the headers of a request that prove its sender.
type Signature struct {
	ContentDigest  string
	SignatureInput string
	Signature      string
	Base           string // the signed bytes, for inspection; not sent
}

// Sign makes the signature of a body that is sent with method to path, in the
// exact form of the SDKs: label sig1, parameters keyid, alg, created, and a
// line feed after the last line of the base (SAM-011). The path is as in the
// request line: escaped, without the query.
func Sign(s Signer, method, path string, body []byte, now time.Time) (*Signature, error) {
	s = current(s)
	if err := checkKID(s.KID()); err != nil {
		return nil, err
	}
	sig := &Signature{ContentDigest: httpsig.Digest(body)}
	params, err := httpsig.AppendParams(nil, s.KID(), now.Unix())
	if err != nil {
		return nil, err
	}
	sig.Base = "\"@method\": " + strings.ToUpper(method) + "\n\"@path\": " + path + "\n\"content-digest\": " +
		sig.ContentDigest + "\n\"@signature-params\": " + string(params) + "\n"
	b, err := s.Sign([]byte(sig.Base))
	if err != nil {
		return nil, fmt.Errorf("samvad: sign: %w", err)
	}
	sig.SignatureInput = "sig1=" + string(params)
	sig.Signature = "sig1=:" + base64.StdEncoding.EncodeToString(b) + ":"
	return sig, nil
}

// Set puts the three headers into h.
func (s *Signature) Set(h http.Header) {
	h.Set(headerDigest, s.ContentDigest)
	h.Set(headerInput, s.SignatureInput)
	h.Set(headerSignature, s.Signature)
}
