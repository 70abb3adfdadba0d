package main

import (
	"cmp"
	"encoding/json"

	"github.com/spf13/pflag"

	"github.com/parley-hub/parley/admin"
	"github.com/parley-hub/parley/bridge/peerauth"
)

// peerFlags are the flags of `agents add` for what the hub shows to an agent elsewhere. Their names begin with the
// protocol's.
type peerFlags struct {
	protocol string

	tokenFile, apiKeyFile, secretFile, cert, key string

	shown peerauth.Text // the members that are no secrets
}

func (s *peerFlags) declare(f *pflag.FlagSet) {
	prefix, beside := s.protocol+"-", "with --"+s.protocol+" URL: "
	f.StringVar(&s.tokenFile, prefix+"token-file", "", beside+"file with the bearer token that the hub shows to the agent")
	f.StringVar(&s.apiKeyFile, prefix+"api-key-file", "", beside+"file with the API key that the hub shows to it")
	f.StringVar(&s.shown.Header, prefix+"api-key-header", "", beside+"header that has the API key (default X-API-Key)")
	f.StringVar(&s.shown.TokenURL, prefix+"token-url", "", beside+"token endpoint for OAuth 2.0 client credentials")
	f.StringVar(&s.shown.ClientID, prefix+"client-id", "", beside+"the hub's id at the token endpoint")
	f.StringVar(&s.secretFile, prefix+"client-secret-file", "", beside+"file with the hub's secret at the token endpoint")
	f.StringSliceVar(&s.shown.Scopes, prefix+"scope", nil, beside+"scope to ask the token endpoint for")
	f.StringVar(&s.cert, prefix+"cert", "", beside+"certificate file (PEM) with which the hub calls the agent")
	f.StringVar(&s.key, prefix+"key", "", beside+"key file of --"+prefix+"cert")
}

// shows reports whether a flag was given.
func (s *peerFlags) shows() bool {
	c := &s.shown
	return cmp.Or(s.tokenFile, s.apiKeyFile, s.secretFile, s.cert, s.key, c.Header, c.TokenURL, c.ClientID) != "" ||
		len(c.Scopes) > 0
}

// secrets reads the files of the flags. It gives nil if no flag was given.
func (s *peerFlags) secrets() (admin.Secret, error) {
	if !s.shows() {
		return nil, nil
	}
	c := s.shown
	for _, f := range []struct {
		flag, path string
		to         *string
	}{{"token-file", s.tokenFile, &c.Token}, {"api-key-file", s.apiKeyFile, &c.APIKey},
		{"client-secret-file", s.secretFile, &c.ClientSecret}, {"cert", s.cert, &c.Certificate}, {"key", s.key, &c.Key}} {
		if f.path == "" {
			continue
		}
		var err error
		if *f.to, err = secretIn(f.path); err != nil {
			return nil, usage("--%s-%s: %w", s.protocol, f.flag, err)
		}
		if *f.to == "" {
			return nil, usage("--%s-%s: %s is empty", s.protocol, f.flag, f.path)
		}
	}
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if _, err := peerauth.Parse(b); err != nil {
		return nil, usage("the flags --%s-…: %w", s.protocol, err)
	}
	return b, nil
}

// shownBy makes an identity to whose address the hub shows the credentials of the flags.
func (s *peerFlags) shownBy(identity func(string) (admin.NewIdentity, error)) func(string) (admin.NewIdentity, error) {
	return func(name string) (admin.NewIdentity, error) {
		secrets, err := s.secrets()
		if err != nil {
			return admin.NewIdentity{}, err
		}
		id, err := identity(name)
		id.Credentials = secrets
		return id, err
	}
}

// unshown makes an identity without an address, to which the hub shows nothing.
func (s *peerFlags) unshown(identity func(string) (admin.NewIdentity, error), what, flag string) func(string) (
	admin.NewIdentity, error) {
	return func(name string) (admin.NewIdentity, error) {
		if secrets, err := s.secrets(); err != nil {
			return admin.NewIdentity{}, err
		} else if secrets != nil {
			return admin.NewIdentity{}, usage("the hub shows credentials to %s elsewhere: give %s", what, flag)
		}
		return identity(name)
	}
}
