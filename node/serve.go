package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/parley-hub/parley"
	"github.com/parley-hub/parley/bridge"
	"github.com/parley-hub/parley/bridge/samvad"
	"github.com/parley-hub/parley/hub"
	"github.com/parley-hub/parley/internal/disk"
	"github.com/parley-hub/parley/journal"
)

// Start begins to deliver and to serve.
func (n *Node) Start(ctx context.Context) error {
	for _, b := range n.hub.Bindings() {
		if s, ok := b.(hub.Service); ok {
			if err := s.Start(ctx); err != nil {
				return fmt.Errorf("start %s: %w", b.Protocol(), err)
			}
			n.started = append(n.started, s)
		}
	}
	secure, err := n.tlsConfig()
	if err != nil {
		return err
	}
	n.hub.Start()
	if n.httpListen != nil {
		n.http = n.server(n.protocolHandler())
		n.http.TLSConfig = secure
		if secure != nil {
			n.httpListen = tls.NewListener(n.httpListen, n.http.TLSConfig)
		}
		n.serve(n.http, n.httpListen)
	}
	if n.adminListen != nil {
		n.adminHTTP = n.server(n.door(n.admin, false))
		n.serve(n.adminHTTP, n.adminListen)
	}
	for _, w := range n.c.Exposures() {
		n.log.Warn(w)
	}
	for _, b := range n.bindings {
		if b.Serve != nil {
			n.serving.Go(func() {
				if err := b.Serve(); err != nil && !errors.Is(err, net.ErrClosed) {
					n.down.Store(true)
					n.failed <- err
				}
			})
		}
	}
	n.alerts.start()
	n.eraser.start()
	n.up.Store(true)
	if n.admin != nil {
		n.admin.ResumeChecklists()
	}
	return n.announce()
}

// endStreams ends the streams of the protocols and of the admin API, which would hold up the
// end of servers and handlers.
func (n *Node) endStreams() {
	if n.admin != nil {
		n.admin.EndStreams()
	}
	for _, b := range n.bindings {
		if b.EndStreams != nil {
			b.EndStreams()
		}
	}
}

// router gives each request to the binding of its endpoint.
func (n *Node) router() http.Handler {
	base, err := bridge.PublicURL(n.c.PublicURL)
	if err != nil {
		base = &url.URL{} // cannot be: the bindings have parsed it
	}
	// SAMVAD goes by the ends of paths, so it comes last: names of agents in the others' paths may hold such ends.
	var bindings, byEnds []hub.HTTPBinding
	for _, b := range n.hub.Bindings() {
		switch hb, ok := b.(hub.HTTPBinding); {
		case !ok:
		case b.Protocol() == samvad.Protocol:
			byEnds = append(byEnds, hb)
		default:
			bindings = append(bindings, hb)
		}
	}
	bindings = append(bindings, byEnds...)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = belowBase(base, r)
		for _, b := range bindings {
			if b.Serves(r) {
				b.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":"no such endpoint"}`+"\n")
	})
}

// server bounds the resources of a slow or idle client.
func (n *Node) server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ConnContext: withConn, ReadHeaderTimeout: cmp.Or(n.c.HeaderTimeout, 10*time.Second),
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)}
}

func (n *Node) serve(s *http.Server, l net.Listener) {
	n.serving.Go(func() {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.down.Store(true)
			n.failed <- err
		}
	})
}

// Ready is nil while the hub takes messages: it serves, its journal is in
// order, and it is not being stopped.
func (n *Node) Ready() error {
	switch {
	case n.draining.Load():
		return parley.Fail(parley.Unavailable, nil, "the hub is stopping")
	case !n.up.Load():
		return parley.Fail(parley.Unavailable, nil, "the hub is starting")
	case n.down.Load():
		return parley.Fail(parley.Unavailable, nil, "a listener has failed")
	}
	return n.journal.Healthy()
}

// disk gives the free and total bytes of the journal's disk; false if the journal is in
// memory or in a cluster.
func (n *Node) disk() (free, total uint64, ok bool) {
	if n.c.Engine.URL != "" || n.k.durability == journal.Memory {
		return 0, 0, false
	}
	free, total, err := disk.Space(n.c.Data)
	if err != nil {
		return 0, 0, false
	}
	if n.c.FreeSpace != nil {
		if free, err = n.c.FreeSpace(n.c.Data); err != nil {
			return 0, 0, false
		}
	}
	return min(free, total), total, true
}

// progress logs, each second, the work that the shutdown waits for.
func (n *Node) progress(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() {
		every(ctx, time.Second, func() {
			s := n.hub.Stats()
			n.log.Info("draining", "attempts", s.Delivery.Active, "callers", s.Waiting)
		})
	})
	return func() { cancel(); work.Wait() }
}

// every calls f once each interval, until ctx ends.
func every(ctx context.Context, interval time.Duration, f func()) {
	t := time.NewTicker(interval)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			f()
		case <-ctx.Done():
			return
		}
	}
}

// Run serves until ctx ends, then drains and closes.
func (n *Node) Run(ctx context.Context) error {
	if err := n.Start(ctx); err != nil {
		return errors.Join(err, n.Close(context.WithoutCancel(ctx)))
	}
	return n.Wait(ctx)
}

// Wait waits until ctx ends or a listener fails, then drains and closes.
func (n *Node) Wait(ctx context.Context) error {
	var err error
	select {
	case <-ctx.Done():
	case err = <-n.failed:
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return errors.Join(err, n.Close(drain))
}

// beforeEnd gives a context that ends before ctx, and leaves time for the rest of the shutdown.
func beforeEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(time.Until(end)/3, 10*time.Second)))
}

// Close refuses new work and lets agents answer the callers that wait, then stops
// serving, waits for attempts in flight, and closes the journal. It returns when ctx ends
// at the latest; callers that still wait get an error before.
func (n *Node) Close(ctx context.Context) error {
	n.closing.Do(func() {
		var errs []error
		n.draining.Store(true)
		if n.hub != nil && n.up.Load() {
			s := n.hub.Stats()
			n.log.Info("stopping: new messages are refused, attempts in flight may end", "attempts", s.Delivery.Active,
				"callers", s.Waiting)
			stop := n.progress(ctx)
			defer stop()
			// The listeners stay open: an agent may have to reconnect to answer.
			drain, cancel := beforeEnd(ctx)
			n.hub.Drain(drain)
			cancel()
		}
		close(n.hurry)
		n.mounts.refuse()
		if n.up.Load() {
			n.endStreams() // before a server cuts connections: the end of a caller's stream may be a withdrawal
		}
		for _, s := range []*http.Server{n.http, n.adminHTTP} {
			if s == nil {
				continue
			}
			if err := s.Shutdown(ctx); err != nil {
				errs = append(errs, err, s.Close())
			}
		}
		errs = append(errs, n.mounts.wait(ctx))
		listeners := []net.Listener{n.httpListen, n.adminListen}
		for _, b := range n.bindings {
			listeners = append(listeners, b.Listener)
		}
		for _, l := range listeners {
			if l == nil {
				continue
			}
			if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
		n.serving.Wait()
		if n.eraser != nil {
			n.eraser.close()
		}
		if n.hub != nil {
			errs = append(errs, n.hub.Close(ctx))
		}
		if n.stopWatch != nil {
			n.stopWatch()
			n.alerts.close()
		}
		for _, s := range n.started {
			errs = append(errs, s.Close())
		}
		if n.directory != nil {
			n.directory.Close()
		}
		n.retract() // before another hub can take the directory and write its own announcement
		if n.finder != nil {
			n.finder.close()
		}
		if n.tokens != nil {
			n.tokens.Close()
		}
		if n.keys != nil {
			errs = append(errs, n.keys.Close())
		}
		if n.index != nil {
			errs = append(errs, n.index.Close())
		}
		if n.journal != nil {
			errs = append(errs, n.journal.Close())
		}
		if err := n.tracer.close(ctx); err != nil {
			n.log.Warn("the last traces are lost", "error", err)
		}
		n.closeErr = errors.Join(errs...)
	})
	return n.closeErr
}
