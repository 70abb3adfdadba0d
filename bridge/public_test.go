package bridge

import "testing"

func TestPublicURL(t *testing.T) {
	for in, want := range map[string]string{
		"": "http://127.0.0.1", "https://hub.example/": "https://hub.example",
		"http://hub.example:8080/a/b//": "http://hub.example:8080/a/b",
		"hub.example":                   "", "ftp://hub.example": "", "https://": "", "https://hub.example:x": "",
	} {
		u, err := PublicURL(in)
		if (err == nil) != (want != "") || err == nil && u.String() != want {
			t.Errorf("%q gives %v, %v", in, u, err)
		}
	}
}
