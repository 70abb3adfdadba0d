package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// A Page is one tab with cookies of its own.
type Page struct {
	ctx    context.Context
	stop   func()
	origin string

	mu       sync.Mutex
	requests []string
	problems []string
}

// Close closes the tab.
func (p *Page) Close() { p.stop() }

// Do does one action after the other.
func (p *Page) Do(actions ...chromedp.Action) error {
	ctx, stop := context.WithTimeout(p.ctx, Patience)
	defer stop()
	return chromedp.Run(ctx, actions...)
}

// noted bounds the requests and problems that a page remembers.
const noted = 10_000

// saw takes the browser's events.
func (p *Page) saw(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	note := func(list *[]string, format string, v ...any) {
		if len(*list) < noted {
			*list = append(*list, fmt.Sprintf(format, v...))
		}
	}
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		note(&p.requests, "%s", e.Request.URL)
		if !local(p.origin, e.Request.URL) {
			note(&p.problems, "a request left the origin: %s", e.Request.URL)
		}
	case *network.EventResponseReceived:
		if e.Response.Status >= 400 && e.Type != network.ResourceTypeDocument {
			note(&p.problems, "%s %s: HTTP %d", e.Type, e.Response.URL, e.Response.Status)
		}
	case *runtime.EventExceptionThrown:
		note(&p.problems, "a script failed: %s", e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning || e.Type == runtime.APITypeAssert {
			var text []string
			for _, a := range e.Args {
				text = append(text, string(a.Value)+a.Description)
			}
			note(&p.problems, "console %s: %s", e.Type, strings.Join(text, " "))
		}
	case *log.EventEntryAdded: // breaches of the policy, among others; answers are judged above
		if e.Entry.Level == log.LevelError && e.Entry.Source != log.SourceNetwork {
			note(&p.problems, "%s: %s", e.Entry.Source, e.Entry.Text)
		}
	}
}

// local reports whether a request stays at the origin, or needs no network.
func local(origin, url string) bool {
	rest, ok := strings.CutPrefix(url, origin)
	return ok && (rest == "" || rest[0] == '/') || strings.HasPrefix(url, "data:") || strings.HasPrefix(url, "about:") ||
		strings.HasPrefix(url, "blob:"+origin+"/")
}

// Requests gives the URLs of all requests.
func (p *Page) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Problems gives what no page of the console may do: a request to another origin, an error or warning of a script, a
// breach of the Content-Security-Policy, a part that could not be loaded.
func (p *Page) Problems() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.problems)
}

// Go opens a URL. An answer of any status is a page.
func Go(url string) chromedp.Action { return chromedp.Navigate(url) }

// Back goes back in the tab's history.
func Back() chromedp.Action { return chromedp.NavigateBack() }

// loaded tells whether the page and its scripts are there. Those that come after the first paint are links until then.
const loaded = `document.readyState === "complete" && (matchMedia("(scripting: none)").matches ||
	!document.querySelector("link[as=script]"))`

// Loaded waits until the page and its scripts are there.
func Loaded() chromedp.Action { return Wait(loaded) }

// Idle waits until the page has loaded and has nothing to do.
func Idle() chromedp.Action {
	return chromedp.Tasks{Loaded(),
		chromedp.Evaluate("new Promise(done => requestIdleCallback(done))", nil,
			func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) })}
}

// Reload loads the page again.
func Reload() chromedp.Action { return chromedp.Reload() }

// Wait waits until a JavaScript expression is true.
func Wait(condition string) chromedp.Action {
	return chromedp.ActionFunc(func(ctx context.Context) error {
		every := time.NewTicker(10 * time.Millisecond)
		defer every.Stop()
		var last error
		for {
			var ok bool
			// Between two documents there is none to ask.
			if last = chromedp.Evaluate("!!("+condition+")", &ok).Do(ctx); last == nil && ok {
				return nil
			}
			select {
			case <-every.C:
			case <-ctx.Done():
				return fmt.Errorf("%s never became true: %w (%v)", condition, ctx.Err(), last)
			}
		}
	})
}

// Has waits for an element.
func Has(selector string) chromedp.Action {
	return Wait("document.querySelector(" + quote(selector) + ")")
}

// HasText waits until an element has a text.
func HasText(selector, text string) chromedp.Action {
	return Wait("document.querySelector(" + quote(selector) + ")?.textContent.includes(" + quote(text) + ")")
}

// Gone waits until there is no such element.
func Gone(selector string) chromedp.Action {
	return Wait("!document.querySelector(" + quote(selector) + ")")
}

// Click clicks on the first element with the pointer.
func Click(selector string) chromedp.Action {
	return chromedp.Click(selector, chromedp.ByQuery, chromedp.NodeVisible)
}

// ClickTo clicks on an element and waits until the page's address ends so.
func ClickTo(selector, address string) chromedp.Action {
	return chromedp.Tasks{Click(selector), At(address)}
}

// At waits until the page's address, without the origin, is this one.
func At(address string) chromedp.Action {
	return Wait("location.pathname + location.search === " + quote(address) + " && " + loaded)
}

// keys are the names that [Press] knows besides characters.
var keys = map[string]string{"Enter": kb.Enter, "Escape": kb.Escape, "Tab": kb.Tab, "Backspace": kb.Backspace,
	"Down": kb.ArrowDown, "Up": kb.ArrowUp, "Space": " "}

// Press presses keys one after the other: "g", "m", "Enter".
func Press(names ...string) chromedp.Action {
	var all chromedp.Tasks
	for _, name := range names {
		if k, ok := keys[name]; ok {
			name = k
		}
		all = append(all, chromedp.KeyEvent(name))
	}
	return all
}

// Type replaces the text of a field.
func Type(selector, text string) chromedp.Action {
	return chromedp.Tasks{Wait("!document.querySelector(" + quote(selector) + ").select()"), chromedp.KeyEvent(text)}
}

// Eval evaluates a JavaScript expression.
func Eval(expression string, to any) chromedp.Action { return chromedp.Evaluate(expression, to) }

// Download does what begins a download, and waits for its end. See [Look].Downloads.
func (p *Page) Download(begin chromedp.Action) error {
	ctx, stop := context.WithTimeout(p.ctx, Patience)
	defer stop()
	done := make(chan error, 1)
	chromedp.ListenBrowser(ctx, func(event any) {
		e, ok := event.(*browser.EventDownloadProgress)
		if !ok || e.State == browser.DownloadProgressStateInProgress {
			return
		}
		var err error
		if e.State != browser.DownloadProgressStateCompleted {
			err = fmt.Errorf("the download was %s", e.State)
		}
		select {
		case done <- err:
		default: // another one
		}
	})
	if err := chromedp.Run(ctx, begin); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("no download ended: %w", ctx.Err())
	}
}

// Texts reads the text of each element, with single spaces.
func Texts(selector string, to *[]string) chromedp.Action {
	return Eval(`[...document.querySelectorAll(`+quote(selector)+`)].map(n => n.textContent.replace(/\s+/g, " ").trim())`,
		to)
}

// Attrs reads an attribute of each element; "" where it has none.
func Attrs(selector, name string, to *[]string) chromedp.Action {
	return Eval(`[...document.querySelectorAll(`+quote(selector)+`)].map(n => n.getAttribute(`+quote(name)+`) || "")`, to)
}

// quote writes a JavaScript string.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil { // every string can be encoded
		panic(err)
	}
	return string(b)
}

// Shots is the directory of screenshots, which PARLEY_SHOTS names; "": none are kept.
func Shots() string { return os.Getenv("PARLEY_SHOTS") }

// Shot keeps a screenshot of the visible part, or of the whole page, as NAME.png in [Shots].
func (p *Page) Shot(name string, whole bool) error {
	if Shots() == "" {
		return nil
	}
	b, err := p.PNG(whole)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(Shots(), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(Shots(), name+".png"), b, 0o644)
}

// PNG makes a screenshot.
func (p *Page) PNG(whole bool) (b []byte, err error) {
	if whole {
		err = p.Do(chromedp.FullScreenshot(&b, 100))
	} else {
		err = p.Do(chromedp.CaptureScreenshot(&b))
	}
	return b, err
}
