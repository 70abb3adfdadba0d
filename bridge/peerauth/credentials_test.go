package peerauth

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"reflect"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/parley-hub/parley/bridge/bridgetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]Credentials{
		"":                                  {},
		`{"token":"t"}`:                     {Token: "t"},
		`{"apiKey":"k","apiKeyHeader":"X"}`: {APIKey: "k", Header: "X"},
		`{"tokenUrl":"https://id.test/t","clientId":"i","clientSecret":"s","scopes":["a"]}`: {TokenURL: "https://id.test/t",
			ClientID: "i", ClientSecret: "s", Scopes: []string{"a"}},
	} {
		if got, err := Parse([]byte(raw)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
	}
	for _, raw := range []string{`{}`, `[]`, `{"token":"secret","other":1}`, `{"token":"secret","token":"secret"}`,
		`{"token":"sec ret"}`, `{"certificate":"secret"}`, `{"apiKeyHeader":"secret"}`} {
		if got, err := Parse([]byte(raw)); err == nil || strings.Contains(err.Error(), "sec") || !got.Empty() {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
	}
	cert, _ := bridgetest.Certificate(t, "hub")
	text, err := json.Marshal(textOf(t, cert))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(text)
	if err != nil || got.Kinds() != "bearer token, client certificate" ||
		!reflect.DeepEqual(got.Certificate.Certificate, cert.Certificate) {
		t.Errorf("%+v, %v", got.Kinds(), err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, bad := range []Credentials{{Token: "two words"}, {Token: "line\nbreak"}, {APIKey: "k", Header: "X: y"},
		{TokenURL: "ftp://x", ClientID: "i"}, {TokenURL: "https://x.test"}, {Token: "t", TokenURL: "https://x.test",
			ClientID: "i"}} {
		if err := bad.Check(); err == nil || strings.Contains(err.Error(), "two words") {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// textOf gives a token and a certificate as operators do.
func textOf(t *testing.T, cert *tls.Certificate) Text {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return Text{Token: "t",
		Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})),
		Key:         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))}
}
