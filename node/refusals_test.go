package node

import (
	"context"
	"regexp"
	"testing"
	"time"
)

// In each of the five protocols the sender gets a refusal by policy in the protocol's own
// terms: by a rule of allow, the least assurance of a recipient, and the limit of a pair.
func TestPolicyIsToldInTheSendersWords(t *testing.T) {
	echo := []string{"echo"}
	for name, c := range map[string]struct {
		change func(*Config)
		first  map[string]string // answers to the first call; default "ok"
		second map[string]string // answers to the second call; nil: there is none
	}{
		"who may call whom": {
			change: func(c *Config) { c.Allow = []Allow{{From: "friend/**", To: echo}} },
			first: map[string]string{"samvad": `^HTTP 401 AUTH_FAILED false$`,
				"uagents": `^ErrorMessage: .*not allowed`, "a2e": `^tool_denied false$`,
				"agh": `^receipt rejected: .*may not call.*reference `, "asp": `^HTTP 403 `},
		},
		"least assurance": {
			change: func(c *Config) { c.Require = []Require{{To: []string{"ec*"}, Assurance: "signed"}} },
			first: map[string]string{"a2e": `^tool_denied false$`,
				"agh": `^receipt rejected: .*signed; this one is session.*reference `},
		},
		"limit of a pair": {
			change: func(c *Config) {
				c.Limit = []Pair{{From: "**", To: []string{"echo.say"}, Rate: 0.0001, Burst: 1}}
			},
			second: map[string]string{"samvad": `^HTTP 429 RATE_LIMITED true$`, "uagents": `^HTTP 429$`,
				"a2e": `^tool_error true$`,
				"agh": `^receipt rejected: .*times a second.*reference `, "asp": `^HTTP 429 rate_limited$`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := fiveConfig()
			c.change(&config)
			f := newFive(t, config)
			for _, p := range fiveProtocols {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				for i, want := range []map[string]string{c.first, c.second} {
					if i == 1 && c.second == nil {
						continue
					}
					got, err := f.callBy(ctx, p)
					pattern := want[p]
					if pattern == "" {
						pattern = "^ok$"
					}
					if err != nil || !regexp.MustCompile(pattern).MatchString(got) {
						t.Errorf("%s, call %d: %q, %v; want %s", p, i+1, got, err, pattern)
					}
				}
			}
		})
	}
}
