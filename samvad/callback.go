package samvad

import (
	"errors"
	"fmt"
	"net/url"
)

// CheckCallback decides whether a callback URL may be used (SAMVAD 1.2 §8.2,
// SAM-130): absolute, https, no user information, and a host that the guard
// does not know to lie inside. The address it resolves to is checked again
// when the webhook is sent. The error wraps [ErrCallback].
func CheckCallback(callback string, g *Guard) error {
	if len(callback) > 2048 {
		return because(ErrCallback, errors.New("longer than 2048 bytes"))
	}
	u, err := url.Parse(callback)
	if err != nil {
		return because(ErrCallback, err)
	}
	if u.Scheme != "https" || u.Host == "" || u.Opaque != "" {
		return because(ErrCallback, fmt.Errorf("not an absolute https URL"))
	}
	if err := g.CheckURL(u); err != nil {
		return because(ErrCallback, err)
	}
	return nil
}
