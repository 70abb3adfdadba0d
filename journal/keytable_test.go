package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func testKey(n uint64) hash16 { return keyHash("scope", string(binary.BigEndian.AppendUint64(nil, n))) }

// modelKey is a key in the plain model of a table.
type modelKey struct {
	shard, print, until uint32
	reply               uint64
}

// TestKeyTableModel compares the table with a plain map. Fingerprints are few,
// and at the ends of the shards, so that many keys share one and slots wrap.
func TestKeyTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := newKeyTable(maphash.MakeSeed())
		model := map[uint64]*modelKey{}
		now := int64(1_800_000_000) * int64(time.Second)
		seq := rapid.Uint64Range(0, 1<<42).Draw(t, "start")
		prints := []uint32{1, 2, 3, 1 << 20, 1 << 31, math.MaxUint32 - 1, math.MaxUint32}
		known := func() uint64 {
			list := slices.Sorted(maps.Keys(model))
			if len(list) == 0 {
				return seq + 1
			}
			return rapid.SampledFrom(list).Draw(t, "known")
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				for range rapid.SampledFrom([]int{1, 10, 300}).Draw(t, "several") {
					seq += rapid.SampledFrom([]uint64{1, 1, 1, 2, 1000, blockSpan - 1, blockSpan, 1 << 32, 1<<32 + 7}).Draw(t, "gap")
					k := &modelKey{
						shard: rapid.SampledFrom([]uint32{0, 1, 255}).Draw(t, "shard"),
						print: rapid.SampledFrom(prints).Draw(t, "print"),
						until: seconds(now) + rapid.Uint32Range(0, 900).Draw(t, "life"),
					}
					table.addPrint(k.shard, k.print, seq, k.until)
					model[seq] = k
				}
			},
			"add again": func(*rapid.T) {
				if k := model[seq]; k != nil {
					table.addPrint(k.shard, k.print, seq, k.until)
				}
			},
			"reply": func(t *rapid.T) {
				request := known()
				at := request + rapid.SampledFrom([]uint64{1, 2, 1 << 20, math.MaxUint32}).Draw(t, "distance")
				had := table.reply(request, at)
				k := model[request]
				if k != nil && k.until > seconds(now) && !had {
					t.Fatalf("reply(%d): the key is held, and was not found", request)
				}
				if k == nil && had {
					t.Fatalf("reply(%d): found what was never added", request)
				}
				if had && k.reply == 0 {
					k.reply = at
				}
			},
			"time": func(t *rapid.T) {
				now += rapid.Int64Range(0, 300*int64(time.Second)).Draw(t, "passes")
				table.expire(now)
			},
			"": func(t *rapid.T) {
				for _, shard := range []uint32{0, 1, 255, 7} {
					for _, print := range prints {
						want := map[uint64]uint64{}
						for seq, k := range model {
							if k.shard == shard && k.print == print && k.until > seconds(now) {
								want[seq] = k.reply
							}
						}
						got := map[uint64]uint64{}
						table.each(shard, print, seconds(now), func(seq, reply uint64) bool {
							got[seq] = reply
							return true
						})
						if !maps.Equal(got, want) {
							t.Fatalf("shard %d, fingerprint %d: %v, want %v", shard, print, got, want)
						}
					}
				}
				checkTable(t, table)
			},
		})
		// After a whole rotation nothing that has ended is left.
		table.expire(now)
		for range 2 * len(table.blocks) {
			now += int64(keyRotation)
			table.expire(now)
		}
		maps.DeleteFunc(model, func(_ uint64, k *modelKey) bool { return k.until <= seconds(now) })
		if table.count() != len(model) {
			t.Fatalf("%d keys are held, %d have not ended", table.count(), len(model))
		}
		first, ok := table.first()
		if list := slices.Sorted(maps.Keys(model)); ok != (len(list) > 0) || ok && first != list[0] {
			t.Fatalf("the first is %d (%v), want that of %v", first, ok, list)
		}
		checkTable(t, table)
	})
}

// checkTable checks what must hold between blocks and index.
func checkTable(t interface{ Fatalf(string, ...any) }, table *keyTable) {
	held, used, slots := 0, 0, 0
	for i, b := range table.blocks {
		if i < len(table.blocks)-1 && len(b.keys) == 0 {
			t.Fatalf("block %d of %d is empty", i, len(table.blocks))
		}
		held += len(b.keys)
	}
	for i := range table.shards {
		s := &table.shards[i]
		used += s.used
		for _, slot := range s.slots {
			if slot != 0 {
				slots++
			}
		}
		if s.used*10 > len(s.slots)*9 || len(s.slots) > 32 && s.used*100 < len(s.slots)*70 {
			t.Fatalf("shard %d has %d keys in %d slots", i, s.used, len(s.slots))
		}
	}
	if held != table.held || used != held || slots != held {
		t.Fatalf("%d keys are counted, %d in blocks, %d in shards, %d in slots", table.held, held, used, slots)
	}
}

// TestKeyTableKeys: whole keys, each with its own fingerprint.
func TestKeyTableKeys(t *testing.T) {
	t.Parallel()
	table := newKeyTable(maphash.MakeSeed())
	const n = 200_000
	now := int64(1_800_000_000_500_000_000)
	for i := range uint64(n) {
		table.add(testKey(i), 3*i+1, now+int64(time.Minute))
	}
	wrong := 0
	for i := range uint64(n) {
		found := false
		for seq := range table.find(testKey(i), now) {
			found = found || seq == 3*i+1
		}
		if !found {
			t.Fatalf("key %d is not found", i)
		}
		for range table.find(testKey(n+i), now) {
			wrong++
		}
	}
	if wrong > 3 { // 200,000 look-ups among 200,000 of 2^40 fingerprints: 0.04 are expected
		t.Errorf("%d of %d keys that were never added have a candidate", wrong, n)
	}
	if per := float64(table.bytes()) / n; per > 32 {
		t.Errorf("%.1f bytes a key", per)
	}
}

// TestKeyTableJoin: blocks of which little is left become one.
func TestKeyTableJoin(t *testing.T) {
	t.Parallel()
	table := newKeyTable(maphash.MakeSeed())
	now := int64(1_800_000_000) * int64(time.Second)
	const n = 6*blockKeys + 10
	life := func(i uint64) time.Duration {
		switch {
		case i%20 != 0:
			return time.Minute
		case i/blockKeys%2 == 0:
			return 10 * time.Minute
		}
		return 5 * time.Minute // the later of two blocks ends sooner
	}
	for i := range uint64(n) {
		table.add(testKey(i), 5*i+1, now+int64(life(i)))
	}
	start := now
	for _, at := range []time.Duration{time.Minute, 5 * time.Minute, 10 * time.Minute} {
		now = start + int64(at)
		table.expire(now)
		for range 2 * len(table.blocks) {
			table.expire(now + int64(keyRotation))
		}
		live := 0
		for i := range uint64(n) {
			found := false
			for seq := range table.find(testKey(i), now) {
				found = found || seq == 5*i+1
			}
			if found != (life(i) > at) {
				t.Fatalf("key %d after %s: found %t", i, at, found)
			}
			if found {
				live++
				if k := table.at(5*i + 1); k == nil {
					t.Fatalf("key %d is not where its sequence says", i)
				}
			}
		}
		if table.count() != live || len(table.blocks) > 2 {
			t.Errorf("after %s: %d keys in %d blocks, %d have not ended", at, table.count(), len(table.blocks), live)
		}
		checkTable(t, table)
	}
}

// TestKeyTableTime: a key is found until its end in full seconds, rounded up.
func TestKeyTableTime(t *testing.T) {
	t.Parallel()
	table := newKeyTable(maphash.MakeSeed())
	at := func(s float64) int64 { return 1_800_000_000_000_000_000 + int64(s*1e9) }
	table.add(testKey(1), 1, at(10))
	table.add(testKey(2), 2, at(10.001))
	table.add(testKey(3), 3, math.MaxInt64)
	found := func(key uint64, now int64) bool {
		for range table.find(testKey(key), now) {
			return true
		}
		return false
	}
	for _, c := range []struct {
		key  uint64
		now  float64
		held bool
	}{{1, 0, true}, {1, 9.999, true}, {1, 10, false}, {2, 10.001, true}, {2, 10.999, true}, {2, 11, false}, {3, 2e8, true}} {
		if found(c.key, at(c.now)) != c.held {
			t.Errorf("key %d at %g s: found %t, want %t", c.key, c.now, !c.held, c.held)
		}
	}
}

// lives are times for which the bindings' keys are remembered; see their tests.
var lives = []time.Duration{35 * time.Second, 240 * time.Second, 300 * time.Second, 360 * time.Second, 15 * time.Minute}

// TestKeyTableLoad holds 6,000 keys a second with different times for 30
// minutes: memory stays in proportion to the keys that have not ended, and flat.
func TestKeyTableLoad(t *testing.T) {
	rate, minutes := 6000, 30
	if testing.Short() {
		rate = 600
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	before := heapBytes()
	table := newKeyTable(maphash.MakeSeed())
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ends := map[int64]int{} // second → keys that end then
	var seq uint64
	live, most := 0, 0
	for s := range 60 * minutes {
		for i := range rate {
			now := start.Add(time.Duration(s)*time.Second + time.Duration(i)*time.Second/time.Duration(rate)).UnixNano()
			if i%(rate/10) == 0 {
				table.expire(now)
			}
			seq += 1 + rnd.Uint64N(3)
			life := lives[rnd.IntN(len(lives))] - time.Duration(rnd.IntN(30))*time.Second
			until := (now + int64(life)) / int64(time.Second) * int64(time.Second)
			table.add(testKey(seq), seq, until)
			if i%2 == 0 {
				table.reply(seq, seq+rnd.Uint64N(1000)+1)
			}
			ends[until/int64(time.Second)]++
			live++
		}
		past := start.Unix() + int64(s)
		live -= ends[past]
		delete(ends, past)
		if per := float64(table.bytes()) / float64(live); live > 100_000 && per > 32 {
			t.Fatalf("after %d s: %.2f bytes for each of %d keys that have not ended", s, per, live)
		}
		if s == 60*minutes/2 {
			most = table.bytes()
		}
		if s > 60*minutes/2 && float64(table.bytes()) > 1.04*float64(most) {
			t.Fatalf("after %d s: %d bytes, %d at half the time", s, table.bytes(), most)
		}
	}
	ends = nil
	grown := heapBytes() - before
	t.Logf("%d keys, %d have not ended: %d bytes, %.2f a key; the heap grew by %d",
		seq, live, table.bytes(), float64(table.bytes())/float64(live), grown)
	if grown > int64(live)*32+1<<20 {
		t.Errorf("the heap grew by %d bytes for %d keys", grown, live)
	}
	checkTable(t, table)
}

func heapBytes() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestKeyTableLoaded: keys that are loaded at once are found like those that are
// added, and what comes after them, too.
func TestKeyTableLoaded(t *testing.T) {
	t.Parallel()
	table := newKeyTable(maphash.MakeSeed())
	const n = 100_000
	table.add(testKey(1), 1, math.MaxInt64)
	cut := errors.New("the rest cannot be read")
	err := table.load(func(add func(hash16, uint64, int64)) error {
		for i := uint64(1); i <= n; i++ { // the first one is held
			add(testKey(i), i, math.MaxInt64)
			if i%2 == 0 && !table.reply(i, i+7) {
				t.Fatalf("a reply does not find the request %d", i)
			}
		}
		return cut
	})
	if !errors.Is(err, cut) {
		t.Error(err)
	}
	table.add(testKey(n+1), n+1, math.MaxInt64)
	for i := uint64(1); i <= n+1; i++ {
		got := map[uint64]uint64{}
		for seq, reply := range table.find(testKey(i), 0) {
			got[seq] = reply
		}
		want := uint64(0)
		if i%2 == 0 {
			want = i + 7
		}
		if reply, ok := got[i]; !ok || reply != want {
			t.Fatalf("key %d: %v", i, got)
		}
	}
	if per := float64(table.bytes()) / n; table.count() != n+1 || per > 32 {
		t.Errorf("%d keys, %.1f bytes each", table.count(), per)
	}
	checkTable(t, table)
}

func TestEncodeKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hash := rapid.Custom(func(t *rapid.T) hash16 { return testKey(rapid.Uint64().Draw(t, "hash")) })
		facts := rapid.SliceOf(rapid.Custom(func(t *rapid.T) keyFact {
			f := keyFact{seq: rapid.Uint64Range(1, 1<<48).Draw(t, "seq")}
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				f.reply = f.seq + rapid.Uint64Range(1, 1<<33).Draw(t, "distance")
				return f
			case 1:
				f.sender = hash.Draw(t, "sender")
			}
			f.key = hash.Draw(t, "key")
			f.until = int64(rapid.Uint32().Draw(t, "until")) * int64(time.Second)
			return f
		})).Draw(t, "facts")
		data := encodeKeys(facts)
		var got []keyFact
		if err := decodeKeys(data, func(f keyFact) { got = append(got, f) }); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(facts, got, cmp.AllowUnexported(keyFact{}), equateEmpty); d != "" {
			t.Fatal(d)
		}
		damaged := slices.Clone(data)
		damaged[rapid.IntRange(0, len(data)-1).Draw(t, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		for _, b := range [][]byte{damaged, data[:rapid.IntRange(0, len(data)-1).Draw(t, "cut")]} {
			err := decodeKeys(b, func(keyFact) { t.Fatal("a fact of a damaged segment") })
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v, want ErrCorrupt", err)
			}
		}
	})
}

var equateEmpty = cmp.FilterValues(func(a, b []keyFact) bool { return len(a)+len(b) == 0 }, cmp.Ignore())

// TestLongKeys: what outlives the window, against its sender's allowance.
func TestLongKeys(t *testing.T) {
	t.Parallel()
	l := newLongKeys()
	a, b := testKey(100), testKey(101)
	l.add(testKey(1), a, 10, 1000)
	l.add(testKey(2), a, 11, 500)
	l.add(testKey(3), b, 12, 700)
	check := func(what string, want ...string) {
		t.Helper()
		var got []string
		for i := range uint64(4) {
			if seq, reply, ok := l.find(testKey(i), 400); ok {
				got = append(got, fmt.Sprintf("%d: %d %d", i, seq, reply))
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	check("added", "1: 10 0", "2: 11 0", "3: 12 0")
	if !l.reply(11, 20) || !l.reply(11, 21) || l.reply(13, 22) {
		t.Error("a reply finds its request, and no other")
	}
	check("replied", "1: 10 0", "2: 11 20", "3: 12 0")
	if _, _, ok := l.find(testKey(2), 500); ok {
		t.Error("a key is found at its end")
	}
	l.expire(500)
	check("expired", "1: 10 0", "3: 12 0")
	if l.reply(11, 23) || l.of(a) != 1 || l.of(b) != 1 || l.count() != 2 {
		t.Errorf("%d keys, %d and %d of the senders", l.count(), l.of(a), l.of(b))
	}
	l.add(testKey(1), b, 30, 2000) // used again after its end
	if seq, ok := l.first(); !ok || seq != 12 || l.of(a) != 0 || l.of(b) != 2 {
		t.Errorf("the first is %d, %d and %d keys of the senders", seq, l.of(a), l.of(b))
	}
	l.expire(5000)
	if _, ok := l.first(); ok || l.count() != 0 || len(l.keys)+len(l.bySeq)+len(l.senders) != 0 {
		t.Error("something is left")
	}
}

// BenchmarkKeyTable adds and looks up among a million keys.
func BenchmarkKeyTable(b *testing.B) {
	const n = 1 << 20
	keys := make([]hash16, n)
	for i := range keys {
		keys[i] = testKey(uint64(i))
	}
	b.Run("add", func(b *testing.B) {
		table, seq := newKeyTable(maphash.MakeSeed()), uint64(0)
		for b.Loop() {
			seq++
			table.add(keys[seq%n], seq, int64(seq)*1000)
			table.expire(int64(seq-min(seq, n)) * 1000)
		}
	})
	table := newKeyTable(maphash.MakeSeed())
	for i, k := range keys {
		table.add(k, uint64(i)+1, math.MaxInt64)
	}
	b.Run("find", func(b *testing.B) {
		i := 0
		for b.Loop() {
			i++
			for range table.find(keys[i%n], 0) {
			}
		}
	})
	b.Run("find nothing", func(b *testing.B) {
		i := uint64(0)
		for b.Loop() {
			i++
			k := keys[i%n]
			k[0]++
			for range table.find(k, 0) {
				b.Log("a candidate")
			}
		}
	})
}

// BenchmarkLoadKeys reads two million keys from segments, as a start does.
func BenchmarkLoadKeys(b *testing.B) {
	const n, segment = 2_000_000, 5000
	var segments [][]byte
	bytes := 0
	for at := 0; at < n; at += segment {
		facts := make([]keyFact, segment)
		for i := range facts {
			s := uint64(at + i + 1)
			facts[i] = keyFact{seq: 2 * s, key: testKey(s), until: 1_800_000_000_000_000_000 + int64(s)*1_000_000}
		}
		segments = append(segments, encodeKeys(facts))
		bytes += len(segments[len(segments)-1])
	}
	b.ReportMetric(float64(bytes)/n, "stored-bytes/key")
	for b.Loop() {
		table := newKeyTable(maphash.MakeSeed())
		err := table.load(func(add func(hash16, uint64, int64)) error {
			for _, s := range segments {
				if err := decodeKeys(s, func(f keyFact) { add(f.key, f.seq, f.until) }); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || table.count() != n {
			b.Fatal(table.count(), err)
		}
	}
}
