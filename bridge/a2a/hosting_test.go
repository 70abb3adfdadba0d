package a2a

import "testing"

// TestIdentityAt: an agent elsewhere is known by its URL in one spelling, however the
// operator writes it.
func TestIdentityAt(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"https://Lab.example/agents/one", "https://lab.example/agents/one/",
		"https://lab.example/agents/one/.well-known/agent-card.json"} {
		i, err := IdentityAt(text)
		if err != nil || i.Protocol != Protocol || i.ID != "https://lab.example/agents/one" || i.URL != i.ID {
			t.Errorf("%s: %+v, %v", text, i, err)
		}
	}
	for _, text := range []string{"", "lab.example", "ftp://lab.example", "https://u:p@lab.example",
		"https://lab.example/?x=1", "https://lab.example/#x"} {
		if i, err := IdentityAt(text); err == nil {
			t.Errorf("%q is %+v", text, i)
		}
	}
	if i := IdentityOfCaller("crew/scout"); !IsCaller(i.ID) || i.URL != "" || IsCaller("https://lab.example") {
		t.Errorf("%+v", i)
	}
}
