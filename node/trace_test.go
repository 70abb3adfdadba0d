package node

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/delivery"
	"github.com/parley-hub/parley/hub"
)

func spanNamed(t *testing.T, list []sdk.ReadOnlySpan, name string) sdk.ReadOnlySpan {
	t.Helper()
	for _, s := range list {
		if s.Name() == name {
			return s
		}
	}
	t.Fatalf("no span %q among %d", name, len(list))
	return nil
}

func attributeOf(s sdk.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

const foreign = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// TestSpans: a message's own trace goes on through record and handler; the
// protocol's ids are attributes.
func TestSpans(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	n := running(t, Config{spans: spans})
	reply, err := n.Hub().Ask(context.Background(), hub.Submission{Scope: "s",
		Message: &parley.Message{Kind: parley.Request, From: "me", To: "echo", Skill: "say",
			Parts:  []parley.Part{{MediaType: "application/json", Data: []byte(`{}`)}},
			Trace:  parley.Trace{Parent: foreign, Foreign: map[string]string{"samvad.traceId": "t-1"}},
			Origin: parley.Origin{Protocol: "go"}}})
	if err != nil || reply.Kind != parley.Response {
		t.Fatalf("%+v, %v", reply, err)
	}
	list := spans.Ended()
	record, handle := spanNamed(t, list, "record"), spanNamed(t, list, "handle")
	for _, s := range []sdk.ReadOnlySpan{record, handle} {
		if s.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s is in another trace: %s", s.Name(), s.SpanContext().TraceID())
		}
		if attributeOf(s, "samvad.traceId") != "t-1" || attributeOf(s, "messaging.message.id") == "" ||
			attributeOf(s, "parley.to") != "echo" {
			t.Errorf("%s: %v", s.Name(), s.Attributes())
		}
	}
	if record.Parent().SpanID().String() != "b7ad6b7169203331" ||
		handle.Parent().SpanID() != record.SpanContext().SpanID() {
		t.Errorf("parents: %s, %s", record.Parent().SpanID(), handle.Parent().SpanID())
	}
	if len(handle.Links()) != 0 {
		t.Error("an attempt whose caller waits needs no link")
	}
	if !strings.Contains(reply.Trace.Parent, handle.SpanContext().SpanID().String()) {
		t.Errorf("the reply's trace: %s", reply.Trace.Parent)
	}
}

// TestSpanOfALaterDelivery: a delivery without a waiting caller has a link to its record,
// and is a CLIENT span if it leaves the hub.
func TestSpanOfALaterDelivery(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tr, err := newTracer(context.Background(), spans)
	if err != nil {
		t.Fatal(err)
	}
	m := &parley.Message{Kind: parley.Request, Trace: parley.Trace{Parent: foreign}}
	a := delivery.Attempt{Message: m, To: "bob", Number: 2}
	ctx, end := tr.attempt(context.Background(), &a, "samvad")
	var sent string
	r, err := http.NewRequestWithContext(ctx, "POST", "http://bob.test/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tr.transport(roundTrip(func(r *http.Request) (*http.Response, error) {
		sent = r.Header.Get("Traceparent")
		return &http.Response{Body: http.NoBody}, nil
	})).RoundTrip(r); err != nil {
		t.Fatal(err)
	}
	end(&delivery.Result{Err: parley.Fail(parley.Unavailable, nil, "away")})
	s := spanNamed(t, spans.Ended(), "deliver samvad")
	if s.SpanKind() != trace.SpanKindClient || len(s.Links()) != 1 ||
		s.Links()[0].SpanContext.SpanID().String() != "b7ad6b7169203331" ||
		attributeOf(s, "error.type") != "unavailable" || attributeOf(s, "parley.attempt") != "2" {
		t.Errorf("%v %v %v", s.SpanKind(), s.Links(), s.Attributes())
	}
	if m.Trace.Parent != foreign || a.Message.Trace.Parent == foreign || sent != a.Message.Trace.Parent ||
		r.Header.Get("Traceparent") != "" {
		t.Errorf("%q %q %q", m.Trace.Parent, a.Message.Trace.Parent, sent)
	}
	if err := tr.close(context.Background()); err != nil {
		t.Error(err)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestServerSpan: a request to the protocol listener has a span, which continues the
// trace of its header; a message of another trace has a link to it.
func TestServerSpan(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	n := running(t, Config{spans: spans})
	r, err := http.NewRequest("POST", n.Addresses().Local+"/agents/echo/agent/message", bytes.NewReader([]byte("{}")))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Traceparent", foreign)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err := n.http.Shutdown(context.Background()); err != nil { // this ends its spans
		t.Fatal(err)
	}
	s := spanNamed(t, spans.Ended(), "receive POST")
	if s.SpanKind() != trace.SpanKindServer ||
		s.SpanContext().TraceID().String() != "0af7651916cd43dd8448eb211c80319c" {
		t.Errorf("%v %v", s.SpanKind(), s.SpanContext())
	}
	m := &parley.Message{Trace: parley.Trace{Parent: "00-11111111111111111111111111111111-2222222222222222-01"}}
	_, end := n.tracer.record(trace.ContextWithSpanContext(context.Background(), s.SpanContext()), m)
	end(nil)
	record := spanNamed(t, spans.Ended(), "record")
	if len(record.Links()) != 1 || record.Links()[0].SpanContext.SpanID() != s.SpanContext().SpanID() ||
		record.Parent().SpanID().String() != "2222222222222222" {
		t.Errorf("%v %v", record.Links(), record.Parent())
	}
}

func TestTracingByTheStandardVariables(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want bool
	}{
		{nil, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, true},
		{map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, true},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, false},
		{map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}, false},
		{map[string]string{"OTEL_SERVICE_NAME": "x"}, false},
	} {
		if got := tracingWanted(func(k string) string { return c.env[k] }); got != c.want {
			t.Errorf("%v: %v", c.env, got)
		}
	}
	var bodies atomic.Int64
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil && r.URL.Path == "/v1/traces" && bytes.Contains(b, []byte("hub-of-mine")) &&
			bytes.Contains(b, []byte("record")) {
			bodies.Add(1)
		}
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_SERVICE_NAME", "hub-of-mine")
	n := running(t, Config{})
	if _, err := ask(t, n, `{"a":1}`); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if bodies.Load() == 0 {
		t.Error("no spans arrived")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	if _, err := openTracer(context.Background(), &Config{}); err == nil {
		t.Error("another protocol is taken silently")
	}
}
