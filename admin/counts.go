package admin

import (
	"context"
	"reflect"

	"golang.org/x/sync/errgroup"

	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/journal/index"
)

// A Count is a number of entries; it ends at [index.MaxCount], or where counting further would take too long.
type Count struct {
	Number int  `json:"number"`
	More   bool `json:"more,omitzero"` // there are more, or may be
}

// Counts are the numbers of the entries that a filter chooses, for each choice of Show.
type Counts struct {
	All     Count `json:"all"`
	Failed  Count `json:"failed"`
	Refused Count `json:"refused"`
	Waiting Count `json:"waiting"`
	Slow    Count `json:"slow"`
}

// A Hiding is a member of a filter, and the number of the entries that the filter chooses without it.
type Hiding struct {
	Member  string `json:"member"` // as the parameter is called: "proof"
	Without Count  `json:"without"`
}

// countsAtOnce bounds the counts of one call that are made at the same time.
const countsAtOnce = 2

// Counts counts the entries of the timeline that a filter chooses; its Show, Before and After count for nothing.
func (a *Admin) Counts(ctx context.Context, by Actor, f TimelineFilter) (Counts, error) {
	var out Counts
	if _, err := a.fresh(ctx, by); err != nil {
		return out, err
	}
	kept := a.c.Hub.Refused(0)
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(countsAtOnce)
	for show, to := range map[Show]*Count{"": &out.All, ShowFailed: &out.Failed, ShowRefused: &out.Refused,
		ShowWaiting: &out.Waiting, ShowSlow: &out.Slow} {
		g := f
		if g.Show = show; show != ShowSlow && f.Show == ShowSlow {
			g.Slow = 0
		}
		all.Go(func() (err error) {
			*to, err = a.count(ctx, by, g, kept)
			return err
		})
	}
	err := all.Wait()
	return out, err
}

// count counts the entries that a filter chooses. kept are the refusals that the hub has in memory.
func (a *Admin) count(ctx context.Context, by Actor, f TimelineFilter, kept []hub.Refusal) (Count, error) {
	q, err := a.query(by, f)
	if err != nil {
		return Count{}, err
	}
	n, more, err := a.c.Index.Count(ctx, q, index.MaxCount)
	if err != nil {
		return Count{}, unresolved(err, "message", "")
	}
	if n += len(a.choose(by, &q, kept)); n > index.MaxCount {
		n, more = index.MaxCount, true
	}
	return Count{n, more}, nil
}

// Hidden gives for each member that is set in a filter how many entries the filter chooses without it:
// where nothing matches, the page can offer what hides the entries.
func (a *Admin) Hidden(ctx context.Context, by Actor, f TimelineFilter) ([]Hiding, error) {
	if _, err := a.fresh(ctx, by); err != nil {
		return nil, err
	}
	f.Before, f.After, f.Limit = "", "", 0
	kept, out := a.c.Hub.Refused(0), []Hiding{}
	for i, p := range timelineParams(&f) {
		if reflect.ValueOf(p.to).Elem().IsZero() {
			continue
		}
		g := f
		reflect.ValueOf(timelineParams(&g)[i].to).Elem().SetZero()
		n, err := a.count(ctx, by, g, kept)
		if err != nil {
			return nil, err
		}
		out = append(out, Hiding{p.name, n})
	}
	return out, nil
}
