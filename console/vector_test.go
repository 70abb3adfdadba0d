package console_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/journal/index"
	"github.com/parley-hub/parley/samvad"
)

// TestProofShowsSignedBytes: the page of a SAMVAD message has its signature base, and the download is what the sender's
// key signed. The same message is a test vector. An observer gets neither.
func TestProofShowsSignedBytes(t *testing.T) {
	b, c := crossing(t)
	page, err := b.api.Messages(t.Context(), index.Filter{From: "peer-samvad", Kind: parley.Request, Limit: 1})
	if err != nil || len(page.Messages) != 1 {
		t.Fatal(err, page)
	}
	m, err := b.api.Message(t.Context(), page.Messages[0].ID.String(), true)
	if err != nil {
		t.Fatal(err)
	}
	w := b.entered(b.token("reader", admin.Read))
	at := "/console/messages/" + m.ID.String()
	_, proof := w.do("GET", "/console/conversations/"+c.ID.String()+"?view=proof&m="+m.ID.String(), nil)
	for _, want := range []string{"The signed bytes", "&#34;@path&#34;: /agents/coordinator/agent/",
		`href="` + at + `/signed"`,
		`href="` + at + `/vector"`, "parley inspect --hub " + m.ID.String() + " --vector"} {
		if !strings.Contains(proof, want) {
			t.Errorf("the page of the proof lacks %q", want)
		}
	}

	status, signed := w.do("GET", at+"/signed", nil)
	_, signature, _ := strings.Cut(m.Header["Signature"], ":")
	sig, err := base64.StdEncoding.DecodeString(strings.TrimRight(signature, ":"))
	if err != nil {
		t.Fatal(err)
	}
	verified := false
	keys, err := b.api.AgentKeys(t.Context(), "peer-samvad")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys.Enrolled {
		verified = verified || ed25519.Verify(ed25519.PublicKey(k.Public), []byte(signed), sig)
	}
	if status != http.StatusOK || !verified {
		t.Errorf("HTTP %d: no key of the sender signed %q", status, signed)
	}

	status, saved := w.do("GET", at+"/vector", nil)
	valid(t, status, saved)

	watch := b.entered(b.token("watch", admin.Observe))
	for _, what := range []string{"/signed", "/vector"} {
		if status, body := watch.do("GET", at+what, nil); status == http.StatusOK || strings.Contains(body, "@path") {
			t.Errorf("an observer gets %s: HTTP %d", what, status)
		}
	}
}

// valid fails unless a saved vector of SAMVAD holds a message whose signature verifies, as a runner of vectors reads
// it.
func valid(t *testing.T, status int, saved string) {
	t.Helper()
	var f struct {
		Cases []struct {
			Input struct {
				Method, Path, Body string
				Headers            map[string]string
				Public             string `json:"public_key_base64"`
			}
			Expect struct{ Valid bool }
		}
	}
	if err := json.Unmarshal([]byte(saved), &f); err != nil || status != http.StatusOK || len(f.Cases) != 1 {
		t.Fatalf("HTTP %d, %v: %.300s", status, err, saved)
	}
	in := f.Cases[0].Input
	h := http.Header{}
	for name, v := range in.Headers {
		h.Set(name, v)
	}
	key, err := samvad.ParseKey(in.Public)
	if err != nil {
		t.Fatal(err)
	}
	sigs := strings.Split(h.Get("Signature-Input"), "created=")
	var created int64
	digits := strings.FieldsFunc(sigs[len(sigs)-1], func(r rune) bool { return r < '0' || r > '9' })[0]
	if err := json.Unmarshal([]byte(digits), &created); err != nil {
		t.Fatal(err)
	}
	_, err = samvad.VerifySignature(&samvad.Incoming{Method: in.Method, Paths: []string{in.Path}, Header: h,
		Body: []byte(in.Body)}, time.Unix(created, 0), key)
	if err != nil || !f.Cases[0].Expect.Valid {
		t.Errorf("the vector does not hold: %v, expects valid %v", err, f.Cases[0].Expect.Valid)
	}
}

// TestWorkbenchSavesVector: what was pasted is saved without its secrets; what is no message is not.
func TestWorkbenchSavesVector(t *testing.T) {
	b := open(t, nil)
	w := b.entered(b.token("ops", admin.Operate))
	_, page := w.do("GET", "/console/workbench", nil)
	if !strings.Contains(page, `formaction="/console/workbench/vector"`) {
		t.Error("the page has no button")
	}
	post := func(input string) (int, string) {
		return w.do("POST", "/console/workbench/vector", url.Values{"input": {input},
			"form": {formToken.FindStringSubmatch(page)[1]}})
	}
	status, body := post(`{"type":"handshake/req","id":"1","ts":1,` + "\r\n" + `"auth_token":"tok-7f3a91c2"}`)
	if status != http.StatusOK || !strings.Contains(body, "testdata/vectors/a2e/messages_valid.json") ||
		strings.Contains(body, "tok-7f3a91c2") {
		t.Errorf("HTTP %d %s", status, body)
	}
	if status, body = post("good morning"); status == http.StatusOK || !strings.Contains(body, "neither JSON") {
		t.Errorf("HTTP %d %s", status, body)
	}
}
