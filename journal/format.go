package journal

import (
	"fmt"
	"slices"
)

// The format of a data directory is the number in its manifest. It changes when
// a release before could not go on with what a later one writes; what a release
// before passes over (a field that it does not know) does not change it. Records,
// values of the state and checkpoints have versions of their own, for the
// same reason.
//
// A directory of an earlier format is brought to today's when it is opened:
// after its key was proved and its files were checked, before the engine starts.
// One of a later format is refused and not touched.

// An upgrade brings a directory from one format to the next. The number in the
// manifest changes after it has returned: after a crash in it, it runs again on
// what it left, and must bear that.
type upgrade struct {
	from int
	what string // for the log
	do   func(d *directory, cfg *Config) error
}

// formats is what a release can open.
type formats struct {
	latest   int
	upgrades []upgrade
}

// released is that of this release. Format 1 is the first; a second one comes
// with an entry {1, "…", func…} and with a directory of format 1 as it is in
// testdata, which must open for good.
var released = formats{latest: manifestFormat}

// can says whether a directory of a format can be opened.
func (f *formats) can(dir string, format int) error {
	if format > f.latest {
		return fail(ErrFormat, "%s has format %d, this program knows %d; use the release that wrote it, or a later one", dir, format, f.latest)
	}
	for n := format; n < f.latest; n++ {
		if !slices.ContainsFunc(f.upgrades, func(u upgrade) bool { return u.from == n }) {
			return fail(ErrFormat, "%s has format %d, and this program cannot bring it to %d; open it with a release in between first", dir, format, f.latest)
		}
	}
	return nil
}

// upgrade brings the directory to the latest format, step by step.
func (d *directory) upgrade(cfg *Config, f *formats) error {
	for d.manifest.Format < f.latest {
		i := slices.IndexFunc(f.upgrades, func(u upgrade) bool { return u.from == d.manifest.Format })
		u := f.upgrades[i] // there is one: can was asked
		cfg.Log.Info("the journal is brought to a later format; older releases cannot open it any more", "from", u.from, "to", u.from+1, "why", u.what)
		if err := u.do(d, cfg); err != nil {
			return fmt.Errorf("bring %s from format %d to %d: %w", d.path, u.from, u.from+1, err)
		}
		d.manifest.Format++
		if err := d.save(); err != nil {
			return err
		}
		// Sizes changed: the inventory is of before.
		if err := d.begin(); err != nil {
			return err
		}
		d.clean = false
	}
	return nil
}
