package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// ErrNoAxe says that axe-core is not there.
var ErrNoAxe = errors.New("no axe-core: PARLEY_AXE names no axe.min.js of version 4.14.1; .ci/run fetches it")

// A Violation is a rule of axe-core that a page breaks.
type Violation struct {
	ID    string
	Help  string
	Nodes []struct {
		Target         []any
		HTML           string
		FailureSummary string
	}
}

func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", v.ID, v.Help)
	for _, n := range v.Nodes {
		fmt.Fprintf(&b, "\n  %v %.200s\n    %s", n.Target, n.HTML, strings.ReplaceAll(n.FailureSummary, "\n", "\n    "))
	}
	return b.String()
}

// AxeSource reads axe-core from the file that PARLEY_AXE names.
func AxeSource() (string, error) {
	b, err := os.ReadFile(os.Getenv("PARLEY_AXE"))
	if errors.Is(err, os.ErrNotExist) {
		return "", ErrNoAxe
	}
	return string(b), err
}

// Axe lists the faults of a page against WCAG 2.2 AA that axe-core finds; with names of rules, only those of these
// rules. The script comes in by the DevTools protocol: the page's policy stays as it is.
func (p *Page) Axe(rules ...string) ([]Violation, error) {
	source, err := AxeSource()
	if err != nil {
		return nil, err
	}
	only := `{type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}`
	if len(rules) > 0 {
		only = quote(strings.Join(rules, " ")) + `.split(" ")`
	}
	run := `axe.run(document, {resultTypes: ["violations"], runOnly: ` + only + `}).then(r => r.violations)`
	var found []Violation
	err = p.Do(
		chromedp.ActionFunc(func(ctx context.Context) error {
			_, thrown, err := runtime.Evaluate("if (!window.axe) {" + source + "}; 0").Do(ctx)
			if thrown != nil {
				return thrown
			}
			return err
		}),
		chromedp.Evaluate(run, &found, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
			return p.WithAwaitPromise(true)
		}))
	return found, err
}
