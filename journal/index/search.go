package index

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/parley-hub/parley/journal"
)

// search is the second file of an index: the messages of each agent, and the
// words of the contents. It is one of its own because making it costs as much as
// the rest, and one file of SQLite takes one writer.
type search struct {
	*file
	agents
	noText bool

	// What the transaction will insert.
	parties [][2]int64 // agent, message
	texts   []text

	party   lists // by message
	textPut bulk
	bulk    *bulkTexts // makes the segments of a rebuild; nil: SQLite does
}

type text struct {
	n    int64
	body string
}

var searchSchema = agentsSchema + fmt.Sprintf(listSchema, "party")

const textSchema = `
CREATE VIRTUAL TABLE texts USING fts5(body, content='', contentless_delete=1);
INSERT INTO texts (texts, rank) VALUES ('hashsize', 8388608);
INSERT INTO texts (texts, rank) VALUES ('automerge', 8);
INSERT INTO texts (texts, rank) VALUES ('usermerge', 16);
`

// searchSuffix is what the second file's name has more than the first's.
const searchSuffix = "-search"

func openSearch(name, version, identity string, partitions int, noText bool) (*search, error) {
	schema := searchSchema
	if !noText {
		schema += textSchema
	}
	f, err := openFile(name, schema, version, identity, partitions, 24<<10)
	if err != nil {
		return nil, err
	}
	t := &search{file: f, noText: noText}
	if err := t.prepare(); err != nil {
		return nil, errors.Join(err, f.c.close())
	}
	return t, nil
}

func (t *search) prepare() (err error) {
	if t.party, err = openLists(t.file, "party", partitionBits); err != nil {
		return err
	}
	if !t.noText {
		if t.textPut, err = t.c.prepareBulk("INSERT INTO texts (rowid, body)", 2, 1); err != nil {
			return err
		}
		if t.bulk, err = openBulk(t.file); err != nil {
			return err
		}
	}
	if err := t.agents.open(t.file); err != nil {
		return err
	}
	return t.load()
}

// add puts what is searched of a record into the transaction.
func (t *search) add(e *entry) error {
	n, err := t.next(e.r)
	if err != nil || n == 0 || e.r.Message == nil {
		return err
	}
	var room [8]int64
	parties, err := t.agents.of(e.r, room[:0])
	if err != nil {
		return err
	}
	for _, a := range parties {
		t.parties = append(t.parties, [2]int64{a, n})
	}
	if e.body != "" && t.bulky() {
		return t.bulk.list.add(n, e.body, t.bulk.tokenizer)
	}
	if e.body != "" {
		t.texts = append(t.texts, text{n, e.body})
		t.bytes += len(e.body)
	}
	return nil
}

// bulky reports whether segments are made here: for a rebuild.
func (t *search) bulky() bool { return t.hasty && t.bulk != nil }

// full is like that of any file, but for segments: to merge few great ones costs
// less.
func (t *search) full(batch int) bool {
	if !t.bulky() {
		return t.file.full(batch)
	}
	return t.records >= 16*batch || t.bytes+t.bulk.list.bytes >= 2*maxBytes
}

func (t *search) commit() error {
	if !t.begun {
		return nil
	}
	merge := false
	if t.bulky() {
		var err error
		if merge, err = t.bulk.write(); err != nil {
			return err
		}
	}
	if err := t.party.insert(t.parties); err != nil {
		return err
	}
	if !t.noText {
		// The full text index wants growing keys: it flushes at any other.
		slices.SortFunc(t.texts, func(a, b text) int { return cmp.Compare(a.n, b.n) })
		if err := t.textPut.insert(len(t.texts), func(q *stmt, i int) { q.int(t.texts[i].n).text(t.texts[i].body) }); err != nil {
			return err
		}
	}
	t.empty()
	if err := t.end(); err != nil || t.bulk == nil {
		return err
	}
	if merge {
		return t.bulk.merge()
	}
	return t.bulk.refresh()
}

// sorted binds pairs in their order.
func sorted(list [][2]int64) func(*stmt, int) {
	slices.SortFunc(list, func(a, b [2]int64) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
	return func(q *stmt, i int) { q.int(list[i][0]).int(list[i][1]) }
}

func (t *search) empty() {
	clear(t.texts)
	t.parties, t.texts = t.parties[:0], t.texts[:0]
	if t.bulk != nil {
		t.bulk.list.clear()
	}
}

func (t *search) forget() { t.agents.known = map[string]int64{} }

func (t *search) rollback() error {
	t.empty()
	t.forget()
	err := errors.Join(t.undo(), t.load())
	if t.bulk != nil {
		err = errors.Join(err, t.bulk.refresh())
	}
	return err
}

func (t *search) load() error { return errors.Join(t.agents.load(t.file), t.file.load()) }

// party is a message and the name of one who has to do with it.
type party struct {
	n    int64
	name string
}

// remove takes messages out.
func (t *search) remove(keys []int64, parties []party) error {
	if err := t.c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := t.removeTexts(keys); err != nil {
		return err
	}
	pairs := make([][2]int64, len(parties))
	for i, p := range parties {
		agent, err := t.agent(p.name)
		if err != nil {
			return err
		}
		pairs[i] = [2]int64{agent, p.n}
	}
	if err := t.party.remove(pairs); err != nil {
		return err
	}
	return t.c.exec("COMMIT")
}

// erase takes the words of messages out and overwrites them.
func (t *search) erase(keys []int64) error {
	if err := t.c.exec("PRAGMA secure_delete=ON; BEGIN IMMEDIATE"); err != nil {
		return err
	}
	if err := t.removeTexts(keys); err != nil {
		return err
	}
	return t.c.exec("COMMIT; PRAGMA secure_delete=OFF")
}

func (t *search) removeTexts(keys []int64) error {
	if t.noText {
		return nil
	}
	q, err := t.c.prepare("DELETE FROM texts WHERE rowid=?")
	if err != nil {
		return err
	}
	for _, n := range keys {
		if err = q.int(n).run(); err != nil {
			break
		}
	}
	return errors.Join(err, t.c.finalize(q))
}

const agentsSchema = `
CREATE TABLE agents (n INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
`

// agents gives names numbers. Each file has its own.
type agents struct {
	known    map[string]int64
	last     int64 // the last number that was given
	get, put *stmt
}

func (a *agents) open(f *file) (err error) {
	a.known = map[string]int64{}
	if a.get, err = f.c.prepare("SELECT n FROM agents WHERE name=?"); err == nil {
		a.put, err = f.c.prepare("INSERT INTO agents VALUES (?,?)")
	}
	return err
}

func (a *agents) load(f *file) (err error) {
	a.last, err = f.number("SELECT max(n) FROM agents")
	return err
}

// agent gives the number of a name, 0 of none.
func (a *agents) agent(name string) (int64, error) {
	if n, ok := a.known[name]; ok {
		return n, nil
	}
	if name == "" {
		return 0, nil
	}
	found, err := a.get.text(name).row()
	if err != nil {
		return 0, err
	}
	n := a.last + 1
	if found {
		n = a.get.colInt(0)
		err = a.get.done()
	} else {
		a.last = n
		err = a.put.int(n).text(name).run()
	}
	if len(a.known) > maxCached {
		clear(a.known)
	}
	a.known[name] = n
	return n, err
}

// of appends all who have to do with a record's message, each once.
func (a *agents) of(r *journal.Record, to []int64) ([]int64, error) {
	add := func(name string) error {
		n, err := a.agent(name)
		if n != 0 && !slices.Contains(to, n) {
			to = append(to, n)
		}
		return err
	}
	err := errors.Join(add(r.Message.From), add(r.Message.To))
	for i := range r.Open {
		err = errors.Join(err, add(r.Open[i].To))
	}
	return to, err
}
