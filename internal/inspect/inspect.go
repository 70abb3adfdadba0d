// Package inspect explains messages. Of a pasted curl command, for example, it says that it is a SAMVAD request, what
// each header means, which bytes were signed, and that the signature covers another path than the one that was requested.
//
// Nothing is sent, nothing is kept, and secrets are masked.
package inspect

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/parley-hub/parley/admin"
)

// Options are the inputs besides the message.
type Options struct {
	Keys []string  // public keys of the sender, base64
	Card []byte    // the sender's card
	Self string    // the identity of the expected recipient
	Now  time.Time // the time to judge freshness by
	Base string    // the hub's own address, for the paths that a recorded message was sent to

	Recorded *admin.Recorded // the message as the hub recorded it; the input is its envelope

	// Known gives the keys and the card that a hub knows of a sender; nil: there is no hub.
	Known func(protocol, sender string) (keys []string, card []byte)
}

// A Protocol explains the messages of one protocol.
type Protocol struct {
	Name string
	// Recognises reports whether a sample is of the protocol, even a broken one.
	Recognises func(*Sample) bool
	// Inspect explains a sample. It fails only if the keys or cards for it are unusable.
	Inspect func(context.Context, *Sample, Options) (*Report, error)
	// Sender gives the claimed sender of a sample, "" if it claims none; unset: keys are of no use.
	Sender func(*Sample) string
	// Vector saves a sample as a test vector in the form of testdata/vectors; unset: there are none of the protocol.
	Vector func(context.Context, *Sample, Options) (*savedCase, error)
}

// Protocols are those whose messages can be explained.
var Protocols = []Protocol{
	{"samvad", recognisesSAMVAD, inspectSAMVAD, claim("from"), vectorSAMVAD},
	{"uagents", recognisesUAgents, inspectUAgents, nil, vectorUAgents}, // an address is its key
	{"a2e", recognisesA2E, inspectA2E, nil, vectorA2E},
	{"agh", recognisesAGH, inspectAGH, nil, vectorAGH}, // a handle names its key
	{"asp", recognisesASP, inspectASP, claim("sender", "agentId"), vectorASP},
	{"a2a", recognisesA2A, inspectA2A, nil, nil},
	{"mcp", recognisesMCP, inspectMCP, nil, nil},
}

// claim reads the claimed sender from the member of an envelope that the names lead to.
func claim(names ...string) func(*Sample) string {
	return func(s *Sample) string {
		members := s.members()
		for _, name := range names[:len(names)-1] {
			members = a2aMembers(members[name])
		}
		return Decoded(members[names[len(names)-1]])
	}
}

// Inspect reads a pasted message, finds its protocol, or takes the named one, and explains it.
func Inspect(ctx context.Context, raw []byte, named string, o Options) (*admin.Inspected, error) {
	s, p, err := recognised(raw, named, &o)
	if err != nil {
		return nil, err
	}
	v, err := p.Inspect(ctx, s, o)
	if err != nil {
		return nil, &InputError{err}
	}
	v.Protocol, v.Form, v.At = p.Name, s.form, o.Now
	secrets := s.secrets()
	v.mask(secrets)
	v.Curl = s.curl(masking(secrets))
	return &v.Inspected, nil
}

// recognised reads a message, finds its protocol, or takes the named one, and adds the keys and the card that the hub
// knows of its sender.
func recognised(raw []byte, named string, o *Options) (*Sample, *Protocol, error) {
	s := &Sample{form: "recorded message", header: http.Header{}, Body: raw}
	if o.Recorded == nil {
		var err error
		if s, err = Read(raw); err != nil {
			return nil, nil, err
		}
	}
	var names []string
	for i := range Protocols {
		p := &Protocols[i]
		names = append(names, p.Name)
		if named != p.Name && (named != "" || !p.Recognises(s)) {
			continue
		}
		if o.Known != nil && p.Sender != nil {
			keys, card := o.Known(p.Name, p.Sender(s))
			o.Keys = append(o.Keys, keys...)
			if o.Card == nil {
				o.Card = card
			}
		}
		return s, p, nil
	}
	if named != "" {
		return nil, nil, &InputError{fmt.Errorf("the protocol %q: want one of %s", named, strings.Join(names, ", "))}
	}
	return nil, nil, fmt.Errorf("this %s is of none of the protocols that can be inspected (%s); "+
		"--protocol insists on one", s.form, strings.Join(names, ", "))
}

// An InputError says that an input besides the message is unusable: a key, a card, the name of a protocol.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap gives the cause.
func (e *InputError) Unwrap() error { return e.Err }
