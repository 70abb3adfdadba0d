package node

import (
	"context"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/journal"
)

// Labels have fixed vocabularies: no name that a stranger chooses is ever one.
var (
	metricKinds     = [...]parley.Kind{parley.Request, parley.Event, parley.Response, parley.Failure, parley.Notice, parley.Cancel}
	metricStates    = [...]parley.DeliveryState{parley.Waiting, parley.Delivering, parley.Delivered, parley.Answered, parley.Dead, parley.Dropped, parley.Expired, parley.Abandoned}
	attemptOutcomes = [...]string{"answered", "delivered", "failed", "postponed", "unknown"}
	seconds         = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
)

const (
	outAnswered = iota
	outDelivered
	outFailed
	outPostponed
	outUnknown
)

// protocolLabels are the values of the label protocol; the last is for all that are not listed.
func protocolLabels() (out []string) {
	for _, p := range Protocols {
		out = append(out, p.Name)
	}
	return append(out, "go", "api", "other")
}

// of gives the metrics of a protocol.
func (m *metrics) of(protocol string) *protocolMetrics {
	for i := range m.protocols {
		if m.protocols[i].name == protocol {
			return &m.protocols[i]
		}
	}
	return &m.protocols[len(m.protocols)-1]
}

// protocolMetrics are the counters with the label of one protocol.
type protocolMetrics struct {
	name     string
	messages [len(metricKinds) + 1][2]prometheus.Counter
	attempts [len(metricKinds) + 1][len(attemptOutcomes)]prometheus.Counter
	took     prometheus.Observer
}

// metrics counts what the hub does. Its counters are looked up once, so that
// counting costs an addition; what can be read off at any time is read when
// somebody asks.
type metrics struct {
	n        *Node
	registry *prometheus.Registry

	protocols []protocolMetrics // as protocolLabels
	states    [len(metricStates) + 1]prometheus.Counter
	handlers  [2]prometheus.Counter
	answer    prometheus.Histogram
	record    prometheus.Histogram
	dead      *prometheus.CounterVec
	alerts    *prometheus.CounterVec
	running   atomic.Int64 // handlers

}

func newMetrics(n *Node) *metrics {
	m := &metrics{n: n, registry: prometheus.NewRegistry()}
	messages := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "parley_messages_total", Help: "Messages recorded, by the protocol they came in by."}, []string{"protocol", "kind", "outcome"})
	attempts := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "parley_attempts_total", Help: "Attempts to deliver that ended, by the recipient's protocol."}, []string{"protocol", "kind", "outcome"})
	states := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "parley_delivery_states_total", Help: "Changes of the state of deliveries, by the state they came to."}, []string{"state"})
	took := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "parley_attempt_seconds", Help: "How long attempts took, by the recipient's protocol; go is a handler in this process.", Buckets: seconds}, []string{"protocol"})
	handlers := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "parley_handler_calls_total", Help: "Calls of handlers in this process that ended."}, []string{"outcome"})
	m.answer = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "parley_answer_seconds", Help: "From the arrival of a request to the record of its terminal reply.", Buckets: seconds})
	m.record = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "parley_record_seconds", Help: "How long a message waited for its record.", Buckets: seconds})
	m.dead = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "parley_dead_letters_total", Help: "Messages given up, by reason."}, []string{"code"})
	m.alerts = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "parley_alerts_total", Help: "Alerts, by kind and by what became of them."}, []string{"kind", "outcome"})
	for _, name := range protocolLabels() {
		p := protocolMetrics{name: name, took: took.WithLabelValues(name)}
		for _, k := range metricKinds {
			for o, outcome := range []string{"accepted", "refused"} {
				p.messages[k][o] = messages.WithLabelValues(name, k.String(), outcome)
			}
			for o, outcome := range attemptOutcomes {
				p.attempts[k][o] = attempts.WithLabelValues(name, k.String(), outcome)
			}
		}
		m.protocols = append(m.protocols, p)
	}
	for _, s := range metricStates {
		m.states[s] = states.WithLabelValues(s.String())
	}
	m.handlers[0], m.handlers[1] = handlers.WithLabelValues("ok"), handlers.WithLabelValues("failed")
	m.registry.MustRegister(messages, attempts, states, took, handlers, m.answer, m.record, m.dead, m.alerts,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), (*snapshot)(m))
	return m
}

// handler serves the metrics in the formats of Prometheus.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4, ErrorHandling: promhttp.ContinueOnError})
}

// recorded counts what a record says; the journal calls it in order.
func (m *metrics) recorded(r *journal.Record) {
	if v := r.Message; v != nil && int(v.Kind) <= len(metricKinds) && v.Kind > 0 {
		o := 0
		if r.Refused != nil {
			o = 1
		}
		m.of(v.Origin.Protocol).messages[v.Kind][o].Inc()
	}
	for i := range r.Open {
		if r.Open[i].Attempt == 0 {
			m.states[parley.Waiting].Inc()
		} else {
			m.states[parley.Delivering].Inc()
		}
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if int(s.State) < len(m.states) && s.State > 0 {
			m.states[s.State].Inc()
		}
		switch s.State {
		case parley.Answered:
			m.answer.Observe(max(0, r.Time.Sub(s.Message.Time()).Seconds()))
		case parley.Dead:
			m.dead.WithLabelValues(codeLabel(s.Error)).Inc()
		}
	}
}

// codeLabel keeps to the hub's own codes: a step's error may come from a
// handler, which may invent one.
func codeLabel(e *parley.Error) string {
	if e == nil {
		return "none"
	}
	if _, ok := knownCodes[e.Code]; ok {
		return string(e.Code)
	}
	return "other"
}

var knownCodes = map[parley.Code]struct{}{
	parley.Malformed: {}, parley.TooLarge: {}, parley.Unauthenticated: {}, parley.Stale: {}, parley.Replayed: {}, parley.Forbidden: {},
	parley.UnknownAgent: {}, parley.UnknownSkill: {}, parley.InvalidContent: {}, parley.Unsupported: {}, parley.RateLimited: {},
	parley.Loop: {}, parley.Conflict: {}, parley.Unavailable: {}, parley.NoSpace: {}, parley.TimedOut: {}, parley.Cancelled: {},
	parley.Rejected: {}, parley.HandlerFailed: {}, parley.OutcomeUnknown: {}, parley.Internal: {},
}

func (m *metrics) recordEnded(took time.Duration) { m.record.Observe(took.Seconds()) }

func (m *metrics) attemptEnded(protocol string, kind parley.Kind, r *delivery.Result, took time.Duration) {
	o := outDelivered
	switch {
	case r.Err != nil && r.Wait > 0:
		o = outPostponed
	case r.Err != nil && r.Unknown:
		o = outUnknown
	case r.Err != nil:
		o = outFailed
	case r.Reply != nil:
		o = outAnswered
	}
	p := m.of(protocol)
	if kind > 0 && int(kind) < len(p.attempts) {
		p.attempts[kind][o].Inc()
	}
	p.took.Observe(took.Seconds())
	if protocol == "go" {
		m.running.Add(-1)
		failed := r.Err != nil || r.Reply != nil && r.Reply.Message.Kind == parley.Failure
		if failed {
			m.handlers[1].Inc()
		} else {
			m.handlers[0].Inc()
		}
	}
}

// snapshot reads off, when somebody asks, what others count anyway.
type snapshot metrics

type description struct {
	name, help string
	labels     []string
	kind       prometheus.ValueType
}

func (d description) desc() *prometheus.Desc {
	return prometheus.NewDesc(d.name, d.help, d.labels, nil)
}

var (
	dBuild     = description{"parley_build_info", "Always 1; the labels say what runs.", []string{"version", "go"}, prometheus.GaugeValue}
	dReady     = description{"parley_ready", "1 while the hub takes messages.", nil, prometheus.GaugeValue}
	dStarted   = description{"parley_start_time_seconds", "When the hub started.", nil, prometheus.GaugeValue}
	dLanes     = description{"parley_lanes", "Pairs of recipient and conversation with something to deliver.", nil, prometheus.GaugeValue}
	dActive    = description{"parley_attempts_active", "Attempts under way.", nil, prometheus.GaugeValue}
	dHeld      = description{"parley_held_bytes", "Content of waiting messages that is kept in memory.", nil, prometheus.GaugeValue}
	dWaiting   = description{"parley_callers_waiting", "Callers that wait for an answer.", nil, prometheus.GaugeValue}
	dHandlers  = description{"parley_handlers_active", "Handlers of this process that run.", nil, prometheus.GaugeValue}
	dAgents    = description{"parley_agents", "Agents in the directory, by state.", []string{"state"}, prometheus.GaugeValue}
	dRefusals  = description{"parley_refusals_total", "What was turned away, by protocol, step and code.", []string{"protocol", "step", "code"}, prometheus.CounterValue}
	dRecords   = description{"parley_journal_records", "Records in the journal.", []string{"partition"}, prometheus.GaugeValue}
	dBytes     = description{"parley_journal_bytes", "Bytes of the journal.", []string{"partition"}, prometheus.GaugeValue}
	dOpen      = description{"parley_deliveries_open", "Deliveries that are not settled.", []string{"partition"}, prometheus.GaugeValue}
	dDead      = description{"parley_dead_letters", "Dead letters that nobody retried or dropped.", []string{"partition"}, prometheus.GaugeValue}
	dKeys      = description{"parley_replay_keys", "Replay keys that are remembered.", []string{"partition"}, prometheus.GaugeValue}
	dQueued    = description{"parley_journal_queued", "Appends that wait for their group.", []string{"partition"}, prometheus.GaugeValue}
	dOwned     = description{"parley_journal_owned", "1 where this hub dispatches the partition.", []string{"partition"}, prometheus.GaugeValue}
	dAppended  = description{"parley_journal_appended_total", "Records appended by this hub.", []string{"partition"}, prometheus.CounterValue}
	dGroups    = description{"parley_journal_groups_total", "Group commits that they took.", []string{"partition"}, prometheus.CounterValue}
	dReplays   = description{"parley_replays_total", "Messages that were recognised as replays.", []string{"partition"}, prometheus.CounterValue}
	dFree      = description{"parley_disk_free_bytes", "Free space where the journal is.", nil, prometheus.GaugeValue}
	dDisk      = description{"parley_disk_bytes", "Size of the file system where the journal is.", nil, prometheus.GaugeValue}
	dGuests    = description{"parley_guests", "What guests use of their budget: memory and disk in bytes, others in number; disk is what may be recorded now.", []string{"resource"}, prometheus.GaugeValue}
	dGuestMost = description{"parley_guests_limit", "The budget of guests.", []string{"resource"}, prometheus.GaugeValue}
	dGuestEnds = description{"parley_guests_total", "What became of guests for want of budget: refused, evicted, delayed; written counts bytes.", []string{"outcome"}, prometheus.CounterValue}
	dConns     = description{"parley_connections", "Open connections of all listeners; guests are those on which no enrolled agent proved itself.", []string{"of"}, prometheus.GaugeValue}
	dConnMost  = description{"parley_connections_limit", "How many connections there may be.", []string{"of"}, prometheus.GaugeValue}
	dConnEnds  = description{"parley_connections_closed_total", "Connections closed for want of room: refused at once, or evicted.", []string{"outcome"}, prometheus.CounterValue}
	dReload    = description{"parley_config_reload_seconds", "When the configuration was last taken up.", nil, prometheus.GaugeValue}
	dReloadBad = description{"parley_config_reload_failed", "1 if the last reload was refused.", nil, prometheus.GaugeValue}

	descriptions = [...]description{dBuild, dReady, dStarted, dLanes, dActive, dHeld, dWaiting, dHandlers, dAgents, dRefusals, dRecords, dBytes, dOpen, dDead,
		dKeys, dQueued, dOwned, dAppended, dGroups, dReplays, dFree, dDisk,
		dGuests, dGuestMost, dGuestEnds, dConns, dConnMost, dConnEnds, dReload, dReloadBad}
)

// Describe implements prometheus.Collector.
func (s *snapshot) Describe(c chan<- *prometheus.Desc) {
	for _, d := range descriptions {
		c <- d.desc()
	}
}

// Collect implements prometheus.Collector.
func (s *snapshot) Collect(c chan<- prometheus.Metric) {
	n := s.n
	put := func(d description, v float64, labels ...string) {
		c <- prometheus.MustNewConstMetric(d.desc(), d.kind, v, labels...)
	}
	yes := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	put(dBuild, 1, n.c.Version, runtime.Version())
	put(dReady, yes(n.Ready() == nil))
	put(dStarted, float64(n.startTime.UnixMilli())/1e3)
	h := n.hub.Stats()
	put(dLanes, float64(h.Delivery.Lanes))
	put(dActive, float64(h.Delivery.Active))
	put(dHeld, float64(h.Delivery.Held))
	put(dWaiting, float64(h.Waiting))
	put(dHandlers, float64(s.running.Load()))
	paused := 0
	for _, e := range n.directory.All() {
		if e.Paused {
			paused++
		}
	}
	broken := n.alerts.broken()
	put(dAgents, float64(h.Agents), "all")
	put(dAgents, float64(paused), "paused")
	put(dAgents, float64(broken), "broken")
	for k, v := range n.hub.RefusalCounts() {
		put(dRefusals, float64(v), k.Protocol, k.Step, string(k.Code))
	}
	j := n.journal.Stats()
	for _, p := range j.Partitions {
		name := strconv.Itoa(p.Partition)
		put(dRecords, float64(p.Records), name)
		put(dBytes, float64(p.Bytes), name)
		put(dOpen, float64(p.Open), name)
		put(dDead, float64(p.Dead), name)
		put(dKeys, float64(p.Keys+p.LongKeys), name)
		put(dQueued, float64(p.Queued), name)
		put(dOwned, yes(p.Owned), name)
		put(dAppended, float64(p.Appended), name)
		put(dGroups, float64(p.Groups), name)
		put(dReplays, float64(p.Replays), name)
	}
	if free, total, ok := n.disk(); ok {
		put(dFree, float64(free))
		put(dDisk, float64(total))
	}
	g := n.guestBudget()
	for name, v := range map[string][2]int64{"memory": {g.Memory, g.MaxMemory}, "disk": {g.Disk, g.MaxDisk},
		"registrations": {int64(g.Registrations), int64(g.MaxRegistrations)}, "mailboxes": {int64(g.Mailboxes), int64(g.MaxMailboxes)}} {
		put(dGuests, float64(v[0]), name)
		put(dGuestMost, float64(v[1]), name)
	}
	for name, v := range map[string]uint64{"refused": g.Refused, "evicted": g.Evicted, "delayed": g.Delayed, "written": g.Written} {
		put(dGuestEnds, float64(v), name)
	}
	put(dConns, float64(g.AllConnections), "all")
	put(dConns, float64(g.Connections), "guests")
	put(dConnMost, float64(g.MaxAllConnections), "all")
	put(dConnMost, float64(g.MaxConnections), "guests")
	put(dConnEnds, float64(g.ConnectionsRefused), "refused")
	put(dConnEnds, float64(g.ConnectionsEvicted), "evicted")
	at, failed := n.lastReload()
	put(dReload, float64(at.UnixMilli())/1e3)
	put(dReloadBad, yes(failed))
}

// observer is the node as the hub's observer: it counts, watches over
// recipients, and traces where that is switched on.
type observer struct{ n *Node }

func (o observer) Record(ctx context.Context, m *parley.Message) (context.Context, func(error)) {
	start := time.Now()
	var span func(error)
	if t := o.n.tracer; t != nil {
		ctx, span = t.record(ctx, m)
	}
	return ctx, func(err error) {
		o.n.metrics.recordEnded(time.Since(start))
		if span != nil {
			span(err)
		}
	}
}

func (o observer) Attempt(ctx context.Context, a *delivery.Attempt, protocol string) (context.Context, func(delivery.Result)) {
	start := time.Now()
	kind, to := a.Message.Kind, a.To
	if protocol == "go" {
		o.n.metrics.running.Add(1)
	}
	var span func(*delivery.Result)
	if t := o.n.tracer; t != nil {
		ctx, span = t.attempt(ctx, a, protocol)
	}
	return ctx, func(r delivery.Result) {
		o.n.metrics.attemptEnded(protocol, kind, &r, time.Since(start))
		o.n.alerts.attempted(to, r.Err, r.Wait > 0)
		if span != nil {
			span(&r)
		}
	}
}
