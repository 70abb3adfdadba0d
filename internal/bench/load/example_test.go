package load_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/parley-hub/parley/internal/bench/load"
)

func ExampleRun() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "hello")
	}))
	defer server.Close()
	request := load.NewRequest("POST", strings.TrimPrefix(server.URL, "http://"), "/", nil, []byte("hello"))
	result, err := load.Run(context.Background(), load.Config{
		URL: server.URL, Connections: 4, Warmup: 10, Count: 100,
		Requests: func(int) *load.Request { return request },
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Requests, result.Failed)
	// Output: 100 0
}
