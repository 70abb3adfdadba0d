package netguard

import (
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"code.dny.dev/ssrf"
)

func guard(t testing.TB, list ...string) *Guard {
	t.Helper()
	p, err := ParseAllow(list)
	if err != nil {
		t.Fatal(err)
	}
	return &Guard{Allow: p}
}

func TestCheckAddr(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"1.1.1.1", "8.8.8.8", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.0", "192.0.1.0",
		"198.17.255.255", "198.20.0.0", "223.255.255.255", "2606:4700:4700::1111", "2a00:1450::1", "2001:200::1",
	} {
		for name, g := range map[string]*Guard{"nil": nil, "zero": {}} {
			if err := g.CheckAddr(netip.MustParseAddr(s)); err != nil {
				t.Errorf("%s guard: %v", name, err)
			}
		}
	}
	for s, name := range map[string]string{
		"0.0.0.0": "unspecified", "0.1.2.3": "unspecified", "10.0.0.1": "private", "10.255.255.255": "private",
		"100.64.0.1": "shared", "127.0.0.1": "loopback", "127.255.0.1": "loopback", "169.254.169.254": "link-local",
		"172.16.0.1": "private", "172.31.255.255": "private", "192.0.0.8": "IETF protocol",
		"192.0.2.1":   "documentation",
		"192.88.99.1": "6to4 relay", "192.168.1.1": "private", "198.18.0.1": "benchmarking",
		"198.19.255.255": "benchmarking",
		"198.51.100.1":   "documentation", "203.0.113.1": "documentation", "224.0.0.1": "multicast",
		"239.1.1.1": "multicast",
		"240.0.0.1": "reserved", "255.255.255.255": "broadcast",
		"::": "unspecified", "::1": "loopback", "::2": "IPv4-compatible", "::7f00:1": "IPv4-compatible",
		"::8.8.8.8":        "IPv4-compatible",
		"::ffff:127.0.0.1": "IPv4-mapped", "::ffff:8.8.8.8": "IPv4-mapped", "::ffff:0:7f00:1": "IPv4-translated",
		"64:ff9b::7f00:1": "NAT64", "64:ff9b::808:808": "NAT64", "64:ff9b:1::1": "local-use NAT64",
		"100::1":  "discard-only",
		"2001::1": "Teredo", "2001:10::1": "IETF protocol", "2001:db8::1": "documentation", "2002:7f00:1::": "6to4",
		"2002:808:808::1": "6to4",
		"3fff::1":         "documentation", "5f00::1": "segment routing", "fc00::1": "private", "fd00:ec2::254": "private",
		"fe80::1": "link-local",
		"fe90::1": "link-local", "fe80::1%eth0": "link-local", "::1%lo": "loopback", "fec0::1": "site-local",
		"ff02::1": "multicast",
		"4000::1": "reserved", "1000::1": "reserved", "64:ff9c::1": "reserved",
	} {
		err := (*Guard)(nil).CheckAddr(netip.MustParseAddr(s))
		var b *BlockedError
		if !errors.As(err, &b) || !errors.Is(err, ErrBlocked) {
			t.Errorf("%s: got %v", s, err)
			continue
		}
		if !strings.HasPrefix(b.Range.Name, name) || !b.Range.Prefix.Contains(b.Addr.WithZone("")) {
			t.Errorf("%s: range %v, want %s", s, b.Range, name)
		}
	}
	if err := (*Guard)(nil).CheckAddr(netip.Addr{}); !errors.Is(err, ErrBlocked) {
		t.Errorf("the zero address: %v", err)
	}
}

// The named table covers the library's ranges, so that an operator always reads a
// proper name.
func TestRangesAreNamed(t *testing.T) {
	t.Parallel()
	for _, p := range slices.Concat(ssrf.IPv4DeniedPrefixes, ssrf.IPv6DeniedPrefixes) {
		if r, ok := special(p.Addr()); !ok || r.Name == "special-purpose" {
			t.Errorf("%v has no name", p)
		}
	}
	for _, r := range ranges {
		if r.Prefix != r.Prefix.Masked() {
			t.Errorf("%v is not masked", r)
		}
	}
}

func TestAllow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		allow    string
		ok, deny []string
	}{
		{"10.0.0.0/8", []string{"10.1.2.3", "::ffff:10.1.2.3", "8.8.8.8"},
			[]string{"127.0.0.1", "::10.1.2.3", "64:ff9b::a01:203", "2002:a01:203::", "::ffff:127.0.0.1"}},
		{"10.1.2.3", []string{"10.1.2.3"}, []string{"10.1.2.4"}},
		{"loopback", []string{"127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"},
			[]string{"0.0.0.0", "::", "10.0.0.1"}},
		{"fe80::/10", []string{"fe80::1", "fe80::1%eth0"}, []string{"fec0::1"}},
		{"::/0", []string{"fd00::1", "::1"}, []string{"10.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
			"2002:7f00:1::"}},
		{"0.0.0.0/0", []string{"10.0.0.1", "::ffff:127.0.0.1"}, []string{"::1", "fd00::1"}},
		{"64:ff9b::/96", []string{"64:ff9b::808:808"}, []string{"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"}},
		{"2002::/16", []string{"2002:808:808::1"}, []string{"2002:7f00:1::"}},
	} {
		g := guard(t, c.allow)
		for _, s := range c.ok {
			if err := g.CheckAddr(netip.MustParseAddr(s)); err != nil {
				t.Errorf("allow %s: %v", c.allow, err)
			}
		}
		for _, s := range c.deny {
			if err := g.CheckAddr(netip.MustParseAddr(s)); err == nil {
				t.Errorf("allow %s lets %s through", c.allow, s)
			}
		}
	}
	// Both together: a gateway and the address behind it.
	g := guard(t, "64:ff9b::/96", "10.0.0.0/8")
	if err := g.CheckAddr(netip.MustParseAddr("64:ff9b::a01:203")); err != nil {
		t.Error(err)
	}
}

func TestBlockedErrorText(t *testing.T) {
	t.Parallel()
	hub := &Guard{Advice: HubAdvice}
	for _, c := range []struct {
		err  error
		want string
	}{
		{hub.CheckAddr(netip.MustParseAddr("10.1.2.3")),
			`address 10.1.2.3 is in the private range 10.0.0.0/8; to allow it add to parley.toml: [network] allow = ["10.1.2.3/32"]`},
		{hub.CheckAddr(netip.MustParseAddr("::ffff:10.1.2.3")),
			`address ::ffff:10.1.2.3 is in the IPv4-mapped range ::ffff:0.0.0.0/96; to allow it add to parley.toml: [network] allow = ["10.1.2.3/32"]`},
		{hub.CheckAddr(netip.MustParseAddr("fe80::1%eth0")),
			`address fe80::1%eth0 is in the link-local range fe80::/10; to allow it add to parley.toml: [network] allow = ["fe80::1/128"]`},
		{check(hub, "http://Printer.Local./"),
			`host "printer.local" is a name of a private network; to allow the address that it has, add to parley.toml: [network] allow = ["10.1.2.3/32"]`},
		{check(hub, "http://localhost:8000/"),
			`host "localhost" is a loopback name; to allow the address that it has, add to parley.toml: [network] allow = ["loopback"]`},
		{hub.blocked("a.example", netip.MustParseAddr("127.0.0.1"), Range{"loopback", loopback4}),
			`host "a.example" has the address 127.0.0.1, which is in the loopback range 127.0.0.0/8; to allow it add to parley.toml: [network] allow = ["127.0.0.1/32"]`},
	} {
		if c.err == nil || c.err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", c.err, c.want)
		}
	}
	// The quoted line does allow it.
	for _, s := range []string{"10.1.2.3", "::ffff:10.1.2.3", "fe80::1%eth0", "fd00::1"} {
		a := netip.MustParseAddr(s)
		var quoted string
		err := (&Guard{Advice: func(prefix string) string { quoted = prefix; return "" }}).CheckAddr(a)
		if err == nil || err.Error() == "" || quoted == "" {
			t.Fatalf("%s is not blocked", s)
		}
		if err := guard(t, quoted).CheckAddr(a); err != nil {
			t.Error(err)
		}
	}
	// Without a builder's advice no configuration is named.
	if err := (*Guard)(nil).CheckAddr(netip.MustParseAddr("10.1.2.3")); err == nil ||
		err.Error() != "address 10.1.2.3 is in the private range 10.0.0.0/8; only public addresses can be called here" {
		t.Error(err)
	}
}

func check(g *Guard, s string) error {
	u, err := url.Parse(s)
	if err != nil {
		return err
	}
	return g.CheckURL(u)
}

// SAM-076 and SAMVAD digest §8.2, with the gaps that it lists.
func TestCheckURL(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"https://example.com/cb", "HTTPS://Example.COM/Cb?q=1#f", "http://example.com.:8080/", "https://172.32.0.1/",
		"https://8.8.8.8:8443/x",
		"https://[2606:4700::1]/", "https://client-alpha/", "https://a_b.example/", "https://1e100.net/",
		"https://0x.example/", "https://localhost.example.com/",
		"https://notlocalhost/", "https://xn--bcher-kva.example/", "https://bücher.example/",
		"https://internal.example/", "https://b.local.example/",
	} {
		if err := check(nil, s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{
		"", "not a url", "//example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://x/",
		"javascript:alert(1)", "https:///x", "https:example.com",
		"https://user:pw@example.com/", "https://user@example.com/", "https://example.com:/", "https://example.com:0/",
		"https://example.com:65536/",
		"https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/", "https://0177.0.0.1/",
		"https://010.0.0.1/", "https://127.0.0.1.5/", "https://1.2.3/",
		"https://0x/", "https://0X7F000001/", "https://256.1.1.1/", "https://08.8.8.8/", "https://1.1.1.01/",
		"https://example.123/", "https://127.1./",
		"https://１２７.１/", "https://example..com/", "https://.example.com/", "https://./", "https://exa mple.com/",
		"https://[fe80::1%25eth0]/", "https://a\u00adb.example/",
		"https://local\u200bhost/", "https://[v1.x]/",
	} {
		if err := check(nil, s); err == nil {
			t.Errorf("%s passes", s)
		} else if errors.Is(err, ErrBlocked) {
			t.Errorf("%s: %v (allowing addresses must not help)", s, err)
		}
	}
	for _, s := range []string{
		"https://localhost/cb", "https://LOCALHOST/cb", "https://localhost./cb", "https://localhost../",
		"https://a.localhost/", "https://A.LocalHost./", "https://localhost.localdomain/",
		"https://ip6-localhost/", "https://printer.local/x", "https://svc.internal/x",
		"https://metadata.google.internal/", "https://svc.internal./", "https://local/",
		"https://127.0.0.1/cb", "https://127.0.0.1./", "https://10.1.2.3/", "https://172.16.0.1/",
		"https://192.168.1.1/", "https://169.254.169.254/latest/meta-data", "https://0.0.0.0/",
		"https://100.64.0.1/", "https://198.18.0.1/", "https://224.0.0.1/", "https://240.0.0.1/", "https://[::1]/",
		"https://[fd00::1]/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:a00:1]/",
		"https://[2002:7f00:1::]/", "https://[64:ff9b::7f00:1]/", "https://[::]/", "https://[fe90::1]/",
		"https://１２７.０.０.１/", "https://127。0。0。1/", "https://ｌocalhost/", "https://printer。local/",
	} {
		if err := check(nil, s); !errors.Is(err, ErrBlocked) {
			t.Errorf("%s: got %v", s, err)
		}
	}
}

func TestCheckURLAllow(t *testing.T) {
	t.Parallel()
	loop, private := guard(t, "loopback"), guard(t, "10.0.0.0/8")
	for _, c := range []struct {
		g  *Guard
		s  string
		ok bool
	}{
		{loop, "http://localhost:8000/", true},
		{loop, "http://a.localhost/", true},
		{loop, "http://127.0.0.1:1/", true},
		{loop, "http://[::1]:1/", true},
		{loop, "http://svc.internal/", false},
		{loop, "http://10.0.0.1/", false},
		{loop, "http://127.1/", false},
		{private, "http://svc.internal/", true},
		{private, "http://printer.local/", true},
		{private, "http://localhost/", false},
		{private, "http://10.0.0.1/", true},
		{guard(t, "127.0.0.1"), "http://localhost/", true},
		{guard(t, "127.0.0.1", "::1"), "http://svc.internal/", false},
		{guard(t, "0.0.0.0/0"), "http://localhost/", true},
		{guard(t, "0.0.0.0/0"), "http://svc.internal/", true},
	} {
		if err := check(c.g, c.s); (err == nil) != c.ok {
			t.Errorf("%v %s: %v", c.g.Allow, c.s, err)
		}
	}
	if err := loop.CheckURL(nil); !errors.Is(err, ErrURL) {
		t.Error(err)
	}
}

func TestParseAllow(t *testing.T) {
	t.Parallel()
	got, err := ParseAllow([]string{"10.0.0.0/8", "10.1.2.3", "fd00::/8", "::1", "loopback"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"10.0.0.0/8", "10.1.2.3/32", "fd00::/8", "::1/128", "127.0.0.0/8", "::1/128"}
	if len(got) != len(want) {
		t.Fatal(got)
	}
	for i := range got {
		if got[i].String() != want[i] {
			t.Errorf("%d: %v, want %s", i, got[i], want[i])
		}
	}
	for s, hint := range map[string]string{
		"":                    "neither an address",
		"localhost":           `nor "loopback"`,
		"10.0.0.0/33":         "not a prefix",
		"010.0.0.0/8":         "not a prefix",
		"10.1.2.3/8":          `write "10.0.0.0/8" or "10.1.2.3/32"`,
		"fe80::1%eth0":        `write "fe80::1"`,
		"fe80::%eth0/64":      "not a prefix",
		"::ffff:10.0.0.1":     `write "10.0.0.1/32"`,
		"::ffff:10.0.0.0/104": `write "10.0.0.0/8"`,
		"10.0.0.0/8 ":         "not a prefix",
		"*":                   "neither an address",
	} {
		if _, err := ParseAllow([]string{s}); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%q: got %v, want %s", s, err, hint)
		}
	}
}

func FuzzCheckURL(f *testing.F) {
	for _, s := range []string{"https://example.com/", "http://127.0.0.1/", "http://[::ffff:7f00:1]:80/",
		"http://0x7f.1/", "http://１２７.0.0.1/", "http://a.localhost./", "http://u@h/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := url.Parse(s)
		if err != nil {
			return
		}
		if err := (*Guard)(nil).CheckURL(u); err != nil {
			if !errors.Is(err, ErrURL) && !errors.Is(err, ErrBlocked) {
				t.Fatalf("%q: error of no kind: %v", s, err)
			}
			return
		}
		if u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
			t.Fatalf("%q passes", s)
		}
		// Judged by the standard library's classes.
		if a, err := netip.ParseAddr(strings.TrimRight(u.Hostname(), ".")); err == nil {
			if !a.IsGlobalUnicast() || a.IsPrivate() || a.Is4In6() || a.Zone() != "" {
				t.Fatalf("%q passes", s)
			}
		}
		if h := strings.ToLower(strings.TrimRight(u.Hostname(), ".")); h == "localhost" ||
			strings.HasSuffix(h, ".local") {
			t.Fatalf("%q passes", s)
		}
	})
}

func FuzzParseAllow(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "::1", "loopback", "::ffff:1.2.3.4/120", "fe80::1%x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := ParseAllow([]string{s})
		if err != nil {
			return
		}
		for _, p := range list {
			if !p.IsValid() || p != p.Masked() {
				t.Fatalf("%q gives %v", s, p)
			}
			again, err := ParseAllow([]string{p.String()})
			if err != nil || again[0] != p {
				t.Fatalf("%q gives %v, which gives %v, %v", s, p, again, err)
			}
			if _, v4 := embedded(p.Addr()); v4 || p.Addr().Is4In6() {
				continue
			}
			if err := (&Guard{Allow: list}).CheckAddr(p.Addr()); err != nil {
				t.Fatalf("%q: %v", s, err)
			}
		}
	})
}

func TestSetAllow(t *testing.T) {
	g := &Guard{Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	ten, loop := netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("127.0.0.1")
	if g.CheckAddr(ten) != nil || g.CheckAddr(loop) == nil {
		t.Error("before")
	}
	g.SetAllow([]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")})
	if g.CheckAddr(ten) == nil || g.CheckAddr(loop) != nil {
		t.Error("after")
	}
	g.SetAllow(nil)
	if g.CheckAddr(ten) == nil || g.CheckAddr(loop) == nil {
		t.Error("emptied")
	}
}
