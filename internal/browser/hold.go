package browser

import (
	"context"
	"errors"
	"sync"

	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// Hold does an action. Each request meanwhile whose URL matches a pattern, in which * is any text, is held until what
// first returns is done, and then goes to the URL that it returns. Nothing is read from the browser's cache.
func (p *Page) Hold(pattern string, action chromedp.Action, first func(url string) (string, chromedp.Action)) error {
	ctx, stop := context.WithTimeout(p.ctx, Patience)
	defer stop()
	var held sync.WaitGroup
	var mu sync.Mutex
	var failed error
	chromedp.ListenTarget(ctx, func(event any) {
		e, ok := event.(*fetch.EventRequestPaused)
		if !ok {
			return
		}
		held.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			to, do := first(e.Request.URL)
			failed = errors.Join(failed, chromedp.Run(ctx, do, fetch.ContinueRequest(e.RequestID).WithURL(to)))
		})
	})
	err := chromedp.Run(ctx, network.SetCacheDisabled(true),
		fetch.Enable().WithPatterns([]*fetch.RequestPattern{{URLPattern: pattern}}), action)
	held.Wait()
	return errors.Join(err, failed, chromedp.Run(ctx, fetch.Disable(), network.SetCacheDisabled(false)))
}
