package journal

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/parley-hub/parley/journal/store"
)

// Checker looks whether records fit their checksums and each other: the links of
// chains, and the steps of deliveries. It is given all records of a partition, in
// order.
type Checker struct {
	sealer *sealer
	links  links
	parts  map[int]*checkedPartition
}

type checkedPartition struct {
	view  *partition
	whole bool // it is read from its first record on
}

// NewChecker checks a journal with what was fixed when it was made, and the key
// if it is encrypted. Errors: ErrKey.
func NewChecker(m store.Meta, key []byte) (*Checker, error) {
	s, err := newSealer(&m, key, rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Checker{sealer: s, links: newLinks(), parts: map[int]*checkedPartition{}}, nil
}

// Record says what is wrong with a record, nil if nothing is.
func (c *Checker) Record(partition int, x store.Record) error {
	p := c.parts[partition]
	if p == nil {
		cfg := Config{Now: time.Now, Window: time.Minute}
		p = &checkedPartition{view: newPartition(&Journal{cfg: cfg, sealer: c.sealer}, partition), whole: x.Sequence == 1}
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
	if r.Chain != nil {
		if err := c.links.follow(r.Record); err != nil {
			return err
		}
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

// A Salvage writes what can be read of a damaged journal into a backup, from
// which [Restore] makes a journal. Meta comes first, then values, then records in
// their order, then End.
type Salvage struct {
	out     *backupWriter
	w       io.Writer
	key     []byte
	now     time.Time
	meta    *store.Meta
	sealer  *sealer
	s       BackupSummary
	sums    []logHash
	Damaged []string // what does not fit its checksum
}

// NewSalvage writes to w. The key is that of an encrypted journal; so is the
// backup encrypted.
func NewSalvage(w io.Writer, key []byte, now time.Time) *Salvage {
	return &Salvage{w: w, key: key, now: now}
}

// Meta takes what was fixed when the journal was made. Of several, the first that
// the key fits counts. Errors: ErrKey.
func (v *Salvage) Meta(m store.Meta) error {
	if v.meta != nil || m.Partitions < 1 || m.Partitions > maxPartitions || !validPrefix(m.Prefix) {
		return nil
	}
	s, err := newSealer(&m, v.key, rand.Reader)
	if err != nil {
		return err
	}
	v.meta, v.sealer = &m, s
	h := &BackupHeader{
		What: backupWhat, Created: v.now.UTC(), Journal: backupFormat, Prefix: m.Prefix, Partitions: m.Partitions, Salvaged: true,
	}
	v.s = BackupSummary{Header: *h, Partitions: make([]BackupPartition, m.Partitions)}
	v.sums = make([]logHash, m.Partitions)
	v.out, err = newBackupWriter(v.w, h, v.key, m.Check != "", rand.Reader)
	return err
}

var errNoMeta = errors.New("what was fixed when the journal was made cannot be read, without which nothing of it can be used; restore a backup")

// Value takes a value of the state.
func (v *Salvage) Value(bucket string, x store.Value) error {
	if v.meta == nil {
		return failBy(ErrCorrupt, errNoMeta, "")
	}
	if bucket == viewBucket || bucket == keysBucket {
		return nil // they are made anew
	}
	data, err := v.sealer.open(valuePlace(bucket, x.Key), x.Data)
	if err != nil {
		v.Damaged = append(v.Damaged, fmt.Sprintf("the value %q of %q", x.Key, bucket))
		return nil
	}
	v.s.Values++
	subject := keySubject(v.meta.Prefix, bucket, x.Key)
	return v.out.item(frameState, nil, []byte(subject), encodeState(&Value{Key: x.Key, Data: data, Until: x.Until}))
}

// Record takes a record.
func (v *Salvage) Record(partition int, x store.Record) error {
	if v.meta == nil {
		return failBy(ErrCorrupt, errNoMeta, "")
	}
	at := Position{partition, x.Sequence}
	if partition < 0 || partition >= v.meta.Partitions {
		v.Damaged = append(v.Damaged, "record "+at.String()+" of a partition that there is not")
		return nil
	}
	data, err := v.sealer.open(recordPlace(partition, x.Sequence), x.Data)
	if err == nil && !strings.HasPrefix(x.Tag, tagOfLease) {
		_, err = decode(data)
	}
	if _, ok := tagOf(kindOf(x.Tag)); err != nil || !ok {
		v.Damaged = append(v.Damaged, "record "+at.String())
		return nil
	}
	p := &v.s.Partitions[partition]
	if p.First == 0 {
		p.First = x.Sequence
	}
	p.Last = x.Sequence
	p.Records++
	kind := kindOf(x.Tag)
	v.sums[partition].add(logSubject(v.meta.Prefix, partition)+kind, x.Sequence, data)
	index := binary.AppendUvarint(nil, uint64(partition))
	return v.out.item(frameLog, binary.AppendUvarint(index, x.Sequence), []byte(kind), data)
}

// File takes a file that belongs to the backup; see [BackupFile].
func (v *Salvage) File(f BackupFile) error {
	if v.meta == nil {
		return failBy(ErrCorrupt, errNoMeta, "")
	}
	v.s.Files = append(v.s.Files, f.Name)
	return v.out.item(frameFile, nil, []byte(f.Name), f.Data)
}

// End completes the backup.
func (v *Salvage) End() (*BackupSummary, error) {
	if v.meta == nil {
		return nil, failBy(ErrCorrupt, errNoMeta, "")
	}
	for i := range v.sums {
		v.s.Partitions[i].Head = v.sums[i].String()
	}
	v.s.Ended = v.now.UTC()
	err := v.out.end(&v.s)
	v.s.Bytes = v.out.bytes
	return &v.s, err
}

// newBackupWriter writes the header, and draws the salt of an encrypted backup.
func newBackupWriter(w io.Writer, h *BackupHeader, key []byte, encrypted bool, randomness io.Reader) (*backupWriter, error) {
	out := &backupWriter{w: bufio.NewWriterSize(w, 64<<10), sum: sha256.New()}
	return out, out.begin(h, key, encrypted, randomness)
}
