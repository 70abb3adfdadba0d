// Package browser drives a headless Chromium for the tests and pictures of the console.
//
//	b, err := browser.Start()              // ErrMissing: none is installed
//	p, err := b.Open(origin, browser.Look{Dark: true})
//	err = p.Do(browser.Go(link), browser.Click("form button"), browser.Wait(`document.querySelector("#rows")`))
//	violations, err := p.Axe()
//	problems := p.Problems()               // requests that left the origin, errors of scripts, breaches of the policy
//
// A [Page] has cookies of its own. Every wait ends when its condition holds, or after [Patience] as an error.
package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// ErrMissing says that no browser is installed.
var ErrMissing = errors.New("no browser: install chromium, or name one in PARLEY_CHROMIUM")

// Patience bounds every [Page.Do] on a busy machine.
const Patience = 30 * time.Second

// Find gives the path of the browser.
func Find() (string, error) {
	names := []string{"chromium", "chromium-browser", "google-chrome"}
	if name := os.Getenv("PARLEY_CHROMIUM"); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrMissing
}

// A Browser is a running Chromium.
type Browser struct {
	ctx  context.Context
	stop func()
}

// Start starts the browser. It ends with Close.
func Start() (*Browser, error) {
	path, err := Find()
	if err != nil {
		return nil, err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
		chromedp.Flag("hide-scrollbars", true), chromedp.Flag("font-render-hinting", "none"),
		chromedp.Flag("force-color-profile", "srgb"), chromedp.WSURLReadTimeout(Patience))
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium has no sandbox for root
	}
	ctx, stop := chromedp.NewExecAllocator(context.Background(), options...)
	// The protocol's package does not know every value of a newer browser, and would say so for each event.
	ctx, end := chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {}))
	b := &Browser{ctx: ctx, stop: func() { end(); stop() }}
	if err := chromedp.Run(ctx); err != nil {
		b.stop()
		return nil, fmt.Errorf("%s does not start: %w", path, err)
	}
	return b, nil
}

// Close ends the browser.
func (b *Browser) Close() { b.stop() }

// A Look is how a page is shown.
type Look struct {
	Width, Height int  // CSS pixels; 0: 1440 × 900
	Dark          bool // the reader prefers dark
	ForcedColors  bool
	Moving        bool // the reader has not asked for reduced motion
	NoScript      bool
	Zoom          float64 // of text and everything else; 0: 1
	Downloads     string  // the directory that takes downloads; "": none are taken
}

// Open opens an empty page, as a browser with no cookies would. No request of it may leave the origin.
func (b *Browser) Open(origin string, look Look) (*Page, error) {
	ctx, stop := chromedp.NewContext(b.ctx, chromedp.WithNewBrowserContext())
	p := &Page{ctx: ctx, stop: stop, origin: origin}
	chromedp.ListenTarget(ctx, p.saw)
	// The first Run makes the target: its context is that of the page, not of a wait.
	err := chromedp.Run(ctx)
	if err == nil {
		err = p.Do(network.Enable(), log.Enable(), runtime.Enable(), page.SetLifecycleEventsEnabled(true))
	}
	if err == nil {
		err = p.Show(look)
	}
	if err == nil && look.Downloads != "" {
		err = p.Do(chromedp.ActionFunc(func(ctx context.Context) error {
			c := chromedp.FromContext(ctx)
			return browser.SetDownloadBehavior(browser.SetDownloadBehaviorBehaviorAllow).
				WithBrowserContextID(c.BrowserContextID).WithDownloadPath(look.Downloads).WithEventsEnabled(true).
				Do(cdp.WithExecutor(ctx, c.Browser))
		}))
	}
	if err != nil {
		stop()
		return nil, err
	}
	return p, nil
}

// Show changes how the page is shown.
func (p *Page) Show(l Look) error {
	if l.Width == 0 {
		l.Width, l.Height = 1440, 900
	}
	if l.Height == 0 {
		l.Height = 900
	}
	if l.Zoom == 0 {
		l.Zoom = 1
	}
	feature := func(name string, on bool, yes, no string) *emulation.MediaFeature {
		if !on {
			yes = no
		}
		return &emulation.MediaFeature{Name: name, Value: yes}
	}
	// A browser's zoom makes the page fewer CSS pixels wide.
	width, height := int64(float64(l.Width)/l.Zoom), int64(float64(l.Height)/l.Zoom)
	return p.Do(
		emulation.SetDeviceMetricsOverride(width, height, l.Zoom, false),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
			feature("prefers-color-scheme", l.Dark, "dark", "light"),
			feature("forced-colors", l.ForcedColors, "active", "none"),
			feature("prefers-reduced-motion", l.Moving, "no-preference", "reduce"),
		}),
		emulation.SetScriptExecutionDisabled(l.NoScript),
	)
}
