package node

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/journal"
)

// Labels have fixed vocabularies: no name that a guest chooses is ever one.
var (
	metricKinds = []parley.Kind{parley.Request, parley.Event, parley.Response, parley.Failure, parley.Notice,
		parley.Cancel, parley.Input}
	metricStates = []parley.DeliveryState{parley.Waiting, parley.Delivering, parley.Delivered, parley.Answered,
		parley.Dead, parley.Dropped, parley.Expired, parley.Abandoned}
	attemptOutcomes = []string{"answered", "delivered", "failed", "postponed", "unknown"}
	alertKinds      = []string{alertDead, alertBroken, alertRecovered, alertDisk, alertDiskFine, alertExpiry}
	alertOutcomes   = []string{alertSent, alertFailed, alertLogged, alertSkipped, alertRepeated}
	seconds         = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
)

// protocolLabels are the values of the label protocol; "other" is for all unlisted protocols.
func protocolLabels() (out []string) {
	for _, p := range Protocols {
		out = append(out, p.Name)
	}
	return append(out, "go", "api", "other")
}

// protocol gives the label of a protocol.
func (m *metrics) protocol(name string) string {
	if slices.Contains(m.protocols, name) {
		return name
	}
	return "other"
}

// metrics counts messages, attempts and states; snapshot reads other values at each scrape.
type metrics struct {
	n         *Node
	registry  *prometheus.Registry
	protocols []string // protocolLabels

	messages, attempts, states, handlers, dead, alerts *prometheus.CounterVec

	took           *prometheus.HistogramVec
	answer, record prometheus.Histogram
	running        atomic.Int64 // handlers
}

func newMetrics(n *Node) *metrics {
	m := &metrics{n: n, registry: prometheus.NewRegistry(), protocols: protocolLabels()}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	times := func(name, help string) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds}
	}
	m.messages = counters("parley_messages_total", "Messages recorded, by the sender's protocol.", "protocol", "kind",
		"outcome")
	m.attempts = counters("parley_attempts_total", "Attempts to deliver that ended, by the recipient's protocol.",
		"protocol", "kind", "outcome")
	m.states = counters("parley_delivery_states_total", "Changes of the state of deliveries, by the new state.",
		"state")
	m.took = prometheus.NewHistogramVec(times("parley_attempt_seconds",
		"How long attempts took, by the recipient's protocol; go is a handler in this process."), []string{"protocol"})
	m.handlers = counters("parley_handler_calls_total", "Calls of handlers in this process that ended.", "outcome")
	m.answer = prometheus.NewHistogram(times("parley_answer_seconds",
		"From the arrival of a request to the record of its terminal reply."))
	m.record = prometheus.NewHistogram(times("parley_record_seconds", "How long a message waited for its record."))
	m.dead = counters("parley_dead_letters_total", "Messages given up, by reason.", "code")
	m.alerts = counters("parley_alerts_total", "Alerts, by kind and outcome.", "kind", "outcome")
	// Every label value exists from the start: rate and increase do not see the step from no series to 1.
	for _, name := range m.protocols {
		m.took.WithLabelValues(name)
		for _, k := range metricKinds {
			for _, outcome := range []string{"accepted", "refused"} {
				m.messages.WithLabelValues(name, k.String(), outcome)
			}
			for _, outcome := range attemptOutcomes {
				m.attempts.WithLabelValues(name, k.String(), outcome)
			}
		}
	}
	for _, s := range metricStates {
		m.states.WithLabelValues(s.String())
	}
	for _, c := range admin.Codes() {
		m.dead.WithLabelValues(string(c))
	}
	m.dead.WithLabelValues(codeNone)
	m.dead.WithLabelValues(codeOther)
	for _, kind := range alertKinds {
		for _, outcome := range alertOutcomes {
			m.alerts.WithLabelValues(kind, outcome)
		}
	}
	m.handlers.WithLabelValues("ok")
	m.handlers.WithLabelValues("failed")
	m.registry.MustRegister(m.messages, m.attempts, m.states, m.took, m.handlers, m.answer, m.record, m.dead, m.alerts,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), (*snapshot)(m))
	return m
}

// handler serves the metrics in the formats of Prometheus.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4,
		ErrorHandling: promhttp.ContinueOnError})
}

// recorded counts a record; the journal calls it in order.
func (m *metrics) recorded(r *journal.Record) {
	if v := r.Message; v != nil && slices.Contains(metricKinds, v.Kind) {
		outcome := "accepted"
		if r.Refused != nil {
			outcome = "refused"
		}
		m.messages.WithLabelValues(m.protocol(v.Origin.Protocol), v.Kind.String(), outcome).Inc()
	}
	for i := range r.Open {
		state := parley.Waiting
		if r.Open[i].Attempt > 0 {
			state = parley.Delivering
		}
		m.states.WithLabelValues(state.String()).Inc()
	}
	for i := range r.Steps {
		s := &r.Steps[i]
		if slices.Contains(metricStates, s.State) {
			m.states.WithLabelValues(s.State.String()).Inc()
		}
		switch s.State {
		case parley.Answered:
			m.answer.Observe(max(0, r.Time.Sub(s.Message.Time()).Seconds()))
		case parley.Dead:
			m.dead.WithLabelValues(codeLabel(s.Error)).Inc()
		}
	}
}

// Labels of an error without a code of the hub's vocabulary.
const (
	codeNone  = "none"  // there is no error
	codeOther = "other" // a handler's own code
)

// codeLabel gives one of the hub's own codes: a handler may invent others.
func codeLabel(e *parley.Error) string {
	if e == nil {
		return codeNone
	}
	if admin.IsCode(e.Code) {
		return string(e.Code)
	}
	return codeOther
}

func (m *metrics) attemptEnded(protocol string, kind parley.Kind, r *delivery.Result, took time.Duration) {
	outcome := "delivered"
	switch {
	case r.Err != nil && r.Wait > 0:
		outcome = "postponed"
	case r.Err != nil && r.Unknown:
		outcome = "unknown"
	case r.Err != nil:
		outcome = "failed"
	case r.Reply != nil:
		outcome = "answered"
	}
	label := m.protocol(protocol)
	if slices.Contains(metricKinds, kind) {
		m.attempts.WithLabelValues(label, kind.String(), outcome).Inc()
	}
	m.took.WithLabelValues(label).Observe(took.Seconds())
	if protocol == "go" {
		m.running.Add(-1)
		result := "ok"
		if r.Err != nil || r.Reply != nil && r.Reply.Message.Kind == parley.Failure {
			result = "failed"
		}
		m.handlers.WithLabelValues(result).Inc()
	}
}

// snapshot reads the counters of other parts at each scrape.
type snapshot metrics

// Describe implements prometheus.Collector. It describes nothing: the metrics of Collect describe themselves.
func (s *snapshot) Describe(chan<- *prometheus.Desc) {}

const (
	gauge   = prometheus.GaugeValue
	counter = prometheus.CounterValue
)

// family gives a function that reports a value of a metric with the values of its labels.
func family(c chan<- prometheus.Metric, kind prometheus.ValueType, name, help string, labels ...string) func(v float64,
	values ...string) {
	desc := prometheus.NewDesc(name, help, labels, nil)
	return func(v float64, values ...string) { c <- prometheus.MustNewConstMetric(desc, kind, v, values...) }
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Collect implements prometheus.Collector.
func (s *snapshot) Collect(c chan<- prometheus.Metric) {
	n := s.n
	put := func(name, help string, v float64) { family(c, gauge, name, help)(v) }
	family(c, gauge, "parley_build_info", "Always 1; the labels say what runs.", "version", "go")(1, n.c.Version,
		runtime.Version())
	put("parley_ready", "1 while the hub takes messages.", truth(n.Ready() == nil))
	put("parley_start_time_seconds", "When the hub started.", float64(n.begun.UnixMilli())/1e3)
	h := n.hub.Stats()
	put("parley_lanes", "Pairs of recipient and conversation with something to deliver.", float64(h.Delivery.Lanes))
	put("parley_attempts_active", "Attempts in flight.", float64(h.Delivery.Active))
	put("parley_held_bytes", "Content of waiting messages that is kept in memory.", float64(h.Delivery.Held))
	put("parley_callers_waiting", "Callers that wait for an answer.", float64(h.Waiting))
	put("parley_handlers_active", "Handlers of this process that run.", float64(s.running.Load()))
	paused := 0
	for _, e := range n.directory.All() {
		if e.Paused {
			paused++
		}
	}
	agents := family(c, gauge, "parley_agents", "Agents in the directory, by state.", "state")
	agents(float64(h.Agents), "all")
	agents(float64(paused), "paused")
	failing, _ := n.hub.Failing()
	agents(float64(len(failing)), "failing")
	agents(float64(n.alerts.broken()), "broken")
	refusals := family(c, counter, "parley_refusals_total", "Refused messages, by protocol, step and code.", "protocol",
		"step", "code")
	refused := map[string]uint64{}
	for k, v := range n.hub.RefusalCounts() {
		refusals(float64(v), k.Protocol, k.Step, string(k.Code))
		refused[(*metrics)(s).protocol(k.Protocol)] += v
	}
	sums := family(c, counter, "parley_refused_total",
		"Refused messages, by protocol: the sums of parley_refusals_total, which has no series before its first refusal.",
		"protocol")
	for _, name := range s.protocols {
		sums(float64(refused[name]), name)
	}
	s.partitions(c)
	if free, total, ok := n.disk(); ok {
		put("parley_disk_free_bytes", "Free space where the journal is.", float64(free))
		put("parley_disk_bytes", "Size of the file system where the journal is.", float64(total))
	}
	s.guests(c)
	at, failed := n.lastReload()
	put("parley_config_reload_seconds", "When the configuration was last read.", float64(at.UnixMilli())/1e3)
	put("parley_config_reload_failed", "1 if the last reload was refused.", truth(failed))
}

// partitions reports the journal's partitions.
func (s *snapshot) partitions(c chan<- prometheus.Metric) {
	for _, p := range s.n.journal.Stats().Partitions {
		put := func(kind prometheus.ValueType, name, help string, v float64) {
			family(c, kind, name, help, "partition")(v, strconv.Itoa(p.Partition))
		}
		put(gauge, "parley_journal_records", "Records in the journal.", float64(p.Records))
		put(gauge, "parley_journal_bytes", "Bytes of the journal.", float64(p.Bytes))
		put(gauge, "parley_deliveries_open", "Deliveries that are not settled.", float64(p.Open))
		put(gauge, "parley_dead_letters", "Dead letters that were neither retried nor dropped.", float64(p.Dead))
		put(gauge, "parley_replay_keys", "Replay keys that are remembered.", float64(p.Keys+p.LongKeys))
		put(gauge, "parley_journal_queued", "Appends that wait for their group.", float64(p.Queued))
		put(gauge, "parley_journal_owned", "1 where this hub dispatches the partition.", truth(p.Owned))
		put(counter, "parley_journal_appended_total", "Records appended by this hub.", float64(p.Appended))
		put(counter, "parley_journal_groups_total", "Group commits that they took.", float64(p.Groups))
		put(counter, "parley_replays_total", "Messages refused as replays.", float64(p.Replays))
	}
}

// guests reports the budget of guests, and the connections.
func (s *snapshot) guests(c chan<- prometheus.Metric) {
	g := s.n.guestBudget()
	used := family(c, gauge, "parley_guests",
		"Used part of the guests' budget: memory and disk in bytes, others in number; disk: bytes that may be "+
			"recorded now.", "resource")
	most := family(c, gauge, "parley_guests_limit", "The budget of guests.", "resource")
	ends := family(c, counter, "parley_guests_total",
		"Guests refused, evicted and delayed for want of budget; written counts bytes.", "outcome")
	conns := family(c, gauge, "parley_connections",
		"Open connections of all listeners; guests are those on which no enrolled agent proved itself.", "of")
	connsMost := family(c, gauge, "parley_connections_limit", "How many connections there may be.", "of")
	closed := family(c, counter, "parley_connections_closed_total",
		"Connections closed for want of room: refused at once, or evicted.", "outcome")
	for name, v := range map[string][2]int64{"memory": {g.Memory, g.MaxMemory}, "disk": {g.Disk, g.MaxDisk},
		"registrations": {int64(g.Registrations), int64(g.MaxRegistrations)},
		"mailboxes":     {int64(g.Mailboxes), int64(g.MaxMailboxes)}} {
		used(float64(v[0]), name)
		most(float64(v[1]), name)
	}
	for name, v := range map[string]uint64{"refused": g.Refused, "evicted": g.Evicted, "delayed": g.Delayed,
		"written": g.Written} {
		ends(float64(v), name)
	}
	conns(float64(g.AllConnections), "all")
	conns(float64(g.Connections), "guests")
	connsMost(float64(g.MaxAllConnections), "all")
	connsMost(float64(g.MaxConnections), "guests")
	closed(float64(g.ConnectionsRefused), "refused")
	closed(float64(g.ConnectionsEvicted), "evicted")
}

// observer is the node as the hub's observer: it counts, and traces if
// tracing is on.
type observer struct{ n *Node }

func (o observer) Record(ctx context.Context, m *parley.Message) (context.Context, func(error)) {
	start := time.Now()
	ctx, span := o.n.tracer.record(ctx, m)
	return ctx, func(err error) {
		o.n.metrics.record.Observe(time.Since(start).Seconds())
		span(err)
	}
}

func (o observer) Attempt(ctx context.Context, a *delivery.Attempt, protocol string) (context.Context,
	func(delivery.Result)) {
	start := time.Now()
	kind := a.Message.Kind
	if protocol == "go" {
		o.n.metrics.running.Add(1)
	}
	ctx, span := o.n.tracer.attempt(ctx, a, protocol)
	return ctx, func(r delivery.Result) {
		o.n.metrics.attemptEnded(protocol, kind, &r, time.Since(start))
		span(&r)
	}
}
