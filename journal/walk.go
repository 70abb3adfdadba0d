package journal

// walkChunk bounds the deliveries that Walk looks at while writers wait for it.
const walkChunk = 4096

// Walk calls fn for the unsettled deliveries and dead letters that a filter selects, in no order, until
// fn returns false. Unlike [Journal.Deliveries] it makes no list, and lets writers go on meanwhile: a
// delivery that changes may be missed, or seen in either state. The delivery is valid during the call
// only. fn must not call the journal.
func (j *Journal) Walk(f Filter, fn func(*Delivery) bool) {
	for _, p := range j.parts {
		if (f.Partition == nil || f.Partition(p.index)) && !p.walk(&f, fn) {
			return
		}
	}
}

func (p *partition) walk(f *Filter, fn func(*Delivery) bool) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	n, v := 0, Delivery{} // one for all: a million would cost more than the walk
	for t, d := range p.open {
		if n++; n%walkChunk == 0 {
			p.mu.RUnlock()
			p.mu.RLock()
		}
		if f.matches(t, d) {
			if v = d.export(p.index, t); !fn(&v) {
				return false
			}
		}
	}
	return true
}
