package node

import (
	"strings"
	"testing"
)

func TestMappingsInTheFile(t *testing.T) {
	c, err := Load(file(t,
		"[[map]]\nagent = \"weather\"\nskill = \"forecast\"\njq = '''\n{city: .text}\n'''\n[[map]]\nagent = \"weather\"\nskill = \"forecast\"\ndirection = \"response\"\njq = \".data\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if k, err := c.check(); err != nil || len(k.mappings) != 2 || k.mappings[0].Response || !k.mappings[1].Response {
		t.Errorf("%+v, %v", k.mappings, err)
	}
	for _, c := range []struct{ text, want string }{
		{"[[map]]\nagent = \"weather\"\nskill = \"x\"\njq = '{city: }'\n", "line 4: map 1: jq: unexpected token"},
		{"[[map]]\nagent = \"a\"\njq = '.'\n\n[[map]]\nagent = \"weather\"\njq = '''\n.a\n| nosuch )\n'''\n",
			"line 9: map 2: jq: unexpected token \")\""},
		{"[[map]]\nagent = \"weather\"\njq = '''.a\n| b )'''\n", "line 4: map 1: jq"},
		{"\n[[map]]\nagent = \"Weather\"\njq = '.'\n", "line 2: map 1: agent"},
		{"[[map]]\nagent = \"weather\"\n", "line 1: map 1: jq is missing"},
		{"[[map]]\nagent = \"weather\"\ndirection = \"both\"\njq = '.'\n",
			`direction = "both": want request or response`},
		{"[[map]]\nagent = \"w\"\njq = '.'\n[[map]]\nagent = \"w\"\ndirection = \"request\"\njq = '.'\n",
			"line 4: map 2: there is another mapping"},
		{"[[map]]\nagent = \"w\"\njqq = '.'\n", `did you mean "map.jq"?`},
	} {
		if _, err := Load(file(t, c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
}
