package keyring

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
)

// oldRing is a ring in a place that this hub no longer uses: a file from before the
// hub joined a cluster, or the restored state of a cluster for a hub that is alone
// now.
type oldRing struct {
	contents *contents
	remove   func() (to string, err error) // from the old place; to is the path of the backup
}

// openOldRing opens the ring to import; nil: there is none.
func openOldRing(o Options) (*oldRing, error) {
	switch {
	case o.Shared && o.Dir != "":
		d, c, err := openDisk(o, nil)
		if errors.Is(err, ErrNotEncrypted) {
			// A shared ring needs a passphrase; the file may be plain all the same.
			o.Passphrase, o.IdentityFile = nil, ""
			d, c, err = openDisk(o, nil)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		return &oldRing{c, d.putAside}, nil
	case !o.Shared && o.Store != nil:
		if head, err := headOf(o.Store); head == nil || err != nil {
			return nil, err
		}
		s, err := openShared(o)
		if err != nil {
			return nil, err
		}
		s.stop()
		r := &Ring{now: o.Now, place: s}
		r.current.Store(&snapshot{contents: &contents{}})
		if err := s.applyChanges(r); err != nil {
			return nil, err
		}
		return &oldRing{r.current.Load().contents, func() (string, error) { return "", s.erase() }}, nil
	}
	return nil, nil
}

// migrate imports an old ring into r and removes it from the old place. An imported
// key never replaces another.
func (r *Ring) migrate(f *oldRing, log *slog.Logger) error {
	var taken int
	var left []string
	err := r.update(func(c *contents) error {
		taken, left = 0, nil
		held, ids := map[ownerPurpose]bool{}, map[string]bool{}
		for i := range c.Keys {
			k := &c.Keys[i]
			held[ownerPurpose{k.Owner, k.Purpose}], ids[k.ID] = true, true
		}
		for _, k := range f.contents.Keys {
			switch {
			case !held[ownerPurpose{k.Owner, k.Purpose}]:
				c.Keys = append(c.Keys, k)
				taken++
			case !ids[k.ID] && k.State != Revoked:
				left = append(left, fmt.Sprintf("key %s of %q for %q", k.ID, k.Owner, k.Purpose))
			}
		}
		// A key that is enrolled here stays.
		known := map[[3]string]*Enrolled{}
		for i := range c.Enrolled {
			e := &c.Enrolled[i]
			known[[3]string{e.Agent, e.Purpose, e.KeyID}] = e
		}
		for _, e := range f.contents.Enrolled {
			switch old := known[[3]string{e.Agent, e.Purpose, e.KeyID}]; {
			case old == nil:
				c.Enrolled = append(c.Enrolled, e)
				taken++
			case !bytes.Equal(old.Public, e.Public):
				left = append(left, fmt.Sprintf("enrolled key %q of %q for %q", e.KeyID, e.Agent, e.Purpose))
			}
		}
		for name, b := range f.contents.Secrets {
			switch old, ok := c.Secrets[name]; {
			case !ok:
				c.Secrets[name] = b
				taken++
			case !bytes.Equal(old, b):
				left = append(left, fmt.Sprintf("secret %q", name))
			}
		}
		if taken == 0 {
			return errUnchanged
		}
		return nil
	})
	if err != nil {
		return err
	}
	to, err := f.remove()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // another hub imported the same file first
	}
	if err != nil {
		return fmt.Errorf("the keys were imported into %s, but are still in the old place: %w", r.place, err)
	}
	if taken > 0 || len(left) > 0 {
		log.Info("keys were imported", "to", r.place, "keys", taken, "before", to)
	}
	for _, what := range left {
		log.Warn("a key was not imported, because another has its place", "left", what, "in", to)
	}
	return nil
}
