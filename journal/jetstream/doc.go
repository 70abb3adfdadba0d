// Package jetstream keeps a journal on a NATS cluster.
package jetstream
