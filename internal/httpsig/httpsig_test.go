package httpsig

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// The message of RFC 9421 appendix B.2 and the key of B.1.4.
func rfcMessage() *Message {
	h := http.Header{}
	h.Set("Date", "Tue, 20 Apr 2021 02:07:55 GMT")
	h.Set("Content-Type", "application/json")
	h.Set("Content-Digest",
		"sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:")
	h.Set("Content-Length", "18")
	return &Message{Method: "POST", Scheme: "https", Authority: "example.com", Path: "/foo",
		RawQuery: "param=Value&Pet=dog", Header: h}
}

// RFC 9421 §B.2.6: signing a request using ed25519.
func TestRFC9421B26(t *testing.T) {
	const params = `("date" "@method" "@path" "@authority" "content-type" "content-length");created=1618884473;keyid="test-key-ed25519"`
	sigs, err := Parse(`sig-b26=`+params,
		`sig-b26=:wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==:`)
	if err != nil || len(sigs) != 1 {
		t.Fatal(sigs, err)
	}
	base, err := rfcMessage().AppendBase(nil, &sigs[0])
	if err != nil {
		t.Fatal(err)
	}
	want := `"date": Tue, 20 Apr 2021 02:07:55 GMT
"@method": POST
"@path": /foo
"@authority": example.com
"content-type": application/json
"content-length": 18
"@signature-params": ` + params
	if string(base) != want {
		t.Errorf("base\n%s\nwant\n%s", base, want)
	}
	pub, _ := base64.StdEncoding.DecodeString("JrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=")
	if !ed25519.Verify(pub, base, sigs[0].Bytes) {
		t.Error("the signature of the RFC does not verify")
	}
}

func TestDerivedComponents(t *testing.T) {
	m := rfcMessage()
	m.Authority = "WWW.Example.com:443"
	m.Header["X-List"] = []string{" a", "b\t"}
	for name, want := range map[string]string{
		"@method": "POST", "@scheme": "https", "@authority": "www.example.com", "@path": "/foo",
		"@query": "?param=Value&Pet=dog", "@request-target": "/foo?param=Value&Pet=dog",
		"@target-uri": "https://www.example.com/foo?param=Value&Pet=dog", "x-list": "a, b",
		"host": "WWW.Example.com:443",
	} {
		base, err := m.AppendBase(nil, &Signature{Components: []string{name}, Params: "()"})
		if want := `"` + name + `": ` + want + "\n\"@signature-params\": ()"; err != nil || string(base) != want {
			t.Errorf("%s: %q, %v", name, base, err)
		}
	}
	m.Path, m.RawQuery = "", ""
	for name, want := range map[string]string{"@path": "/", "@query": "?", "@request-target": "/"} {
		base, err := m.AppendBase(nil, &Signature{Components: []string{name}})
		if err != nil || !strings.Contains(string(base), ": "+want+"\n") {
			t.Errorf("empty %s: %q, %v", name, base, err)
		}
	}
	m.Header.Set("X-Break", "a\nb")
	m.Scheme, m.Authority = "", ""
	for _, name := range []string{"@status", "@query-param", "@unknown", "missing", "X-List", "", "x-break", "@scheme",
		"@authority", "@target-uri"} {
		if _, err := m.AppendBase(nil, &Signature{Components: []string{name}}); !errors.Is(err, ErrComponent) {
			t.Errorf("%q: %v, want ErrComponent", name, err)
		}
	}
}

const goodSig = ":AIOb7wvnSLIv7o1HO+T27pmaMt4/1SVl2n+zluHXxPsn9uKgHpV4Dd2O6f2BE0A921Y9+LRrPNVWCa14rJiNBA==:"

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, input, sig string
		want             error
	}{
		{"exact", `sig1=("@method" "@path" "content-digest");keyid="k";alg="ed25519";created=1`, "sig1=" + goodSig,
			nil},
		{"all parameters", `a=("@path");created=1;expires=2;nonce="n";alg="x";keyid="k";tag="t";other=?0`, "a=" +
			goodSig, nil},
		{"no signature for the label", `a=("@path")`, "b=" + goodSig, nil},
		{"unpadded", `a=("@path")`, "a=" + strings.Replace(goodSig, "==", "", 1), nil},
		{"upper-case label", `A=("@path")`, "A=" + goodSig, nil},
		{"comma in a string", `a=("@path");keyid="x, b=1", b=()`, "a=" + goodSig, nil},
		{"quote in a string", `a=("@path");keyid="x\", b"`, "a=" + goodSig, nil},
		{"empty", "", "", ErrSyntax},
		{"item", `a="x"`, "a=" + goodSig, ErrSyntax},
		{"boolean", `a`, "a=" + goodSig, ErrSyntax},
		{"two lists", `a=(), `, "a=" + goodSig, ErrSyntax},
		{"label twice", `a=(), a=()`, "a=" + goodSig, ErrSyntax},
		{"signature label twice", `a=()`, "a=" + goodSig + ", a=" + goodSig, ErrSyntax},
		{"token component", `a=(method)`, "a=" + goodSig, ErrSyntax},
		{"component twice", `a=("@path" "@path")`, "a=" + goodSig, ErrDuplicate},
		{"component parameter sf", `a=("x";sf)`, "a=" + goodSig, ErrComponent},
		{"component parameter req", `a=("@path";req)`, "a=" + goodSig, ErrComponent},
		{"component parameter key", `a=("x";key="y")`, "a=" + goodSig, ErrComponent},
		{"created is a string", `a=();created="1"`, "a=" + goodSig, ErrParameter},
		{"created is a decimal", `a=();created=1.5`, "a=" + goodSig, ErrParameter},
		{"keyid is a token", `a=();keyid=k`, "a=" + goodSig, ErrParameter},
		{"alg is a number", `a=();alg=1`, "a=" + goodSig, ErrParameter},
		{"signature is a string", `a=()`, `a="x"`, ErrSyntax},
		{"signature is base64url", `a=()`, `a=:a-_b:`, ErrSyntax},
		{"too many labels", strings.Repeat("a=(), ", 9) + "b=()", "b=" + goodSig, ErrSyntax},
		{"too many components", `a=(` + strings.Repeat(`"x" `, 40) + `)`, "a=" + goodSig, ErrTooMany},
	} {
		t.Run(c.name, func(t *testing.T) {
			if s, err := Parse(c.input, c.sig); !errors.Is(err, c.want) {
				t.Errorf("got %+v, %v, want %v", s, err, c.want)
			}
		})
	}
	s, err := Parse(`a=("@path" "x");created=1;expires=2;nonce="n";alg="x";keyid="k";tag="t"`, "a="+goodSig)
	if err != nil {
		t.Fatal(err)
	}
	g := s[0]
	if !g.HasCreated || g.Created != 1 || !g.HasExpires || g.Expires != 2 || g.Nonce != "n" || !g.HasAlg ||
		g.Alg != "x" ||
		!g.HasKeyID || g.KeyID != "k" || g.Tag != "t" || len(g.Bytes) != 64 || !g.Covers("x", "@path") ||
		g.Covers("@method") {
		t.Errorf("parameters: %+v", g)
	}
}

func TestDigest(t *testing.T) {
	body := []byte(`{"hello": "world"}`)
	const d256 = "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:"
	const d512 = "sha-512=:WZDPaVn/7XgHaAy8pmojAkGWoRx2UFChF41A2svX+TaPm+AbwAgBWnrIiYllu7BNNyealdVLvRwEmTHWXvJwew==:"
	if got := Digest(body); got != d256 {
		t.Errorf("Digest = %s", got)
	}
	for _, c := range []struct {
		value string
		want  error
	}{
		{d256, nil},
		{d256 + ", " + d512, nil},
		{d512 + "," + d256, nil},
		{d256 + ", md5=:AAAA:", nil},
		{strings.Replace(d256, "=:", "=:", 1) + ";p=1", nil},
		{strings.Replace(d256, "E=:", "E:", 1), nil},
		{d512, ErrNoDigest},
		{"SHA-256" + d256[7:], ErrSyntax},
		{d256 + ", sha-512=:AAAA:", ErrDigest},
		{strings.Replace(d256, "X48", "X49", 1), ErrDigest},
		{"sha-256=X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=", ErrSyntax},
		{`sha-256="x"`, ErrSyntax},
		{"sha-256=()", ErrSyntax},
		{"", ErrNoDigest},
	} {
		if err := CheckDigest(c.value, body); !errors.Is(err, c.want) {
			t.Errorf("%q: %v, want %v", c.value, err, c.want)
		}
	}
}

func TestAppendParams(t *testing.T) {
	b, err := AppendParams(nil, `a"b\c`, 7)
	if want := `("@method" "@path" "content-digest");keyid="a\"b\\c";alg="ed25519";created=7`; err != nil ||
		string(b) != want {
		t.Errorf("%s, %v", b, err)
	}
	if _, err := AppendParams(nil, "é", 7); !errors.Is(err, ErrParameter) {
		t.Errorf("non-ASCII keyid: %v", err)
	}
	s, err := Parse("sig1="+string(b), "sig1="+goodSig)
	if err != nil || s[0].KeyID != `a"b\c` || s[0].Params != string(b) {
		t.Errorf("%+v, %v", s, err)
	}
}

// The general parser reads every input of the fast path in the same way.
func FuzzExactAgreesWithGeneral(f *testing.F) {
	in := `sig1=("@method" "@path" "content-digest");keyid="k";alg="ed25519";created=`
	for _, s := range []string{in + "1", in + "0", in + "01", in + "999999999999999", in + "1;x=1", in + "-1", in +
		"1, b=()",
		strings.Replace(in, `"k"`, `"k\""`, 1) + "1", strings.Replace(in, `"k"`, `""`, 1) +
			"5", `a=("x";sf);created=1`} {
		f.Add(s, "sig1="+goodSig)
	}
	f.Add(in+"1", "sig1=:"+strings.Repeat("A", 88)+":")
	f.Add(in+"1", "sig1=:"+strings.Repeat("=", 88)+":")
	f.Fuzz(func(t *testing.T, input, sig string) {
		all, err := parse(input, sig)
		if fast, ok := parseExact(input, sig); ok {
			if err != nil || len(all) != 1 || !reflect.DeepEqual(all[0], fast) {
				t.Fatalf("fast %+v\ngeneral %+v, %v", fast, all, err)
			}
		}
		for i := range all {
			m := rfcMessage()
			if base, err := m.AppendBase(nil, &all[i]); err == nil &&
				bytes.Count(base, []byte("\n")) != len(all[i].Components) {
				t.Fatalf("base has stray line breaks: %q", base)
			}
		}
	})
}

func FuzzCheckDigest(f *testing.F) {
	f.Add("sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:", []byte(`{"hello": "world"}`))
	f.Add(`sha-256="\"", a=:`, []byte("x"))
	f.Fuzz(func(t *testing.T, value string, body []byte) {
		if CheckDigest(value, body) == nil && CheckDigest(value, append(body, 'x')) == nil {
			t.Fatalf("%q fits two bodies", value)
		}
		if err := CheckDigest(Digest(body), body); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkParseAndBase(b *testing.B) {
	m := rfcMessage()
	input := `sig1=("@method" "@path" "content-digest");keyid="key-current";alg="ed25519";created=1775901600`
	var room [512]byte
	for _, fast := range []bool{true, false} {
		b.Run(map[bool]string{true: "exact", false: "general"}[fast], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var s []Signature
				var err error
				if fast {
					s, err = Parse(input, "sig1="+goodSig)
				} else {
					s, err = parse(input, "sig1="+goodSig)
				}
				if err != nil {
					b.Fatal(err)
				}
				if _, err := m.AppendBase(room[:0], &s[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
