package mcp

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge/peerauth"
	"github.com/parley-hub/parley/internal/jsonx"
	"github.com/parley-hub/parley/internal/netguard"
)

// A bad answer ends its own call, and no other call.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	const max = 1 << 16
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	status := func(code int, after time.Duration) func(error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*serverStatus](err)
			return ok && e.status == code && e.after == after
		}
	}
	code := func(c parley.Code) func(error) bool {
		return func(err error) bool {
			e, ok := errors.AsType[*parley.Error](err)
			return ok && e.Code == c
		}
	}
	answer := func(code int, kind, body string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(code)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", id)) // the client may have gone
		}
	}
	result := func(r string) func(http.ResponseWriter, *http.Request, string) {
		return answer(200, "application/json", `{"jsonrpc":"2.0","id":ID,"result":`+r+`}`)
	}
	asks := func(method, params string) func(http.ResponseWriter, *http.Request, string) {
		return result(`{"resultType":"input_required","inputRequests":{"q":{"method":"` + method + `","params":` + params +
			`}}}`)
	}
	stream := func(data string) func(http.ResponseWriter, *http.Request, string) {
		return answer(200, "text/event-stream", data)
	}
	for _, c := range []struct {
		name string
		act  func(http.ResponseWriter, *http.Request, string)
		sent bool
		is   func(error) bool
	}{
		{"MCP-072 a JSON answer that is too large",
			result(`{"content":[{"type":"text","text":"` + strings.Repeat("x", max) + `"}]}`), true, is(netguard.ErrTooLarge)},
		{"MCP-072 a compressed answer that is too large", func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(make([]byte, 100*max)) // the client takes less
			_ = z.Close()
		}, true, is(netguard.ErrTooLarge)},
		{"MCP-072 an event that is too large", stream("data: " + strings.Repeat("x", max) + "\n\n"), true,
			is(netguard.ErrTooLarge)},
		{"MCP-072 an event of many lines", stream(strings.Repeat("data: x\n", max/8) + "\n"), true,
			is(netguard.ErrTooLarge)},
		{"MCP-072 a flood of events", stream(strings.Repeat("data: "+
			`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`+"\n\n", maxEvents+1)), true, is(errFlood)},
		{"MCP-072 a flood of requests", stream(strings.Repeat("data: "+
			`{"jsonrpc":"2.0","id":7,"method":"ping","params":{}}`+"\n\n", asksAtOnce+2)), true, is(errFlood)},
		{"MCP-077 an unknown type of result", result(`{"resultType":"surprise","content":[]}`), true, is(errMalformed)},
		{"MCP-077 a type that is no text", result(`{"resultType":1,"content":[]}`), true, is(errMalformed)},
		{"a task", result(`{"resultType":"task","taskId":"1","status":"working"}`), true, code(parley.Unsupported)},
		{"MCP-071 sampling", asks("sampling/createMessage", `{"maxTokens":1,"messages":[]}`), false,
			code(parley.Unsupported)},
		{"MCP-071 roots", asks("roots/list", `{}`), false, code(parley.Unsupported)},
		{"MCP-071 a form", asks("elicitation/create", `{"mode":"form","message":"who?"}`), false,
			code(parley.Unsupported)},
		{"come again later, for ever", result(`{"resultType":"input_required","inputRequests":{}}`), false,
			code(parley.Unavailable)},
		{"input requests without their type", result(`{"resultType":"complete","inputRequests":{},"content":[]}`), true,
			is(errMalformed)},
		{"not JSON", answer(200, "application/json", "<html>"), true, is(errMalformed)},
		{"JSON that is no object", answer(200, "application/json", "[]"), true, is(errMalformed)},
		{"duplicate members", result(`{"content":[],"structuredContent":1,"structuredContent":2}`), true,
			is(errMalformed)},
		{"too deep", result(`{"content":[],"structuredContent":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) +
			`}`), true, is(errMalformed)},
		{"content of an unknown type", result(`{"content":[{"type":"hologram"}]}`), true, is(errMalformed)},
		{"content that is null", result(`{"content":[null]}`), true, is(errMalformed)},
		{"an answer to another call", answer(200, "application/json",
			`{"jsonrpc":"2.0","id":999,"result":{"content":[]}}`), true, is(errMalformed)},
		{"an event that is no JSON", stream("data: <html>\n\n"), true, is(errMalformed)},
		{"a stream without the answer", stream(": nothing\n\n"), true, is(errMalformed)},
		{"a page of the web", answer(200, "text/html", "<html>"), true, is(errMalformed)},
		{"no content", answer(202, "", ""), true, is(errMalformed)},
		{"MCP-073 a redirect to another origin", func(w http.ResponseWriter, r *http.Request, _ string) {
			http.Redirect(w, r, "http://evil.test/mcp", http.StatusTemporaryRedirect)
		}, false, status(307, 0)},
		{"a redirect without end", func(w http.ResponseWriter, r *http.Request, _ string) {
			http.Redirect(w, r, "/mcp", http.StatusTemporaryRedirect)
		}, false, status(307, 0)},
		{"401", answer(401, "text/plain", "who are you?"), false, status(401, 0)},
		{"403 with an error", answer(403, "application/json",
			`{"jsonrpc":"2.0","id":ID,"error":{"code":-32000,"message":"no"}}`), false, status(403, 0)},
		{"404", answer(404, "text/plain", "nothing here"), false, status(404, 0)},
		{"429", func(w http.ResponseWriter, _ *http.Request, _ string) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(429)
		}, false, status(429, 7*time.Second)},
		{"500", answer(500, "text/plain", "oops"), true, status(500, 0)},
		{"503", answer(503, "text/plain", "later"), true, status(503, 0)},
		{"a lost connection", func(http.ResponseWriter, *http.Request, string) { panic(http.ErrAbortHandler) }, true,
			is(io.EOF)},
		{"MCP-076 no answer", func(w http.ResponseWriter, r *http.Request, _ string) { <-r.Context().Done() }, true,
			is(context.DeadlineExceeded)},
		{"MCP-076 events for ever", func(w http.ResponseWriter, r *http.Request, _ string) {
			w.Header().Set("Content-Type", "text/event-stream")
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, ": I am here\n\n") // until the client goes
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Minute)
			}
		}, true, is(context.DeadlineExceeded)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hosts, evil := &hostMap{}, 0
				release := make(chan struct{})
				hosts.set("server.test", scriptedServer{act: func(w http.ResponseWriter, r *http.Request, id string) {
					select {
					case <-release:
						answerResult(w, id, doneResult)
					default:
						c.act(w, r, id)
					}
				}})
				hosts.set("evil.test", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { evil++ }))
				w := newAttachedWorld(t, hosts, func(c *Config) { c.MaxAnswer = max })
				w.b.SetAgent("tools", AgentSettings{Credentials: peerauth.Credentials{Token: "s3cret"}})
				w.enrolAt("http://server.test/mcp")
				synctest.Wait()
				_, err := w.call(t.Context(), "act", `{}`)
				e, ok := err.(*callError)
				if !ok || e.sent != c.sent || !c.is(err) {
					t.Errorf("%#v: %v", err, err)
				}
				close(release)
				if got, err := w.call(t.Context(), "act", `{}`); err != nil || len(got.Content) != 1 {
					t.Errorf("the next call: %v", err)
				}
				if evil != 0 {
					t.Error("another origin was called")
				}
			})
		})
	}
}

// MCP-077: a result that says no type is complete.
func TestResultWithoutAType(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hosts := &hostMap{}
		hosts.set("server.test", scriptedServer{act: func(w http.ResponseWriter, _ *http.Request, id string) {
			answerResult(w, id, `{"content":[],"structuredContent":{"a":1.0}}`)
		}})
		w := newAttachedWorld(t, hosts)
		w.enrolAt("http://server.test/mcp")
		got, err := w.call(t.Context(), "act", `{}`)
		if err != nil || string(got.structured) != `{"a":1.0}` || w.b.servers.state("tools").version != modern {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// MCP-070: the revision is asked for once for each connection. A server that does not answer as one of 2026-07-28 is
// spoken to in a handshake revision.
func TestEraOfAServer(t *testing.T) {
	t.Parallel()
	answer := func(status int, kind, body string) func(http.ResponseWriter, string) {
		return func(w http.ResponseWriter, id string) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, strings.ReplaceAll(body, "ID", id)) // the hub has not gone
		}
	}
	const jsonAnswer = "application/json"
	for name, discover := range map[string]func(w http.ResponseWriter, id string){
		"2026-07-28":             nil,
		"404":                    answer(404, "text/plain", "nothing here"),
		"405":                    answer(405, "text/plain", ""),
		"400 with a text":        answer(400, "text/plain", "Bad Request: no session"),
		"400 with another error": answer(400, jsonAnswer, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32600,"message":"no"}}`),
		"an unknown method":      answer(200, jsonAnswer, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32601,"message":"no"}}`),
		"a revision of handshake": answer(400, jsonAnswer, `{"jsonrpc":"2.0","id":ID,"error":{"code":-32022,"message":"no",`+
			`"data":{"supported":["2025-11-25"],"requested":"2026-07-28"}}}`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hosts := &hostMap{}
				script := scriptedServer{act: func(w http.ResponseWriter, _ *http.Request, id string) {
					answerResult(w, id, doneResult)
				}}
				var mu sync.Mutex
				asked := map[string]int{}
				hosts.set("server.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					method := textOf(jsonx.Member(body, "method"))
					mu.Lock()
					asked[method]++
					mu.Unlock()
					if method == methodDiscover && discover != nil {
						discover(w, string(jsonx.Member(body, "id")))
						return
					}
					r.Body = io.NopCloser(bytes.NewReader(body))
					script.ServeHTTP(w, r)
				}))
				w := newAttachedWorld(t, hosts)
				w.enrolAt("http://server.test/mcp")
				synctest.Wait()
				for range 3 {
					if got, err := w.call(t.Context(), "act", `{}`); err != nil || len(got.Content) != 1 {
						t.Errorf("%+v, %v", got, err)
					}
				}
				want, handshakes := legacy, 1
				if discover == nil {
					want, handshakes = modern, 0
				}
				mu.Lock()
				defer mu.Unlock()
				if got := w.b.servers.state("tools").version; got != want || asked[methodDiscover] != 1 ||
					asked[methodInitialize] != handshakes || asked[methodCallTool] != 3 {
					t.Errorf("revision %s, asked %v", got, asked)
				}
			})
		})
	}
}

// MCP-071: what the hub declares to a server, in each era.
func TestDeclaredCapabilities(t *testing.T) {
	t.Parallel()
	for _, isLegacy := range []bool{false, true} {
		for want, elicits := range map[string]bool{`{}`: false, `{"elicitation":{"form":{}}}`: true} {
			synctest.Test(t, func(t *testing.T) {
				hosts := &hostMap{}
				script := scriptedServer{legacy: isLegacy, act: func(w http.ResponseWriter, _ *http.Request, id string) {
					answerResult(w, id, doneResult)
				}}
				var mu sync.Mutex
				declared := map[string]int{}
				hosts.set("server.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body)
					params := jsonx.Member(body, "params")
					said := jsonx.Member(params, "capabilities")
					if !isLegacy {
						said = jsonx.Member(jsonx.Member(params, "_meta"), mcp.MetaKeyClientCapabilities)
					}
					if said != nil {
						mu.Lock()
						declared[string(said)]++
						mu.Unlock()
					}
					r.Body = io.NopCloser(bytes.NewReader(body))
					script.ServeHTTP(w, r)
				}))
				w := newAttachedWorld(t, hosts)
				w.b.SetAgent("tools", AgentSettings{Elicitation: elicits})
				w.enrolAt("http://server.test/mcp")
				if _, err := w.call(t.Context(), "act", `{}`); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if len(declared) != 1 || declared[want] == 0 {
					t.Errorf("legacy %v: declared %v, want %s", isLegacy, declared, want)
				}
			})
		}
	}
}

// silentServer answers nothing until the client goes.
func silentServer(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // else the server does not notice
	<-r.Context().Done()
}

// A server that is silent when the hub asks for its revision counts as one of the handshake revisions. One that is
// silent altogether is given up.
func TestSilentServer(t *testing.T) {
	t.Parallel()
	t.Run("MCP-070 to the probe", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := mcp.NewServer(&mcp.Implementation{Name: "far"}, nil)
			addServerTool(s, "echo", "", echoTool)
			legacy := serveTools(s, false)
			hosts := &hostMap{}
			hosts.set("server.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Mcp-Method") == "server/discover" || r.Method == http.MethodGet {
					silentServer(w, r)
					return
				}
				legacy.ServeHTTP(w, r)
			}))
			w := newAttachedWorld(t, hosts)
			w.enrolAt("http://server.test/mcp")
			began := time.Now()
			if _, err := w.call(t.Context(), "echo", `{}`); err != nil || time.Since(began) != probeTime {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
		})
	})
	t.Run("altogether", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			hosts := &hostMap{}
			hosts.set("server.test", http.HandlerFunc(silentServer))
			w := newAttachedWorld(t, hosts)
			w.enrolAt("http://server.test/mcp")
			began := time.Now()
			_, err := w.call(t.Context(), "echo", `{}`)
			if e, ok := err.(*callError); !ok || e.sent || time.Since(began) != connectTime {
				t.Errorf("after %s: %v", time.Since(began), err)
			}
			if st := w.b.servers.state("tools"); st.open || st.err == nil || st.failed == nil {
				t.Errorf("%+v", st)
			}
		})
	})
}

// A server that wants credentials before it says which revisions it knows is tried in a handshake revision. If that
// fails too, the refusal is the error: it says what to do.
func TestProbeIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hosts := &hostMap{}
		s := mcp.NewServer(&mcp.Implementation{Name: "far"}, nil)
		addServerTool(s, "echo", "", echoTool)
		refuseProbe := func(then http.Handler) {
			hosts.set("server.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Mcp-Method") == "server/discover" {
					http.Error(w, "who are you?", http.StatusUnauthorized)
					return
				}
				then.ServeHTTP(w, r)
			}))
		}
		refuseProbe(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "a header is missing", http.StatusBadRequest)
		}))
		w := newAttachedWorld(t, hosts)
		id := w.enrolAt("http://server.test/mcp")
		err := w.b.servers.meet(t.Context(), "tools", id)
		if e, ok := errors.AsType[*serverStatus](err); !ok || e.status != 401 {
			t.Errorf("without a handshake: %v", err)
		}
		refuseProbe(serveTools(s, false))
		if err := w.b.servers.meet(t.Context(), "tools", id); err != nil {
			t.Errorf("with a handshake: %v", err)
		}
	})
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := mcp.NewServer(&mcp.Implementation{Name: "far"}, nil)
		addServerTool(s, "echo", "", echoTool)
		hosts := &hostMap{}
		var mu sync.Mutex
		shown := map[string]int{}
		behind := serveTools(s, true)
		hosts.set("server.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			shown[r.Header.Get("Authorization")]++
			mu.Unlock()
			if r.URL.Path == "/mcp" {
				http.Redirect(w, r, "/mcp/", http.StatusTemporaryRedirect)
				return
			}
			behind.ServeHTTP(w, r)
		}))
		w := newAttachedWorld(t, hosts)
		w.b.SetAgent("tools", AgentSettings{Credentials: peerauth.Credentials{Token: "one"}})
		w.enrolAt("http://server.test/mcp")
		synctest.Wait()
		if _, err := w.call(t.Context(), "echo", `{}`); err != nil {
			t.Errorf("MCP-073 a redirect of the origin is followed: %v", err)
		}
		w.b.SetAgent("tools", AgentSettings{})
		w.must(w.b.secrets.Put(t.Context(), "tools", peerauth.Credentials{Token: "two"}))
		synctest.Wait()
		mu.Lock()
		one := shown["Bearer one"]
		mu.Unlock()
		if _, err := w.call(t.Context(), "echo", `{}`); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		if one == 0 || shown["Bearer two"] == 0 || shown["Bearer one"] != one {
			t.Errorf("%v", shown)
		}
	})
}

// An OAuth token is asked for the server that gets it, as MCP requires of clients (RFC 8707).
func TestTokenIsForServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := mcp.NewServer(&mcp.Implementation{Name: "far"}, nil)
		addServerTool(s, "echo", "", echoTool)
		hosts := &hostMap{}
		hosts.set("issuer.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, `{"access_token":"for-%s","token_type":"bearer"}`, r.FormValue("resource"))
		}))
		behind := serveTools(s, true)
		hosts.set("server.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "Bearer for-http://server.test/mcp" {
				http.Error(w, "not for me", http.StatusUnauthorized)
				return
			}
			behind.ServeHTTP(w, r)
		}))
		w := newAttachedWorld(t, hosts)
		w.b.SetAgent("tools", AgentSettings{Credentials: peerauth.Credentials{TokenURL: "http://issuer.test/token",
			ClientID: "hub", ClientSecret: "secret"}})
		w.enrolAt("http://server.test/mcp")
		if _, err := w.call(t.Context(), "echo", `{}`); err != nil {
			t.Error(err)
		}
	})
}

func TestGuardAndLoop(t *testing.T) {
	t.Parallel()
	w := newAttachedWorld(t, nil, func(c *Config) {
		c.Allow = func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }
	})
	w.enrolAt("http://127.0.0.1:9/mcp")
	_, err := w.call(t.Context(), "echo", `{}`)
	if e, ok := err.(*callError); !ok || e.sent || !errors.Is(err, netguard.ErrBlocked) {
		t.Errorf("MCP-073 a private address: %v", err)
	}
	w.b.SetAgent("tools", AgentSettings{Credentials: peerauth.Credentials{ClientID: "hub", ClientSecret: "s",
		TokenURL: "http://127.0.0.1:9/token"}})
	w.enrolAt("http://192.0.2.7:9/mcp")
	_, err = w.call(t.Context(), "echo", `{}`)
	if _, ok := errors.AsType[*peerauth.TokenError](err); !ok || !errors.Is(err, netguard.ErrBlocked) {
		t.Errorf("MCP-073 a token endpoint at a private address: %v", err)
	}
	w.b.SetAgent("tools", AgentSettings{})
	for _, at := range []string{"https://hub.test/mcp", "https://HUB.test:443/mcp/agents/x"} {
		w.enrolAt(at)
		_, err := w.call(t.Context(), "echo", `{}`)
		if e, ok := errors.AsType[*parley.Error](err); !ok || e.Code != parley.Loop {
			t.Errorf("MCP-090 %s: %v", at, err)
		}
	}
	at, _ := url.Parse("https://hub.test/mcpx")
	if w.b.servers.isHub(at) {
		t.Error("another path is no loop")
	}
}

// A session that the server forgot is opened anew, and the call is made once.
func TestSessionIsRenewed(t *testing.T) {
	t.Parallel()
	for _, answer := range []func(http.ResponseWriter){
		func(w http.ResponseWriter) { http.Error(w, "session not found", http.StatusNotFound) },
		func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}`)
		},
		func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,`+
				`"message":"Bad Request: No valid session ID provided"}}`)
		},
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hosts := &hostMap{}
				calls := 0
				s := mcp.NewServer(&mcp.Implementation{Name: "far"}, nil)
				addServerTool(s, "count", "", func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					calls++
					return &mcp.CallToolResult{}, nil
				})
				var mu sync.Mutex
				var forgotten string
				deleted := map[string]bool{}
				behind := serveTools(s, false)
				hosts.set("server.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					id := r.Header.Get("Mcp-Session-Id")
					gone := id != "" && id == forgotten
					if r.Method == http.MethodDelete {
						deleted[id] = true
					}
					mu.Unlock()
					if gone && r.Method != http.MethodDelete {
						answer(w)
						return
					}
					behind.ServeHTTP(w, r)
				}))
				w := newAttachedWorld(t, hosts)
				w.enrolAt("http://server.test/mcp")
				synctest.Wait()
				mu.Lock()
				forgotten = w.b.servers.known("tools").link.session.ID()
				mu.Unlock()
				sent := 0
				_, err := w.call(t.Context(), "count", `{}`, func(c *serverCall) { c.sent = func() { sent++ } })
				if err != nil || calls != 1 || sent != 1 {
					t.Errorf("%d calls, sent %d: %v", calls, sent, err)
				}
				now := w.b.servers.known("tools").link.session.ID()
				w.off()
				if now == forgotten || !deleted[now] {
					t.Errorf("the session %q was not ended: %v", now, deleted)
				}
			})
		})
	}
}

// The stream of an answer that breaks goes on where it broke, if the server offers that.
func TestStreamIsResumed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hosts := &hostMap{}
		var id string
		var resumed []string
		act := scriptedServer{legacy: true, act: func(w http.ResponseWriter, _ *http.Request, call string) {
			id = call
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "id: a-1\ndata:\n\n") // the client reads it
		}}
		hosts.set("server.test", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			last := r.Header.Get("Last-Event-ID")
			switch {
			case r.Method == http.MethodGet && last == "":
				w.WriteHeader(http.StatusMethodNotAllowed)
			case r.Method == http.MethodGet:
				resumed = append(resumed, last)
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprintf(w, "id: a-2\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\ndata: \"result\":{\"content\":[],"+
					"\"structuredContent\":1.50}}\n\n", id)
			default:
				act.ServeHTTP(w, r)
			}
		}))
		w := newAttachedWorld(t, hosts)
		w.enrolAt("http://server.test/mcp")
		got, err := w.call(t.Context(), "act", `{}`)
		if err != nil || string(got.structured) != "1.50" || len(resumed) != 1 || resumed[0] != "a-1" {
			t.Errorf("%+v, %v; resumed after %q", got, err, resumed)
		}
	})
}

// The SDK reads nothing but strict messages of the protocol, whatever the server sends.
func FuzzEventFilter(f *testing.F) {
	for _, s := range []string{"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n", "id: 1\nretry: 5\ndata:\n\n",
		`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"parley-1"}}` + "\r\n\r\n",
		"data: {\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"elicitation/create\",\"params\":{\"message\":\"x\"}}\n\n",
		"event: x\n: y\ndata: {\ndata: }\n\n", "data: <html>\n\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		const max = 200
		o := &ongoing{token: "parley-1", progress: make(chan *mcp.ProgressNotificationParams, 1)}
		l := &link{calls: map[string]*ongoing{"parley-1": o}, asks: rate.NewLimiter(10, asksAtOnce)}
		filter := &eventFilter{w: &wire{link: l, max: max}, body: io.NopCloser(nil),
			in: bufio.NewReader(bytes.NewReader(in)), id: "1", ongoing: o, ids: true}
		out, _ := io.ReadAll(filter) // a stream may end in the middle of an event
		for r := bufio.NewReader(bytes.NewReader(out)); ; {
			e, err := readEvent(r, 100*max)
			if err != nil {
				break
			}
			if len(e.data) == 0 {
				continue
			}
			if _, err := strictObject(e.data); err != nil {
				t.Fatalf("%q: %v", e.data, err)
			}
			if id := jsonx.Member(e.data, "id"); jsonx.Member(e.data, "method") == nil && string(id) != "1" {
				t.Fatalf("an answer to another call: %q", e.data)
			}
		}
	})
}
