package source

import "testing"

func TestOf(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "192.0.2.1": "192.0.2.1", "[::ffff:192.0.2.1]:80": "192.0.2.1",
		"[2001:db8::1]:80": "2001:db8::/64", "2001:db8::ffff:1": "2001:db8::/64", "[fe80::1%eth0]:80": "fe80::/64",
		"2001:db8:0:1::1": "2001:db8:0:1::/64", "stdio": "", "": "", "localhost:80": "",
	} {
		if got := Of(address); got != want {
			t.Errorf("%q counts as %q, want %q", address, got, want)
		}
	}
}
