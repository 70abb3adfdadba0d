// Command call asks a skill of a SAMVAD agent, and prints the result:
//
//	go run ./examples/call http://127.0.0.1:8090 forecast '{"city":"Bern"}'
//
// It makes its key at first use, in the directory me. The agent must know me/key-current.pub.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net/netip"
	"path/filepath"

	"github.com/parley-hub/parley/samvad"
)

func main() {
	to := flag.String("to", "", "the agent's identity; by default that of its card")
	flag.Parse()
	me, err := identity("me")
	if err != nil {
		log.Fatal(err)
	}
	if flag.NArg() != 3 {
		log.Fatalf("usage: call URL SKILL JSON; this is %s, with the key in me/key-current.pub", me.ID())
	}
	client := &samvad.Client{Identity: me,
		Guard: samvad.AllowPrefixes(netip.MustParsePrefix("127.0.0.0/8"))} // else it calls public addresses only
	reply, err := client.Ask(context.Background(), samvad.Call{URL: flag.Arg(0), To: *to, Skill: flag.Arg(1),
		Payload: []byte(flag.Arg(2))})
	if e, ok := errors.AsType[*samvad.Error](err); ok {
		log.Fatalf("%s: %s (retry: %v)", e.Code, e.Text, e.Retryable) // what the agent said
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(reply.Result))
}

// identity loads the key of a directory, or makes one.
func identity(dir string) (*samvad.Identity, error) {
	const id, kid = "agent://me.example", "key-current"
	me, err := samvad.LoadIdentity(filepath.Join(dir, kid+".key"), id)
	if !errors.Is(err, fs.ErrNotExist) {
		return me, err
	}
	if me, err = samvad.NewIdentity(id, kid); err != nil {
		return nil, err
	}
	return me, me.SavePython(dir)
}
