package bridge

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/netguard"
)

// Unreachable adds the cause to an error about an attempt that got no answer: who
// failed, why, and with which address. err is what the dialler, the TLS client or the
// HTTP client returned. An err that says nothing of the network leaves e as it is.
func Unreachable(e *parley.Error, err error) *parley.Error {
	reason, detail := NetworkFault(err)
	if reason == "" {
		return e
	}
	return e.With(parley.ByNetwork, reason, detail)
}

// NoToken is the error of a call of an agent for which no token could be had: err says why, and status is that of the
// issuer's answer, 0 for none. An issuer that refuses the hub goes on refusing it.
func NoToken(agent string, status int, err error) *parley.Error {
	e := Unreachable(parley.Fail(parley.Unavailable, err, "%q cannot be called now", agent), err)
	if status >= 400 && status < 500 {
		e.Retryable = false
	}
	if e.Source == parley.NotStated {
		e = e.With(parley.ByPeer, parley.WrongToken, Shorten(err.Error(), 1000))
	}
	return e
}

// TryLater is the outcome of a call that was answered with HTTP status 429 or 503, and perhaps with the time to wait.
func TryLater(agent string, status int, after time.Duration) hub.Outcome {
	e, wait := parley.Fail(parley.Unavailable, nil, "%q asks to come back later", agent), after
	if status == http.StatusTooManyRequests {
		e.Code, wait = parley.RateLimited, max(after, time.Second)
	}
	e.After = after
	return hub.Outcome{Err: e, Wait: wait}
}

// NetworkFault classes an error of the network, and says in one sentence what happened
// at which address. Reason is "" for an error that is none.
func NetworkFault(err error) (parley.Reason, string) {
	if blocked, ok := errors.AsType[*netguard.BlockedError](err); ok {
		return parley.AddressGuard, "address guard: " + blocked.Error()
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		if dns.IsNotFound {
			return parley.HostUnknown, fmt.Sprintf("host %q has no address", dns.Name)
		}
		return parley.HostUnknown, fmt.Sprintf("the address of host %q cannot be found: %s", dns.Name, dns.Err)
	}
	if unknown, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		if c := unknown.Cert; c != nil {
			return parley.CertificateUnknown, fmt.Sprintf("certificate unknown: no trusted authority issued the one of %q",
				c.Subject.CommonName)
		}
		return parley.CertificateUnknown, "certificate unknown: no trusted authority issued it"
	}
	if host, ok := errors.AsType[x509.HostnameError](err); ok {
		return parley.CertificateName, fmt.Sprintf("the certificate is not for host %q", host.Host)
	}
	if bad, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if bad.Reason == x509.Expired && bad.Cert != nil {
			return parley.CertificateExpired, fmt.Sprintf("the certificate of %q expired on %s", bad.Cert.Subject.CommonName,
				bad.Cert.NotAfter.UTC().Format("2006-01-02"))
		}
		return parley.CertificateBad, "the certificate is not valid: " + bad.Error()
	}
	at := ""
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Addr != nil {
		at = op.Addr.String()
	}
	by := func(what, word string) string {
		if at == "" {
			return what
		}
		return what + " " + word + " " + at
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return parley.ConnectionRefused, by("connection refused", "by")
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTDOWN):
		return parley.NoRoute, by("no route", "to")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		return parley.ConnectionLost, by("connection lost", "to")
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, os.ErrPermission):
		return "", "" // a file, not the network
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return parley.NoAnswer, by("no answer in time", "from")
	}
	return "", ""
}
