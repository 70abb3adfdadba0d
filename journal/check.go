package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// A Checker verifies records: their checksums, the links of chains and the steps of
// deliveries. It must be given all records of a partition, in order.
type Checker struct {
	sealer *sealer
	links  links
	parts  map[int]*checkedPartition
}

type checkedPartition struct {
	view  *partition
	whole bool // the partition has been read from its first record
}

// NewChecker makes a Checker for a journal with these settings; key is nil if it is
// not encrypted. Errors: ErrKey.
func NewChecker(m store.Meta, key []byte) (*Checker, error) {
	s, err := newSealer(&m, key)
	if err != nil {
		return nil, err
	}
	return &Checker{sealer: s, links: links{}, parts: map[int]*checkedPartition{}}, nil
}

// Record returns the damage of a record; nil: none.
func (c *Checker) Record(partition int, x store.Record) error {
	p := c.parts[partition]
	if p == nil {
		cfg := Config{Now: time.Now, Window: time.Minute}
		p = &checkedPartition{view: newPartition(&Journal{cfg: cfg, sealer: c.sealer}, partition),
			whole: x.Sequence == 1}
		c.parts[partition] = p
	}
	r, err := p.view.parse(x, false)
	if err != nil {
		return err
	}
	defer p.view.apply(x.Sequence, x.Tag, r)
	if r == nil {
		return nil
	}
	if err := c.links.follow(r.Record); err != nil {
		return err
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		d := p.view.open[targetOf(s)]
		switch {
		case d != nil:
			if why := d.check(s); why != "" {
				return fmt.Errorf("%s: %s", s, why)
			}
		case p.whole:
			return fmt.Errorf("%s: no such delivery is open", s)
		}
	}
	return nil
}

// links checks that each record of a chain follows the last one.
type links map[hash16]uint64

// follow checks a record. It remembers a bounded number of chains, and accepts the
// first record that it sees of any other.
func (l links) follow(r *Record) error {
	if r.Chain == nil {
		return nil
	}
	at := r.Position
	name := nameHash(fmt.Sprintf("chain of %d", at.Partition), r.Chain.Name)
	if head, ok := l[name]; ok && head != r.Chain.After {
		return fail(ErrCorrupt, "record %s follows %d of its chain, which ends at %d", at, r.Chain.After, head)
	}
	if len(l) >= maxHeads {
		clear(l)
	}
	l[name] = at.Sequence
	return nil
}

// A Salvage writes everything readable of a damaged journal into a backup, from
// which [Restore] makes a journal. The calls are Meta, then Value, then Record in
// order, then End.
type Salvage struct {
	out     *backupWriter // nil before Meta
	w       io.Writer
	key     []byte
	now     time.Time
	sealer  *sealer
	Damaged []string // records and values that do not match their checksum
}

// NewSalvage writes to w. The key is that of an encrypted journal; it encrypts the
// backup, too.
func NewSalvage(w io.Writer, key []byte, now time.Time) *Salvage {
	return &Salvage{w: w, key: key, now: now}
}

// Meta takes the journal's settings. If there are several, the first that the key
// fits counts. Errors: ErrKey.
func (v *Salvage) Meta(m store.Meta) (err error) {
	if v.out != nil || m.Partitions < 1 || m.Partitions > maxPartitions || !validPrefix(m.Prefix) {
		return nil
	}
	if v.sealer, err = newSealer(&m, v.key); err != nil {
		return err
	}
	h := BackupHeader{Created: v.now.UTC(), Prefix: m.Prefix, Partitions: m.Partitions, Salvaged: true}
	v.out, err = newBackupWriter(v.w, h, v.key, nil)
	return err
}

var errNoMeta = failBy(ErrCorrupt, errors.New("the journal's settings cannot be read, "+
	"and nothing of it can be used without them; restore a backup"), "")

func (v *Salvage) lost(format string, args ...any) error {
	v.Damaged = append(v.Damaged, fmt.Sprintf(format, args...))
	return nil
}

// Value takes a value of the state.
func (v *Salvage) Value(bucket string, x store.Value) error {
	if v.out == nil {
		return errNoMeta
	}
	if !inBackup(bucket) {
		return nil
	}
	data, err := v.sealer.open(valueAAD(bucket, x.Key), x.Data)
	if err != nil {
		return v.lost("the value %q of %q", x.Key, bucket)
	}
	return v.out.value(bucket, &Value{Key: x.Key, Data: data, Until: x.Until})
}

// Record takes a record.
func (v *Salvage) Record(partition int, x store.Record) error {
	if v.out == nil {
		return errNoMeta
	}
	at := Position{partition, x.Sequence}
	if partition < 0 || partition >= v.out.s.Header.Partitions {
		return v.lost("record %s: there is no such partition", at)
	}
	data, err := v.sealer.open(recordAAD(partition, x.Sequence), x.Data)
	if err == nil && !strings.HasPrefix(x.Tag, tagOfLease) {
		_, err = decode(data)
	}
	_, ok := tagOf(cmp.Or(x.Tag, kindRecord))
	if err != nil || !ok || x.Sequence <= v.out.s.Partitions[partition].Last {
		return v.lost("record %s", at)
	}
	return v.out.record(at, x.Tag, data)
}

// File takes a file that belongs into the backup; see [BackupFile].
func (v *Salvage) File(f BackupFile) error {
	if v.out == nil {
		return errNoMeta
	}
	return v.out.file(f)
}

// End completes the backup.
func (v *Salvage) End() (*BackupSummary, error) {
	if v.out == nil {
		return nil, errNoMeta
	}
	return v.out.finish(v.now)
}
