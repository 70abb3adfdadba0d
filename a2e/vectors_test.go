package a2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/parley-hub/parley/internal/jsonx"
)

type vectorCase struct {
	Name   string          `json:"name"`
	Input  json.RawMessage `json:"input"`
	Expect json.RawMessage `json:"expect"`
}

var vectorFiles = map[string]func(t *testing.T, cases []vectorCase){
	"chain_expressions.json": eachCase(vectorChain),
	"correlation.json":       eachBubble(vectorCorrelation),
	"framing.json":           eachBubble(vectorFraming),
	"handshake.json":         eachBubble(vectorHandshake),
	"host_frames.json":       eachBubble(vectorHostFrame),
	"http.json":              eachCase(vectorHTTP),
	"memory_ops.json":        eachBubble(vectorMemory),
	"messages_invalid.json":  eachBubble(vectorInvalid),
	"messages_valid.json":    eachCase(vectorValid),
	"numbers.json":           eachBubble(vectorNumber),
	"scenarios.json":         eachBubble(vectorScenario),
	"sessions.json":          eachBubble(vectorSession),
	"sse_agent_reader.json":  eachBubble(vectorSSE),
	"tool_calls.json":        eachBubble(vectorToolCall),
	"tools_list.json":        vectorToolsList,
}

func eachCase(run func(*testing.T, vectorCase)) func(*testing.T, []vectorCase) {
	return func(t *testing.T, cases []vectorCase) {
		for _, c := range cases {
			t.Run(c.Name, func(t *testing.T) { run(t, c) })
		}
	}
}

// eachBubble runs cases with their own clock.
func eachBubble(run func(*testing.T, vectorCase)) func(*testing.T, []vectorCase) {
	return eachCase(func(t *testing.T, c vectorCase) {
		synctest.Test(t, func(t *testing.T) { run(t, c) })
	})
}

func TestVectors(t *testing.T) {
	root := os.Getenv("PARLEY_VECTORS")
	if root == "" {
		root = filepath.Join("..", "testdata", "vectors")
	}
	dir := filepath.Join(root, "a2e")
	files, err := os.ReadDir(dir)
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors in %s: %v", dir, err)
	}
	for _, f := range files {
		name := f.Name()
		if name == "README.md" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			run, ok := vectorFiles[name]
			if !ok {
				t.Fatalf("no runner for %s", name)
			}
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			var file struct {
				Description string       `json:"description"`
				Source      string       `json:"source"`
				Cases       []vectorCase `json:"cases"`
			}
			into(t, b, &file)
			if len(file.Cases) == 0 {
				t.Fatal("no cases")
			}
			run(t, file.Cases)
		})
	}
}

// into decodes raw, and fails on members that the runner does not know.
func into(t *testing.T, raw json.RawMessage, v any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		t.Fatalf("%s: %v", clip(string(raw), 200), err)
	}
}

// asObject gives a value that must be an object; asArray one that must be an
// array.
func asObject(t *testing.T, v any) map[string]any {
	t.Helper()
	m, ok := v.(map[string]any)
	if !ok {
		t.Fatalf("%v is no object", v)
	}
	return m
}

func asArray(t *testing.T, v any) []any {
	t.Helper()
	l, ok := v.([]any)
	if !ok {
		t.Fatalf("%v is no array", v)
	}
	return l
}

type outcome struct {
	Outcome      string  `json:"outcome"`
	Code         string  `json:"code"`
	ReqID        *string `json:"req_id"`
	DetailReason string  `json:"detail_reason"`
}

var refusalCodes = []string{"parse_error", "invalid_message", "schema_violation", "version_mismatch", "unauthorized"}

// checkOutcome compares the host's reaction to one line.
func checkOutcome(t *testing.T, want outcome, f frame) {
	t.Helper()
	if f == nil {
		t.Fatalf("no frame, want %+v", want)
	}
	if want.ReqID != nil && *want.ReqID != "<any>" && f.str("req_id") != *want.ReqID {
		t.Errorf("req_id %q, want %q", f.str("req_id"), *want.ReqID)
	}
	refused := f.str("type") == "error" && slices.Contains(refusalCodes, f.str("code"))
	switch want.Outcome {
	case "accept":
		if refused {
			t.Errorf("refused: %v", f)
		}
	case "accept_or_schema_violation":
		if refused && f.str("code") != "schema_violation" {
			t.Errorf("refused: %v", f)
		}
	case "error":
		if f.str("type") != "error" || f.str("code") != want.Code {
			t.Errorf("got %v, want error %s", f, want.Code)
		}
		detail, ok := f["detail"].(map[string]any)
		if !ok || want.DetailReason != "" && detail["reason"] != want.DetailReason {
			t.Errorf("detail %v, want reason %q", f["detail"], want.DetailReason)
		}
	default:
		t.Fatalf("unknown outcome %q", want.Outcome)
	}
}

func vectorHostFrame(t *testing.T, c vectorCase) {
	var in struct {
		Line string `json:"line"`
	}
	var exp struct {
		Parley    outcome         `json:"parley"`
		Reference json.RawMessage `json:"reference"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	co := connect(t, testHost())
	co.handshake("test-token-a")
	co.send(in.Line)
	synctest.Wait()
	m, err := Decode([]byte(in.Line))
	if err == nil && m.Type == "shutdown" && exp.Parley.Outcome == "accept" { // served, never answered (A2E §8.4)
		co.quiet()
		return
	}
	if exp.Parley.Outcome != "none" {
		f := co.next()
		for f != nil && strings.HasSuffix(f.str("type"), "/event") {
			f = co.next()
		}
		checkOutcome(t, exp.Parley, f)
	}
	co.quiet()
	co.send(`{"type":"ping","id":"after"}`) // usable afterwards
	if f := co.next(); f.str("type") != "pong" || f.str("req_id") != "after" {
		t.Errorf("after it: %v", f)
	}
}

// compact re-encodes an object without white space.
func compact(t *testing.T, raw []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// sameJSON compares token by token, numbers by value, and gives the path of the first
// difference. Members must be in the same order. It accepts the differences that the
// digest requires (A2E §6.18); generated values are compared by type.
func sameJSON(path string, got, want *json.Decoder, generated func(path string) bool) error {
	g, err := got.Token()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	w, err := want.Token()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	gn, gIsNum := g.(json.Number)
	wn, wIsNum := w.(json.Number)
	switch {
	case gIsNum && wIsNum:
		a, _ := gn.Float64()
		b, _ := wn.Float64()
		if a != b && !generated(path) {
			return fmt.Errorf("%s: %v, want %v", path, gn, wn)
		}
		return nil
	case g == nil && (strings.HasSuffix(path, ".provider_config") && w == false ||
		strings.HasSuffix(path, ".arguments") && w == json.Delim('{')):
		if w != false {
			_, err = want.Token()
		}
		return err
	case reflect.TypeOf(g) == reflect.TypeOf(w) && generated(path):
		return nil
	case g != w:
		return fmt.Errorf("%s: %v, want %v", path, g, w)
	}
	switch g {
	case json.Delim('{'):
		for want.More() && got.More() {
			a, _ := got.Token()
			b, _ := want.Token()
			if a != b {
				return fmt.Errorf("%s: member %v, want %v", path, a, b)
			}
			if err := sameJSON(fmt.Sprint(path, ".", a), got, want, generated); err != nil {
				return err
			}
		}
	case json.Delim('['):
		for i := 0; want.More() && got.More(); i++ {
			if err := sameJSON(fmt.Sprint(path, "[", i, "]"), got, want, generated); err != nil {
				return err
			}
		}
	default:
		return nil
	}
	a, err := got.Token()
	if err != nil {
		return err
	}
	if b, err := want.Token(); err != nil || a != b {
		return fmt.Errorf("%s: ends with %v, want %v", path, a, b)
	}
	return nil
}

func vectorValid(t *testing.T, c vectorCase) {
	var in struct {
		Message json.RawMessage `json:"message"`
	}
	var exp struct {
		Valid     bool            `json:"valid"`
		Line      string          `json:"reference_line"`
		OwnLine   json.RawMessage `json:"reference_accepts_own_line"`
		RoundTrip json.RawMessage `json:"round_trip_stable"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	if !exp.Valid {
		t.Fatal("not valid: wrong file")
	}
	for _, line := range []string{compact(t, in.Message), exp.Line} {
		m, err := Decode([]byte(line))
		if err != nil {
			t.Fatalf("Decode(%s): %v", line, err)
		}
		if err := m.Check(); err != nil {
			t.Fatalf("Check(%s): %v %s", line, err, asError(err, "").Detail)
		}
		if !m.Known() {
			t.Fatalf("type %q is not registered", m.Type)
		}
		// Defaults, order of members, escapes: all as the reference writes them, after
		// the member a2e.
		full := m.Complete(time.Unix(1716123456, 0))
		if m.Version == Version {
			checkOutput(t, append(full[:len(full):len(full)], '\n'))
		}
		rest, ok := bytes.CutPrefix(full, []byte(`{"a2e":"`+m.Version+`",`))
		if !ok {
			t.Fatalf("output %s", full)
		}
		got := json.NewDecoder(io.MultiReader(strings.NewReader("{"), bytes.NewReader(rest)))
		want := json.NewDecoder(strings.NewReader(exp.Line))
		got.UseNumber()
		want.UseNumber()
		generated := func(path string) bool {
			name := strings.TrimPrefix(path, ".")
			f := m.typ.field(name)
			if f == nil || m.member(name) != nil {
				return name == "id" && m.member("id") == nil || name == "ts" && m.member("ts") == nil
			}
			switch f.Default {
			case "now", "hex32", "hex8", "uuid", "feedback":
				return true
			}
			return false
		}
		if err := sameJSON("", got, want, generated); err != nil {
			t.Errorf("%v\n got %s\nwant %s", err, full, exp.Line)
		}
		again, err := Decode(full)
		if err != nil || again.Check() != nil {
			t.Fatalf("own output %s: %v", full, err)
		}
		if twice := again.Complete(time.Unix(1716123456, 0)); !bytes.Equal(twice, full) {
			t.Errorf("not stable: %s then %s", full, twice)
		}
	}
}

func vectorInvalid(t *testing.T, c vectorCase) {
	var in struct {
		Message json.RawMessage `json:"message"`
	}
	var exp struct {
		Valid  bool `json:"valid"`
		Errors []struct {
			Path string `json:"path"`
			Kind string `json:"kind"`
		} `json:"errors"`
		Code string `json:"parley_code"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	if exp.Valid {
		t.Fatal("valid: wrong file")
	}
	line := compact(t, in.Message)
	m, e := builtin().decode([]byte(line), DefaultMaxDepth)
	if m == nil {
		t.Fatalf("%s is no object: %v", line, e)
	}
	class := m.Class
	if e == nil {
		e = m.check()
	}
	if e == nil || string(e.Code) != exp.Code {
		t.Fatalf("%s: %v, want %s", line, e, exp.Code)
	}
	var detail struct {
		Errors []schemaFault `json:"errors"`
	}
	if err := jsonx.Decode(e.Detail, &detail); err != nil {
		t.Fatalf("detail %s: %v", e.Detail, err)
	}
	var got, want []string
	for _, f := range detail.Errors {
		got = append(got, f.Path)
	}
	for _, f := range exp.Errors {
		want = append(want, f.Path)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(slices.Compact(got), slices.Compact(want)) {
		t.Errorf("%s: faults %v, want %v", line, got, want)
	}
	// Requests get such an answer; responses and events are dropped.
	h := testHost()
	h.Handler = func(context.Context, *Request) (Response, error) {
		t.Error("served")
		return Response{}, ErrInvalid
	}
	co := connect(t, h)
	co.handshake("test-token-a")
	co.send(line)
	if class != ClassRequest {
		co.quiet()
		return
	}
	f := co.next()
	if f.str("type") != "error" || f.str("code") != exp.Code {
		t.Errorf("host answered %v", f)
	}
	co.quiet()
}

func vectorHandshake(t *testing.T, c vectorCase) {
	var in struct {
		Capabilities []string        `json:"host_capabilities"`
		Token        string          `json:"host_auth_token"`
		Frame        json.RawMessage `json:"frame"`
	}
	var exp struct {
		Parley struct {
			Type     string   `json:"type"`
			OK       *bool    `json:"ok"`
			Reason   string   `json:"reason"`
			ReqID    string   `json:"req_id"`
			Accepted []string `json:"accepted"`
			Code     string   `json:"code"`
		} `json:"parley"`
		Reference json.RawMessage `json:"reference"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	h := &Host{Auth: StaticTokens{"the-agent": in.Token}, Capabilities: map[string]Provider{}}
	if in.Token == "" {
		h.Auth = Anonymous("anybody")
	}
	for _, name := range in.Capabilities {
		h.Capabilities[name] = Handler(func(context.Context, *Request) (Response, error) { return Response{}, nil })
	}
	co := connect(t, h)
	co.send(compact(t, in.Frame))
	f := co.next()
	want := exp.Parley
	if f.str("type") != want.Type || f.str("req_id") != want.ReqID {
		t.Fatalf("got %v, want %+v", f, want)
	}
	if want.Type == "error" {
		if f.str("code") != want.Code {
			t.Errorf("code %v, want %s", f["code"], want.Code)
		}
		return
	}
	if want.OK == nil || f["ok"] != *want.OK || f.str("reason") != want.Reason {
		t.Errorf("ok %v, reason %q, want %+v", f["ok"], f.str("reason"), want)
	}
	got := []string{}
	for _, a := range asArray(t, f["accepted_caps"]) {
		got = append(got, frame(asObject(t, a)).str("capability"))
	}
	if !slices.Equal(got, want.Accepted) {
		t.Errorf("accepted %v, want %v", got, want.Accepted)
	}
	if !isHex32(f.str("session_id")) {
		t.Errorf("session_id %q", f.str("session_id"))
	}
}

var generatorPart = regexp.MustCompile(`<(\d+) times (.)>`)

// generate builds the stream that a generator describes: "line = … + LF".
func generate(t *testing.T, text string) string {
	t.Helper()
	line, ok := strings.CutPrefix(text, "line = ")
	line, lf := strings.CutSuffix(line, " + LF")
	if !ok || !lf || !generatorPart.MatchString(line) {
		t.Fatalf("unknown generator %q", text)
	}
	return generatorPart.ReplaceAllStringFunc(line, func(m string) string {
		part := generatorPart.FindStringSubmatch(m)
		n, _ := strconv.Atoi(part[1])
		return strings.Repeat(part[2], n)
	}) + "\n"
}

func vectorFraming(t *testing.T, c vectorCase) {
	var in struct {
		Chunks    []string `json:"chunks_b64"`
		Generator string   `json:"generator"`
		Length    int      `json:"length"`
	}
	var exp struct {
		Reactions []outcome       `json:"parley_host_reactions"`
		Reader    json.RawMessage `json:"reference_agent_reader"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	var chunks []string
	for _, b := range in.Chunks {
		raw, err := base64.StdEncoding.DecodeString(b)
		if err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, string(raw))
	}
	if in.Generator != "" {
		all := generate(t, in.Generator)
		if in.Length != 0 && len(all) != in.Length {
			t.Fatalf("generated %d bytes, want %d", len(all), in.Length)
		}
		chunks = []string{all}
	}
	h := testHost()
	pr, pw := io.Pipe()
	or, ow := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- h.ServeStdio(t.Context(), pr, ow)
		_ = ow.Close()
	}()
	go func() {
		_, _ = pw.Write([]byte(`{"type":"handshake/req","id":"hs","auth_token":"test-token-a"}` + "\n"))
		for _, chunk := range chunks {
			_, _ = pw.Write([]byte(chunk))
		}
		_ = pw.Close()
	}()
	out, err := io.ReadAll(or)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Errorf("served: %v", err)
	}
	lines := bytes.SplitAfter(out, []byte("\n"))
	if len(lines) < 2 || len(lines[len(lines)-1]) > 0 {
		t.Fatalf("no answer to the handshake, or an unfinished line: %q", out)
	}
	lines = lines[1 : len(lines)-1]
	if len(lines) != len(exp.Reactions) {
		t.Fatalf("%d reactions, want %d: %s", len(lines), len(exp.Reactions), out)
	}
	for i, line := range lines {
		checkOutput(t, line)
		checkOutcome(t, exp.Reactions[i], parseFrame(t, line))
	}
}

func vectorCorrelation(t *testing.T, c vectorCase) {
	var in struct {
		Frames     []string `json:"host_frames"`
		Registered string   `json:"registered"`
		Note       string   `json:"note"`
	}
	var exp struct {
		Reference json.RawMessage `json:"reference_agent"`
		Parley    struct {
			Outcome    string         `json:"outcome"`
			Type       string         `json:"type"`
			Code       string         `json:"code"`
			Message    *string        `json:"message"`
			Retryable  bool           `json:"retryable"`
			Detail     map[string]any `json:"detail"`
			Capability string         `json:"capability_name"`
			Events     json.Number    `json:"events"`
			Note       string         `json:"note"`
			Delivered  []struct {
				Type string         `json:"type"`
				Kind string         `json:"kind"`
				Seq  json.Number    `json:"seq"`
				Data map[string]any `json:"data"`
			} `json:"events_delivered"`
		} `json:"parley_agent"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	want := exp.Parley
	client := scriptedHost(t, func(ping string) []string {
		var out []string
		for _, f := range in.Frames {
			out = append(out, strings.ReplaceAll(f, "$ID", ping))
		}
		return out
	})
	client.Registry = registered(t, in.Registered)
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	var events []Event
	var final *Envelope
	var failed error
	for e, err := range client.Stream(ctx, Message{Type: "ping"}) {
		switch {
		case err != nil:
			failed = err
		case e.Final:
			final = e.Envelope
		default:
			events = append(events, e)
		}
	}
	if len(events) != len(want.Delivered) || want.Events != "" && want.Events.String() != strconv.Itoa(len(events)) {
		t.Fatalf("%d events, want %d (%s)", len(events), len(want.Delivered), want.Events)
	}
	for i, e := range events {
		w := want.Delivered[i]
		var data map[string]any
		d := json.NewDecoder(bytes.NewReader(e.Data))
		d.UseNumber()
		_ = d.Decode(&data)
		seq, _ := w.Seq.Int64()
		if e.Type != w.Type || string(e.Kind) != w.Kind || e.Seq != seq || !reflect.DeepEqual(data, w.Data) {
			t.Errorf("event %d: %s, want %+v", i, e.Raw(), w)
		}
	}
	switch want.Outcome {
	case "response":
		if failed != nil || final == nil || final.Type != want.Type {
			t.Errorf("got %v, %v, want %s", final, failed, want.Type)
		}
	case "timeout":
		if !errors.Is(failed, ErrTimeout) {
			t.Errorf("got %v, %v, want a timeout", final, failed)
		}
	case "error":
		var e *Error
		if !errors.As(failed, &e) {
			t.Fatalf("got %v, %v, want an error", final, failed)
		}
		if want.Message == nil { // only a note: the test checks that the host fails at once
			if errors.Is(failed, ErrTimeout) || e.Code == "" || string(e.Detail) != "{}" {
				t.Errorf("got %v, detail %s", failed, e.Detail)
			}
			return
		}
		var detail map[string]any
		d := json.NewDecoder(bytes.NewReader(e.Detail))
		d.UseNumber()
		_ = d.Decode(&detail)
		if string(e.Code) != want.Code || e.Text != *want.Message || e.Retryable != want.Retryable ||
			e.Capability != want.Capability || !reflect.DeepEqual(detail, want.Detail) {
			t.Errorf("got %+v, want %+v", e, want)
		}
	default:
		t.Fatalf("unknown outcome %q", want.Outcome)
	}
}

// registered gives a registry of the core, and of a family of types such as tool/* if
// the text names one.
func registered(t *testing.T, text string) *Registry {
	t.Helper()
	family, ok := strings.CutSuffix(text, "/*")
	if !ok && text != "core only" {
		t.Fatalf("unknown set of types %q", text)
	}
	types := map[string]*Type{}
	for _, name := range builtin().Names() {
		if slices.Contains(coreTypes[:], name) || ok && strings.HasPrefix(name, family+"/") {
			types[name], _ = builtin().Lookup(name)
		}
	}
	if ok == (len(types) == len(coreTypes)) {
		t.Fatalf("no types %q", text)
	}
	r := &Registry{}
	r.types.Store(&types)
	return r
}

// scriptedHost is a host that answers a handshake, and then one request with
// the given lines.
func scriptedHost(t *testing.T, script func(id string) []string) *Client {
	t.Helper()
	c := &Client{Dial: func(context.Context) (io.ReadWriteCloser, error) {
		ours, theirs := net.Pipe()
		go func() {
			r := NewReader(theirs)
			for {
				m, err := r.ReadMessage(nil)
				if err != nil {
					return
				}
				answers := []string{fmt.Sprintf(`{"type":"handshake/resp","req_id":%q}`, m.ID)}
				switch {
				case m.Class != ClassRequest:
					continue
				case m.Type != "handshake/req":
					answers = script(m.ID)
				}
				for _, a := range answers {
					if _, err := io.WriteString(theirs, a+"\n"); err != nil {
						return
					}
				}
			}
		}()
		return ours, nil
	}}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// subMatch reports whether every member of want is in got; $capture:X and $X
// stand for values.
func subMatch(path string, got, want any, vars map[string]any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: %v is no object", path, got)
		}
		for k, v := range w {
			have, ok := g[k]
			if !ok {
				return fmt.Errorf("%s.%s is missing", path, k)
			}
			if err := subMatch(path+"."+k, have, v, vars); err != nil {
				return err
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s: %v, want %v", path, got, want)
		}
		for i := range w {
			if err := subMatch(fmt.Sprint(path, "[", i, "]"), g[i], w[i], vars); err != nil {
				return err
			}
		}
		return nil
	case string:
		if name, ok := strings.CutPrefix(w, "$capture:"); ok {
			vars[name] = got
			return nil
		}
		if name, ok := strings.CutPrefix(w, "$"); ok {
			if got != vars[name] {
				return fmt.Errorf("%s: %v, want %v", path, got, vars[name])
			}
			return nil
		}
		if s, ok := got.(string); ok && strings.HasSuffix(path, ".code") && slices.Contains(strings.Split(w, "|"), s) {
			return nil
		}
	case json.Number:
		if g, ok := got.(json.Number); ok {
			a, _ := g.Float64()
			b, _ := w.Float64()
			if a == b {
				return nil
			}
		}
	}
	if got != want {
		return fmt.Errorf("%s: %v, want %v", path, got, want)
	}
	return nil
}

func substitute(v any, vars map[string]any, i int) any {
	switch x := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range x {
			out[k] = substitute(e, vars, i)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for n, e := range x {
			out[n] = substitute(e, vars, i)
		}
		return out
	case string:
		if name, ok := strings.CutPrefix(x, "$"); ok {
			if val, ok := vars[name]; ok {
				return val
			}
		}
		return strings.ReplaceAll(x, "$i", strconv.Itoa(i))
	}
	return v
}

func vectorScenario(t *testing.T, c vectorCase) {
	var in struct {
		Steps []struct {
			On      string         `json:"on"`
			Send    map[string]any `json:"send"`
			Repeat  int            `json:"repeat"`
			Expect  []any          `json:"expect"`
			Any     []any          `json:"expect_any_order"`
			Each    int            `json:"expect_each"`
			Silence int            `json:"expect_silence_ms"`
			CloseIn int            `json:"expect_close_within_ms"`
			Close   bool           `json:"close"`
		} `json:"steps"`
	}
	var exp string
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	if exp != "every expect step holds" || len(in.Steps) == 0 {
		t.Fatalf("%d steps, %q", len(in.Steps), exp)
	}
	h := testHost()
	conns := map[string]*conn{}
	vars := map[string]any{}
	for n, s := range in.Steps {
		co := conns[s.On]
		if co == nil {
			co = connect(t, h)
			conns[s.On] = co
		}
		switch {
		case s.Send != nil:
			for i := range max(s.Repeat, 1) {
				b, err := json.Marshal(substitute(s.Send, vars, i))
				if err != nil {
					t.Fatal(err)
				}
				co.send(string(b))
			}
		case len(s.Expect) > 0:
			lists := make([][]any, max(s.Each, 1)) // each in its own order
			for i := range lists {
				lists[i] = asArray(t, substitute(s.Expect, nil, i))
			}
			expectFrames(t, n, co, lists, vars)
		case len(s.Any) > 0:
			lists := make([][]any, len(s.Any))
			for i, want := range s.Any {
				lists[i] = []any{want}
			}
			expectFrames(t, n, co, lists, vars)
		case s.Silence > 0:
			_ = sleep(t.Context(), float64(s.Silence)/1000)
			co.quiet()
		case s.CloseIn > 0:
			start := time.Now()
			if f := co.next(); f != nil {
				t.Fatalf("step %d: %v, want the end", n, f)
			}
			if d := time.Since(start); d > time.Duration(s.CloseIn)*time.Millisecond {
				t.Errorf("step %d: closed after %v", n, d)
			}
		case s.Close:
			co.close()
			delete(conns, s.On)
		default:
			t.Fatalf("step %d does nothing known: %+v", n, s)
		}
	}
}

// expectFrames reads the frames of several lists: those of one list in its
// order, those of different lists in any.
func expectFrames(t *testing.T, step int, co *conn, lists [][]any, vars map[string]any) {
	t.Helper()
	left := 0
	for _, l := range lists {
		left += len(l)
	}
	for ; left > 0; left-- {
		f := co.next()
		if f == nil {
			t.Fatalf("step %d: closed, want %v", step, lists)
		}
		var faults []error
		at := slices.IndexFunc(lists, func(l []any) bool {
			if len(l) == 0 {
				return false
			}
			err := subMatch("", map[string]any(f), l[0], vars)
			if err != nil {
				faults = append(faults, err)
			}
			return err == nil
		})
		if at < 0 {
			t.Fatalf("step %d: unexpected %v: %v", step, f, errors.Join(faults...))
		}
		lists[at] = lists[at][1:]
	}
}

func vectorToolsList(t *testing.T, cases []vectorCase) {
	var first []ToolDefinition
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			var in struct {
				Request   json.RawMessage `json:"request"`
				Catalogue json.RawMessage `json:"catalogue"`
			}
			var exp struct {
				Names []string `json:"names"`
			}
			into(t, c.Input, &in)
			into(t, c.Expect, &exp)
			if string(in.Catalogue) != `"see first case"` {
				first = nil
				into(t, in.Catalogue, &first)
			}
			if len(first) == 0 || jsonx.Kind(in.Request) != '{' {
				t.Fatal("no catalogue, or no request")
			}
			synctest.Test(t, func(t *testing.T) {
				box := &Toolbox{}
				for _, d := range first {
					box.Add(d, nil)
				}
				co := connect(t, &Host{Auth: Anonymous("a"),
					Capabilities: map[string]Provider{"tools": ServeTools(box)}})
				co.handshake("")
				request := append([]byte(`{"type":"tool/list/req","id":"l"`), '}')
				if inner := trimLine(in.Request[1 : len(in.Request)-1]); len(inner) > 0 {
					request = []byte(`{"type":"tool/list/req","id":"l",` + string(inner) + `}`)
				}
				co.send(compact(t, request))
				f := co.next()
				got := []string{}
				for _, d := range asArray(t, f["tools"]) {
					got = append(got, frame(asObject(t, d)).str("name"))
				}
				if !slices.Equal(got, exp.Names) {
					t.Errorf("got %v, want %v", got, exp.Names)
				}
			})
		})
	}
}

// sameFrame compares a frame with a recorded one, in which <ts> and the like
// stand for values of that type. Parley adds a2e, numbers events from 0, and
// names the capability in errors.
func sameFrame(path string, got, want any) error {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s: %v, want an object", path, got)
		}
		for k, v := range w {
			if path == "" && k == "capability_name" && w["type"] == "error" {
				continue
			}
			if err := sameFrame(path+"."+k, g[k], v); err != nil {
				return err
			}
		}
		for k := range g {
			if _, ok := w[k]; !ok && k != "a2e" {
				return fmt.Errorf("%s: extra member %s", path, k)
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s: %v, want %v", path, got, want)
		}
		for i := range w {
			if err := sameFrame(fmt.Sprint(path, "[", i, "]"), g[i], w[i]); err != nil {
				return err
			}
		}
		return nil
	case string:
		_, isNum := got.(json.Number)
		text, isText := got.(string)
		ok := true
		switch w {
		case "<ts>", "<number>", "<int>":
			ok = isNum
		case "<id>":
			ok = isText && isHex32(text)
		default:
			if len(w) > 2 && w[0] == '<' && w[len(w)-1] == '>' {
				ok = isText
			} else {
				ok = got == want
			}
		}
		if !ok {
			return fmt.Errorf("%s: %v, want %v", path, got, want)
		}
		return nil
	case json.Number:
		g, ok := got.(json.Number)
		a, _ := g.Float64()
		b, _ := w.Float64()
		if !ok || a != b {
			return fmt.Errorf("%s: %v, want %v", path, got, want)
		}
		return nil
	}
	if got != want {
		return fmt.Errorf("%s: %v, want %v", path, got, want)
	}
	return nil
}

func vectorToolCall(t *testing.T, c vectorCase) {
	var in struct {
		Tool      string          `json:"tool"`
		Arguments json.RawMessage `json:"arguments"`
		ID        string          `json:"id"`
	}
	var exp struct {
		Frames []map[string]any `json:"reference_frames"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	co := connect(t, testHost())
	co.handshake("test-token-a")
	b, _ := json.Marshal(map[string]any{"type": "tool/call/req", "id": in.ID, "tool_name": in.Tool,
		"arguments": in.Arguments, "streaming": true})
	co.send(string(b))
	for i, want := range exp.Frames {
		f := co.next()
		if want["type"] == "error" { // with the host's own text, and a more precise code (A2E-073)
			want["code"] = string(ToolError)
			known, _ := newTestTools().List(t.Context(), nil)
			if !slices.ContainsFunc(known, func(d ToolDefinition) bool { return d.Name == in.Tool }) {
				want["code"] = string(UnknownTool)
			}
			want["message"] = "<text>"
		}
		if err := sameFrame("", map[string]any(f), want); err != nil {
			t.Errorf("frame %d: %v in %v", i, err, f)
		}
	}
	co.quiet()
}

func vectorMemory(t *testing.T, c vectorCase) {
	var in struct {
		Requests []map[string]any `json:"requests"`
	}
	var exp struct {
		Reference [][]map[string]any `json:"reference"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	co := connect(t, testHost())
	co.handshake("test-token-a")
	var memoryID any
	var forgotten []map[string]any // forget by key works here, and not in the reference
	for i, req := range in.Requests {
		send := map[string]any{}
		for k, v := range req {
			send[k] = v
		}
		if send["memory_id"] == "$M" {
			send["memory_id"] = memoryID
		}
		send["id"] = fmt.Sprint("m", i)
		b, _ := json.Marshal(send)
		co.send(string(b))
		f := co.next()
		if len(exp.Reference) != len(in.Requests) || len(exp.Reference[i]) != 1 {
			t.Fatalf("request %d: the reference answered %v", i, exp.Reference)
		}
		want := exp.Reference[i][0]
		want["req_id"] = send["id"]
		switch want["type"] {
		case "memory/init/resp":
			memoryID = f["memory_id"]
		case "memory/store/resp":
			// The reference lists its whole last tier; Parley lists the stored entries.
			entries, _ := req["entries"].([]any)
			stored, _ := f["stored"].([]any)
			if f.str("type") != "memory/store/resp" || len(stored) != len(entries) {
				t.Fatalf("request %d: %v", i, f)
			}
			for n, e := range entries {
				if err := subMatch("", stored[n], e, nil); err != nil {
					t.Errorf("request %d, entry %d: %v", i, n, err)
				}
			}
			continue
		case "memory/retrieve/resp":
			if len(forgotten) > 0 {
				kept := []any{}
				for _, e := range asArray(t, want["entries"]) {
					if !slices.ContainsFunc(forgotten, func(k map[string]any) bool {
						return reflect.DeepEqual(k, asObject(t, e)["key"])
					}) {
						kept = append(kept, e)
					}
				}
				want["entries"], want["total"] = kept, json.Number(fmt.Sprint(len(kept)))
			}
		case "memory/forget/resp":
			if keys, _ := req["keys"].([]any); len(keys) > 0 {
				for _, k := range keys {
					forgotten = append(forgotten, asObject(t, k))
				}
				if f.str("type") != "memory/forget/resp" {
					t.Errorf("request %d: %v", i, f)
				}
				continue
			}
		case "error":
			if f.str("type") != "error" || f.str("code") != "memory_not_found" || f["req_id"] != send["id"] {
				t.Errorf("request %d: %v, want memory_not_found", i, f)
			}
			continue
		}
		if err := sameFrame("", map[string]any(f), want); err != nil {
			t.Errorf("request %d: %v\n got %v\nwant %v", i, err, f, want)
		}
	}
	co.quiet()
}

func vectorChain(t *testing.T, c vectorCase) {
	var in struct {
		Condition  *string                    `json:"condition"`
		Expression json.RawMessage            `json:"expression"`
		Context    map[string]json.RawMessage `json:"context"`
	}
	var exp struct {
		Result json.RawMessage `json:"result"`
		Raises json.RawMessage `json:"raises"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	ctx := map[string]json.RawMessage{}
	for k, v := range in.Context {
		ctx[k] = json.RawMessage(v)
	}
	if in.Condition == nil {
		expr := json.RawMessage(in.Expression)
		if expr == nil {
			expr = json.RawMessage("null")
		}
		got := resolve(expr, ctx)
		if got == nil {
			got = json.RawMessage("null")
		}
		var a, b any
		if json.Unmarshal(got, &a) != nil || json.Unmarshal(exp.Result, &b) != nil || !reflect.DeepEqual(a, b) {
			t.Errorf("got %s, want %s", got, exp.Result)
		}
		return
	}
	got, err := evalCondition(*in.Condition, ctx)
	if len(exp.Raises) > 0 {
		if err == nil {
			t.Errorf("got %v, want an error", got)
		}
		return
	}
	if err != nil || strconv.FormatBool(got) != string(exp.Result) {
		t.Errorf("got %v, %v, want %s", got, err, exp.Result)
	}
}

// events reads a stream as a client does.
func events(contentType string, chunks ...string) ([]string, error) {
	out := []string{}
	body := make([]io.Reader, len(chunks))
	for i, chunk := range chunks {
		body[i] = strings.NewReader(chunk)
	}
	err := readEvents(io.MultiReader(body...), contentType, DefaultMaxFrame, func() {},
		func(b []byte) { out = append(out, string(b)) }, func([]byte) {})
	return out, err
}

// asReference gives the message that the reference agent reads where a client reads m:
// to it, text without a charset is ISO 8859-1, and every line break of Unicode ends the
// line (A2E §2.1, §7.1).
func asReference(m, contentType string) string {
	if strings.HasPrefix(contentType, "text/") && !strings.Contains(contentType, "charset") {
		wide := make([]rune, len(m))
		for i := range len(m) {
			wide[i] = rune(m[i])
		}
		m = string(wide)
	}
	if i := strings.IndexAny(m, "\v\f\x1c\x1d\x1e\u0085\u2028\u2029"); i >= 0 {
		m = m[:i]
	}
	return m
}

func vectorSSE(t *testing.T, c vectorCase) {
	var in struct {
		ContentType *string  `json:"content_type"`
		Chunks      []string `json:"chunks"`
	}
	var exp struct {
		Messages []string `json:"messages_received_by_reference_agent"`
		Usable   bool     `json:"usable"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	contentType := ""
	if in.ContentType != nil {
		contentType = *in.ContentType
	}
	got, err := events(contentType, in.Chunks...)
	for i, m := range got {
		got[i] = asReference(m, contentType)
	}
	if !slices.Equal(got, exp.Messages) || err == nil {
		t.Errorf("read %q, %v, want %q", got, err, exp.Messages)
	}
	if refused := !errors.Is(err, io.EOF); refused && len(exp.Messages) > 0 {
		t.Errorf("the stream was refused: %v", err)
	}
	usable := len(got) > 0 && !slices.ContainsFunc(got, func(m string) bool { return jsonx.Valid([]byte(m), 0) != nil })
	if usable != exp.Usable {
		t.Errorf("usable: %v, want %v", usable, exp.Usable)
	}
	// The host's output reaches the agent unchanged, whatever its text.
	body := strings.Join(in.Chunks, "")
	s := streamOf(t, testHost(), fmt.Sprintf(`{"type":"ping","id":%s}`, appendString(nil, body)))
	if s.contentType != "text/event-stream; charset=utf-8" {
		t.Errorf("content type %q", s.contentType)
	}
	frames, _ := events(s.contentType, string(s.body))
	if len(frames) != 1 {
		t.Fatalf("agent reads %q of %q", frames, s.body)
	}
	if f := parseFrame(t, []byte(frames[0])); len([]rune(body)) <= 256 && f.str("req_id") != body {
		t.Errorf("agent reads req_id %q, want %q", f.str("req_id"), body)
	}
}

type streamed struct {
	contentType string
	body        []byte
}

// streamOf posts lines to a new session of h and gives the content of its stream once
// all goroutines are idle.
func streamOf(t *testing.T, h *Host, lines ...string) streamed {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("POST", "/session", nil))
	var answer struct {
		SessionID string `json:"session_id"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusOK {
		t.Fatalf("session: %d %s", w.Code, w.Body)
	}
	for _, line := range lines {
		r := httptest.NewRequest("POST", "/send", strings.NewReader(line))
		r.Header.Set(sessionHeader, answer.SessionID)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			t.Fatalf("send: %d %s", w.Code, w.Body)
		}
	}
	return readStream(t, h, answer.SessionID)
}

func readStream(t *testing.T, h *Host, id string) streamed {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequest("GET", "/stream", nil).WithContext(ctx)
	r.Header.Set(sessionHeader, id)
	rec := httptest.NewRecorder()
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.ServeHTTP(rec, r)
	}()
	synctest.Wait()
	cancel()
	<-done
	return streamed{rec.Header().Get("Content-Type"), rec.Body.Bytes()}
}

func vectorHTTP(t *testing.T, c vectorCase) {
	var in struct {
		Method  string            `json:"method"`
		Path    string            `json:"path"`
		Headers map[string]string `json:"headers"`
		Body    string            `json:"body_b64"`
	}
	var exp struct {
		Status  int             `json:"parley_status"`
		Frames  []string        `json:"parley_stream_frames"`
		RefCode int             `json:"reference_status"`
		RefBody json.RawMessage `json:"reference_body"`
		RefType string          `json:"reference_content_type"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	body, err := base64.StdEncoding.DecodeString(in.Body)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		h := testHost()
		s, err := h.open("test", transportHTTP)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(in.Method, in.Path, bytes.NewReader(body))
		for k, v := range in.Headers {
			r.Header.Set(k, strings.ReplaceAll(v, "$S", s.id))
		}
		w := httptest.NewRecorder()
		if strings.HasPrefix(in.Path, "/stream") && exp.Status == http.StatusOK {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			r = r.WithContext(ctx)
		}
		h.ServeHTTP(w, r)
		if w.Code != exp.Status {
			t.Errorf("status %d, want %d: %s", w.Code, exp.Status, w.Body)
		}
		if exp.Status == exp.RefCode && exp.RefType == "application/json" {
			if got := w.Header().Get("Content-Type"); got != exp.RefType {
				t.Errorf("content type %q", got)
			}
			var got, want map[string]any
			if json.Unmarshal(w.Body.Bytes(), &got) != nil || json.Unmarshal(exp.RefBody, &want) != nil {
				t.Errorf("body %s", w.Body)
			}
			if err := sameFrame(".body", got, want); err != nil {
				t.Error(err)
			}
		}
		got := []string{}
		stream := readStream(t, h, s.id)
		frames, _ := events(stream.contentType, string(stream.body))
		for _, raw := range frames {
			f := parseFrame(t, []byte(raw))
			text := f.str("type")
			if text == "error" {
				text += " " + f.str("code")
			}
			got = append(got, text)
		}
		if exp.Frames != nil && !slices.Equal(got, exp.Frames) {
			t.Errorf("stream %v, want %v", got, exp.Frames)
		}
		s.close()
	})
}

func vectorNumber(t *testing.T, c vectorCase) {
	var in struct {
		Float string  `json:"float64_hex"`
		Token *string `json:"ts_token"`
	}
	var exp struct {
		Token     string `json:"reference_token"`
		Accept    bool   `json:"parley_must_accept"`
		Float     string `json:"float64_hex"`
		Relay     string `json:"relay"`
		RefAccept *bool  `json:"reference_accepts"`
		Parley    string `json:"parley"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	token, float := exp.Token, in.Float
	if in.Token != nil {
		token, float = *in.Token, exp.Float
	}
	if token == "" || exp.Parley == "" && float == "" {
		t.Fatal("no token, or no value")
	}
	line := `{"type":"tool/call/req","id":"n","ts":` + token + `,"tool_name":"echo","arguments":{"text":` + token + `}}`
	m, err := Decode([]byte(line))
	if exp.Parley != "" {
		var e *Error
		if !errors.As(err, &e) || string(e.Code) != exp.Parley {
			t.Fatalf("%s: %v, want %s", token, err, exp.Parley)
		}
		return
	}
	if err != nil || m.Check() != nil {
		t.Fatalf("%s: %v", token, err)
	}
	want, err := parseHexFloat(float)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.Float("ts"); got != want && !(got == 0 && want == 0) {
		t.Errorf("%s is %v, want %v", token, got, want)
	}
	// A2E-121: the literal survives.
	co := connect(t, testHost())
	co.handshake("test-token-a")
	co.send(line)
	raw := co.line()
	if !bytes.Contains(raw, []byte(`"echo":`+token+`}`)) {
		t.Errorf("%s became %s", token, raw)
	}
}

func parseHexFloat(s string) (float64, error) {
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && math.IsInf(f, 0) {
		return f, nil
	}
	return f, err
}

// replacePlaceholders makes numbers of <ts> and the like.
func replacePlaceholders(v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range x {
			out[k] = replacePlaceholders(e)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = replacePlaceholders(e)
		}
		return out
	case string:
		switch x {
		case "<ts>", "<number>", "<int>":
			return json.Number("1716123456")
		}
	}
	return v
}

func vectorSession(t *testing.T, c vectorCase) {
	var in struct {
		Transport  string `json:"transport"`
		Capability string `json:"capability"`
	}
	var exp struct {
		Binding bool `json:"binding_answers"`
		Frames  []struct {
			Dir   string         `json:"dir"`
			Frame map[string]any `json:"frame"`
		} `json:"frames"`
	}
	into(t, c.Input, &in)
	into(t, c.Expect, &exp)
	h := testHost()
	h.Auth = Anonymous("agent-1")
	if !exp.Binding { // recorded at a host with other tools
		h.Handler = func(_ context.Context, r *Request) (Response, error) {
			return Response{Type: "x/taken/resp", Body: map[string]any{"took": r.Type}}, nil
		}
	}
	co := connect(t, h)
	co.handshake("")
	asked := map[string]bool{}
	memoryIDs := map[string]string{} // as recorded → as given
	for i, f := range exp.Frames {
		line, err := json.Marshal(replacePlaceholders(f.Frame))
		if err != nil {
			t.Fatal(err)
		}
		m, err := Decode(line)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if err := m.Check(); err != nil {
			t.Errorf("frame %d: %v %s", i, err, asError(err, "").Detail)
		}
		switch f.Dir {
		case "agent->host":
			if m.Class != ClassRequest {
				t.Errorf("frame %d: %s is a %s", i, m.Type, m.Class)
			}
			asked[m.ID] = true
			co.quiet() // all answers before were expected
			if id, ok := memoryIDs[m.Str("memory_id")]; ok {
				line = bytes.ReplaceAll(line, appendString(nil, m.Str("memory_id")), appendString(nil, id))
			}
			co.send(string(line))
			for !exp.Binding { // exactly one final frame for each (A2E-050)
				got := co.next()
				if got == nil || got.str("req_id") != m.ID {
					t.Fatalf("frame %d: answer %v", i, got)
				}
				if !strings.HasSuffix(got.str("type"), "/event") {
					break
				}
			}
		case "host->agent":
			if m.Class == ClassRequest {
				t.Errorf("frame %d: %s is a request", i, m.Type)
			}
			if m.ReqID != "" && !asked[m.ReqID] {
				t.Errorf("frame %d answers the unknown request %s", i, m.ReqID)
			}
			if !exp.Binding {
				break
			}
			got := co.next()
			if given := got.str("memory_id"); given != "" && f.Frame["memory_id"] != nil {
				memoryIDs[m.Str("memory_id")], f.Frame["memory_id"] = given, given
			}
			if err := sameFrame("", map[string]any(got), f.Frame); err != nil {
				t.Errorf("frame %d: %v\n got %v\nwant %v", i, err, got, f.Frame)
			}
		default:
			t.Fatalf("unknown direction %q", f.Dir)
		}
	}
	co.quiet()
}
