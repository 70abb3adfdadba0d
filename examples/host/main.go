// Command host is an A2E host with one tool. Agents connect with the secret in HOST_TOKEN:
//
//	HOST_TOKEN=… go run ./examples/host
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/parley-hub/parley/a2e"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "address to listen at")
	flag.Parse()
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s\n", l.Addr())
	tools := &a2e.Toolbox{}
	tools.Add(a2e.ToolDefinition{Name: "forecast", Description: "The temperature in a city.",
		InputParameters: []a2e.ToolParameter{{Name: "city", Type: "string", Required: true}}}, forecast)
	host := &a2e.Host{
		Auth:         a2e.StaticTokens{"scout": os.Getenv("HOST_TOKEN")}, // an empty secret lets nobody in
		Capabilities: map[string]a2e.Provider{"tools": a2e.ServeTools(tools)},
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	server := &http.Server{Handler: host, ReadHeaderTimeout: 10 * time.Second}
	context.AfterFunc(ctx, func() {
		// Calls may end and their answers arrive before the connections close.
		drain, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := host.Shutdown(drain); err != nil {
			log.Print(err)
		}
		_ = server.Close()
	})
	if err := server.Serve(l); err != http.ErrServerClosed {
		log.Fatal(err)
	}
}

func forecast(ctx context.Context, c *a2e.ToolCall) (any, error) {
	var q struct{ City string }
	if err := json.Unmarshal(c.Arguments, &q); err != nil || q.City == "" {
		return a2e.ToolResult{Error: "the argument city is missing", ErrorCode: "bad_arguments"}, nil
	}
	if err := c.Progress(ctx, 50, "asking the station"); err != nil {
		return nil, err
	}
	return map[string]any{"city": q.City, "celsius": 21}, nil
}
