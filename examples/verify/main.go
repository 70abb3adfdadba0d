// Command verify takes SAMVAD requests in an http.Handler of its own. It answers the
// senders whose public keys it is given, and refuses everybody else:
//
//	go run ./examples/verify agent://me.example=BASE64KEY
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley/samvad"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "address to listen at")
	flag.Parse()
	keys := samvad.StaticKeys{}
	for _, known := range flag.Args() {
		id, text, _ := strings.Cut(known, "=")
		key, err := samvad.ParseKey(text)
		if err != nil {
			log.Fatal(err)
		}
		keys[id] = append(keys[id], key)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s\n", l.Addr())
	server := &http.Server{Handler: handler(keys), ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.Serve(l))
}

func handler(keys samvad.Keys) http.Handler {
	// One verifier for all requests: it remembers nonces, so that no request counts twice.
	// NotBefore refuses what was signed before, when another process remembered.
	v := &samvad.Verifier{Self: "agent://weather.example", Keys: keys, NotBefore: time.Now()}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /agent/message", func(w http.ResponseWriter, r *http.Request) {
		req, err := v.Verify(r)
		if err != nil {
			log.Print("refused: ", err) // the sender hears a code, not the cause
			samvad.WriteError(w, err)
			return
		}
		fmt.Printf("%s asks %s %s\n", req.From, req.Skill, req.RawPayload())
		samvad.WriteResult(w, req, map[string]any{"celsius": 21})
	})
	return mux
}
