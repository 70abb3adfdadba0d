package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	gocmp "github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func testKey(n uint64) hash16 { return keyHash("scope", string(binary.BigEndian.AppendUint64(nil, n))) }

// modelKey is a key in the plain map that the table is compared with.
type modelKey struct {
	key   hash16
	until int64
	reply uint64
}

// TestKeyTableModel: after random operations the table has the same keys as a plain map.
func TestKeyTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := newKeyTable(maphash.MakeSeed())
		model := map[uint64]*modelKey{}
		now := int64(1_800_000_000) * int64(time.Second)
		seq := rapid.Uint64Range(0, 1<<42).Draw(t, "start")
		key := func(t *rapid.T) hash16 { return testKey(rapid.Uint64Range(0, 50).Draw(t, "key")) }
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
					seq += rapid.SampledFrom([]uint64{1, 1, 1, 2, 1000, 1 << 32, 1<<32 + 7}).Draw(t, "gap")
					life := rapid.Int64Range(0, 900).Draw(t, "life") * int64(time.Second)
					k := &modelKey{key: key(t), until: now/int64(time.Second)*int64(time.Second) + life}
					if !table.add(k.key, seq, k.until) {
						t.Fatal("a new key was not added")
					}
					model[seq] = k
				}
			},
			"add again": func(*rapid.T) {
				if k := model[seq]; k != nil && table.add(k.key, seq, k.until) {
					t.Fatal("a key was added twice")
				}
			},
			"reply": func(t *rapid.T) {
				request := known()
				at := request + rapid.SampledFrom([]uint64{1, 2, 1 << 20, math.MaxUint32}).Draw(t, "distance")
				k := model[request]
				if k == nil {
					if table.reply(key(t), request, at) != 0 {
						t.Fatalf("reply(%d): found a key that was never added", request)
					}
					return
				}
				had := table.reply(k.key, request, at) == k.until
				if k.until > now && !had {
					t.Fatalf("reply(%d): a held key was not found", request)
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
				at := now / int64(time.Second) * int64(time.Second)
				want := map[hash16]map[uint64]uint64{}
				oldest := uint64(0)
				for seq, k := range model {
					if k.until > at {
						if want[k.key] == nil {
							want[k.key] = map[uint64]uint64{}
						}
						want[k.key][seq] = k.reply
						if oldest == 0 || seq < oldest {
							oldest = seq
						}
					}
				}
				for i := range uint64(51) {
					got := map[uint64]uint64{}
					for _, x := range table.find(testKey(i), now) {
						got[x.seq] = x.reply
					}
					if !maps.Equal(got, want[testKey(i)]) {
						t.Fatalf("key %d: %v, want %v", i, got, want[testKey(i)])
					}
				}
				if first, ok := table.oldest(now); first != oldest || ok != (oldest > 0) {
					t.Fatalf("the oldest is %d (%v), want %d", first, ok, oldest)
				}
				checkTable(t, table)
			},
		})
		// After a whole rotation the table has no expired key.
		now += int64(keyRotation)
		table.expire(now)
		table.expire(now + int64(keyRotation))
		maps.DeleteFunc(model, func(_ uint64, k *modelKey) bool { return k.until <= now+int64(keyRotation) })
		if table.held != len(model) {
			t.Fatalf("%d keys are held, %d have not expired", table.held, len(model))
		}
		checkTable(t, table)
	})
}

// checkTable checks the invariants of each shard.
func checkTable(t interface{ Fatalf(string, ...any) }, table *keyTable) {
	used := 0
	for i := range table.shards {
		s := &table.shards[i]
		slots := 0
		for _, k := range s.slots {
			if k.print != 0 {
				slots++
			}
		}
		if slots != s.used || s.used*10 > len(s.slots)*9 {
			t.Fatalf("shard %d counts %d keys, has %d in %d slots", i, s.used, slots, len(s.slots))
		}
		used += s.used
	}
	if used != table.held {
		t.Fatalf("the table counts %d keys, its shards hold %d", table.held, used)
	}
}

// TestKeyTableKeys: every added key is found. A key that was never added hardly ever
// shares a fingerprint with an added one.
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
		for _, x := range table.find(testKey(i), now) {
			found = found || x.seq == 3*i+1
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

// TestKeyTableTime: a key is found until its expiry, in full seconds rounded up.
func TestKeyTableTime(t *testing.T) {
	t.Parallel()
	table := newKeyTable(maphash.MakeSeed())
	at := func(s float64) int64 { return 1_800_000_000_000_000_000 + int64(s*1e9) }
	table.add(testKey(1), 1, at(10))
	table.add(testKey(2), 2, at(10.001))
	table.add(testKey(3), 3, math.MaxInt64)
	found := func(key uint64, now int64) bool {
		return len(table.find(testKey(key), now)) > 0
	}
	for _, c := range []struct {
		key  uint64
		now  float64
		held bool
	}{{1, 0, true}, {1, 9.999, true}, {1, 10, false}, {2, 10.001, true}, {2, 10.999, true}, {2, 11, false},
		{3, 2e8, true}} {
		if found(c.key, at(c.now)) != c.held {
			t.Errorf("key %d at %g s: found %t, want %t", c.key, c.now, !c.held, c.held)
		}
	}
}

// lives are the periods for which the bindings keep their keys; see the bindings' tests.
var lives = []time.Duration{35 * time.Second, 240 * time.Second, 300 * time.Second, 360 * time.Second, 15 * time.Minute}

// TestKeyTableLoad adds 1,500 keys a second with different periods for 30 minutes:
// memory is proportional to the unexpired keys, and does not grow further.
func TestKeyTableLoad(t *testing.T) {
	rate, minutes := 1500, 30
	if testing.Short() {
		rate = 600
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	before := heapBytes()
	table := newKeyTable(maphash.MakeSeed())
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	ends := map[int64]int{} // second → keys that expire then
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
				table.reply(testKey(seq), seq, seq+rnd.Uint64N(1000)+1)
			}
			ends[until/int64(time.Second)]++
			live++
		}
		past := start.Unix() + int64(s)
		live -= ends[past]
		delete(ends, past)
		if per := float64(table.bytes()) / float64(live); live > 100_000 && per > 32 {
			t.Fatalf("after %d s: %.2f bytes for each of %d unexpired keys", s, per, live)
		}
		if s == 60*minutes/2 {
			most = table.bytes()
		}
		if s > 60*minutes/2 && float64(table.bytes()) > 1.04*float64(most) {
			t.Fatalf("after %d s: %d bytes, %d after half of the time", s, table.bytes(), most)
		}
	}
	ends = nil
	grown := heapBytes() - before
	t.Logf("%d keys, %d unexpired: %d bytes, %.2f a key; the heap grew by %d",
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

func TestEncodeKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hash := rapid.Custom(func(t *rapid.T) hash16 { return testKey(rapid.Uint64().Draw(t, "hash")) })
		facts := rapid.SliceOf(rapid.Custom(func(t *rapid.T) keyFact {
			f := keyFact{at: rapid.Uint64Range(1, 1<<48).Draw(t, "at"), key: hash.Draw(t, "key")}
			switch rapid.IntRange(0, 2).Draw(t, "kind") {
			case 0:
				f.back = rapid.Uint64Range(1, 1<<33).Draw(t, "distance")
			case 1:
				f.sender = hash.Draw(t, "sender")
			}
			f.until = int64(rapid.Uint32().Draw(t, "until")) * int64(time.Second)
			return f
		})).Draw(t, "facts")
		slices.SortFunc(facts, func(a, b keyFact) int { return cmp.Compare(a.at, b.at) })
		data := encodeKeys(facts)
		var got []keyFact
		if err := decodeKeys(data, func(f keyFact) { got = append(got, f) }); err != nil {
			t.Fatal(err)
		}
		if d := gocmp.Diff(facts, got, gocmp.AllowUnexported(keyFact{}), equateEmpty); d != "" {
			t.Fatal(d)
		}
		if len(facts) > 0 {
			if err := decodeKeys(data[:len(data)-1], func(keyFact) {}); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v, want ErrCorrupt", err)
			}
		}
	})
}

var equateEmpty = gocmp.FilterValues(func(a, b []keyFact) bool { return len(a)+len(b) == 0 }, gocmp.Ignore())

// TestAllowance: the keys that outlive the window are counted until they expire.
func TestAllowance(t *testing.T) {
	t.Parallel()
	a, b := testKey(100), testKey(101)
	l := allowance{a: {1000, 500}, b: {700}}
	if l.of(a, 500) != 1 || l.of(b, 500) != 1 {
		t.Error(l)
	}
	if l.expire(700) != 1 || len(l[a]) != 1 || len(l) != 1 {
		t.Error(l)
	}
	if l.expire(5000) != 0 || len(l) != 0 {
		t.Error("expired keys are still counted")
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
			facts[i] = keyFact{at: 2 * s, key: testKey(s), until: 1_800_000_000_000_000_000 + int64(s)*1_000_000}
		}
		segments = append(segments, encodeKeys(facts))
		bytes += len(segments[len(segments)-1])
	}
	b.ReportMetric(float64(bytes)/n, "stored-bytes/key")
	for b.Loop() {
		table := newKeyTable(maphash.MakeSeed())
		table.grow(bytes / factSize)
		var err error
		for _, s := range segments {
			err = errors.Join(err, decodeKeys(s, func(f keyFact) { table.add(f.key, f.at, f.until) }))
		}
		if err != nil || table.held != n {
			b.Fatal(table.held, err)
		}
	}
}

// bytes is the memory of the table.
func (t *keyTable) bytes() int {
	n := int(unsafe.Sizeof(*t))
	for i := range t.shards {
		n += cap(t.shards[i].slots) * int(unsafe.Sizeof(heldKey{}))
	}
	return n
}
