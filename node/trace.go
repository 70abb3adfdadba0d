package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
)

// tracer makes spans for the steps of a message: received (SERVER), recorded, delivered
// (CLIENT) or handled. A nil tracer traces nothing.
type tracer struct {
	provider *sdk.TracerProvider
	t        trace.Tracer
}

// w3c is the form of trace ids between programs.
var w3c = propagation.TraceContext{}

// tracingWanted reads the standard variables: traces are exported only if an endpoint is
// named.
func tracingWanted(getenv func(string) string) bool {
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") || getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	return getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// openTracer makes a tracer by the OTEL_ variables, nil if none is set. They also set
// sampling, batches, headers and resource attributes.
func openTracer(ctx context.Context, c *Config) (*tracer, error) {
	if c.spans != nil {
		return newTracer(ctx, c.spans)
	}
	if !tracingWanted(os.Getenv) {
		return nil, nil
	}
	if p := os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"); p != "" && p != "http/protobuf" {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL=%s: the hub exports by http/protobuf", p)
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("export of traces: %w", err)
	}
	return newTracer(ctx, sdk.NewBatchSpanProcessor(exporter))
}

func newTracer(ctx context.Context, p sdk.SpanProcessor) (*tracer, error) {
	// The environment comes last, so that it wins.
	res, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "parley")), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(p), sdk.WithResource(res))
	return &tracer{provider: provider, t: provider.Tracer("github.com/parley-hub/parley")}, nil
}

// close sends the last spans.
func (t *tracer) close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last traces: %w", err)
	}
	return nil
}

// receive makes a span of every request to the protocol listener.
func (t *tracer) receive(h http.Handler) http.Handler {
	if t == nil {
		return h
	}
	return otelhttp.NewHandler(h, "receive", otelhttp.WithTracerProvider(t.provider), otelhttp.WithPropagators(w3c),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return "receive " + r.Method }))
}

// transport adds the trace to the headers of calls.
func (t *tracer) transport(next http.RoundTripper) http.RoundTripper {
	if t == nil {
		return next
	}
	return carrying{next}
}

type carrying struct{ next http.RoundTripper }

func (c carrying) RoundTrip(r *http.Request) (*http.Response, error) {
	if trace.SpanContextFromContext(r.Context()).IsValid() {
		r = r.Clone(r.Context())
		w3c.Inject(r.Context(), propagation.HeaderCarrier(r.Header))
	}
	return c.next.RoundTrip(r)
}

// parent reads the trace and the span that a message names as its parent.
func parent(m *parley.Message) trace.SpanContext {
	if m.Trace.Parent == "" {
		return trace.SpanContext{}
	}
	ctx := w3c.Extract(context.Background(), propagation.MapCarrier{"traceparent": m.Trace.Parent,
		"tracestate": m.Trace.State})
	return trace.SpanContextFromContext(ctx)
}

// within makes later spans children of a span.
func within(m *parley.Message, s trace.SpanContext) {
	c := propagation.MapCarrier{}
	w3c.Inject(trace.ContextWithSpanContext(context.Background(), s), c)
	m.Trace.Parent, m.Trace.State = c["traceparent"], c["tracestate"]
}

// about describes a message; its content is in no span.
func about(m *parley.Message) []attribute.KeyValue {
	out := []attribute.KeyValue{
		attribute.String("messaging.system", "parley"),
		attribute.String("messaging.message.id", m.ID.String()),
		attribute.String("messaging.message.conversation_id", m.Conversation.String()),
		attribute.String("parley.kind", m.Kind.String()),
		attribute.String("parley.from", m.From),
		attribute.String("parley.to", m.To),
		attribute.String("parley.origin", m.Origin.Protocol),
	}
	if m.Skill != "" {
		out = append(out, attribute.String("parley.skill", m.Skill))
	}
	for k, v := range m.Trace.Foreign { // the protocol's own ids, by their names
		if k != "parley.request" {
			out = append(out, attribute.String(k, v))
		}
	}
	return out
}

// record makes the span of a message's record. It continues the trace that the message
// itself names. If the request that brought the message belongs to another trace, the
// span has a link to that.
func (t *tracer) record(ctx context.Context, m *parley.Message) (context.Context, func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	carrier, named := trace.SpanContextFromContext(ctx), parent(m)
	o := []trace.SpanStartOption{trace.WithAttributes(about(m)...), trace.WithSpanKind(trace.SpanKindInternal)}
	sctx := ctx
	if sameTrace := carrier.IsValid() && carrier.TraceID() == named.TraceID(); named.IsValid() && !sameTrace {
		sctx = trace.ContextWithRemoteSpanContext(ctx, named)
		if carrier.IsValid() {
			o = append(o, link(carrier, "received"))
		}
	}
	_, span := t.t.Start(sctx, "record", o...)
	within(m, span.SpanContext())
	return ctx, func(err error) {
		failed(span, err)
		span.End()
	}
}

func link(to trace.SpanContext, kind string) trace.SpanStartOption {
	return trace.WithLinks(trace.Link{SpanContext: to,
		Attributes: []attribute.KeyValue{attribute.String("parley.link", kind)}})
}

// attempt makes the span of an attempt. It belongs to the message's trace; an attempt for
// which no caller waits also has a link to the record, because it may begin long after
// that.
func (t *tracer) attempt(ctx context.Context, a *delivery.Attempt, protocol string) (context.Context,
	func(*delivery.Result)) {
	if t == nil {
		return ctx, func(*delivery.Result) {}
	}
	m := a.Message
	recorded := parent(m)
	o := []trace.SpanStartOption{trace.WithAttributes(append(about(m), attribute.String("parley.protocol", protocol),
		attribute.Int("parley.attempt", a.Number), attribute.String("parley.recipient", a.To))...)}
	name, kind := "deliver "+protocol, trace.SpanKindClient
	if protocol == "go" {
		name, kind = "handle", trace.SpanKindInternal
	}
	o = append(o, trace.WithSpanKind(kind))
	if recorded.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, recorded)
		if !a.Sync || a.Number > 1 {
			o = append(o, link(recorded, "accepted"))
		}
	}
	ctx, span := t.t.Start(ctx, name, o...)
	c := *m
	within(&c, span.SpanContext())
	a.Message = &c
	return ctx, func(r *delivery.Result) {
		e := r.Err
		if e == nil && r.Reply != nil {
			e = r.Reply.Message.Error
		}
		if e != nil {
			span.SetAttributes(attribute.String("error.type", string(e.Code)))
			failed(span, e)
		}
		span.End()
	}
}

func failed(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, string(parley.CodeOf(err)))
	}
}
