package uagents

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/parley-hub/parley/internal/sleep"
)

// A Registrar keeps an agent registered with an Almanac (registration.py).
type Registrar struct {
	Identity  *Identity
	URL       string // of the registry
	Testnet   bool
	Endpoints []Endpoint
	Protocols []string        // digests
	Metadata  json.RawMessage // the geolocation object of the reference, or nil
	HTTP      *http.Client
	Now       func() time.Time // nil: time.Now

	Refresh time.Duration // between registrations; default 1 h
	Retry   time.Duration // after a failed registration; default 60 s
	Tries   int           // of one call; default 10
	Timeout time.Duration // of one try; default 1 s, as the reference
	// Report is called with the error of every failed registration; nil: not at all.
	Report func(error)
}

// Register sends one registration.
func (r *Registrar) Register(ctx context.Context) error {
	if r.Identity == nil {
		return ErrNoIdentity
	}
	if len(r.Endpoints) == 0 {
		return ErrAttestation.Because(errors.New("an agent without endpoints is not registered"))
	}
	for _, e := range r.Endpoints {
		if e.Weight < 1 || !usable(e.URL) {
			err := fmt.Errorf("endpoint %q needs an http URL and a weight of at least 1", e.URL)
			return ErrAttestation.Because(err) // UAG-079
		}
	}
	a := NewRegistration(r.Identity, r.Testnet, r.Endpoints, r.Protocols)
	if r.Metadata != nil {
		if err := a.SetMetadata(r.Metadata); err != nil {
			return err
		}
	}
	return r.post(ctx, a, "agents")
}

// SetActive tells the registry whether the agent runs.
func (r *Registrar) SetActive(ctx context.Context, active bool) error {
	if r.Identity == nil {
		return ErrNoIdentity
	}
	return r.post(ctx, NewStatus(r.Identity, r.Testnet, active), "agents", r.Identity.address, "status")
}

// Run registers, reports the agent active, registers again before the record
// expires, and reports it inactive when ctx ends. The error is that of ctx.
func (r *Registrar) Run(ctx context.Context) error {
	defer func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		r.report(r.SetActive(last, false))
	}()
	active := false
	for {
		err := r.Register(ctx)
		if err == nil && !active {
			err = r.SetActive(ctx, true)
			active = err == nil
		}
		wait := cmp.Or(r.Refresh, time.Hour)
		if err != nil {
			wait = cmp.Or(r.Retry, time.Minute)
			if ctx.Err() == nil {
				r.report(err)
			}
		}
		if err := sleep.For(ctx, wait); err != nil {
			return err
		}
	}
}

func (r *Registrar) report(err error) {
	if err != nil && r.Report != nil {
		r.Report(err)
	}
}

// post signs and sends an attestation, with the reference's tries and delays.
// Each try is signed anew, because a registry requires increasing timestamps.
func (r *Registrar) post(ctx context.Context, a *Attestation, parts ...string) error {
	var err error
	for try := range cmp.Or(r.Tries, 10) {
		if try > 0 {
			if err := sleep.For(ctx, 64*time.Millisecond<<min(try-1, 9)); err != nil {
				return err
			}
		}
		if err = r.once(ctx, a, parts); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}

func (r *Registrar) once(ctx context.Context, a *Attestation, parts []string) error {
	if err := a.Sign(r.Identity, clock(r.Now)); err != nil {
		return err
	}
	b, err := a.Encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.Timeout, time.Second))
	defer cancel()
	url := apiURL(r.URL, almanacAPI, parts...)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, body, err := do(plainHTTP(r.HTTP), req, 64<<10)
	if err != nil {
		return ErrUndelivered.Because(err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return ErrUndelivered.Because(fmt.Errorf("%d: %s", resp.StatusCode, detailOf(body)))
	}
	return nil
}
