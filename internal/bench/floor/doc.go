// Package floor measures how fast the work of a path can be done at all: the HTTP,
// digest, verification, decoding and appends that a message of Parley needs, by a
// program that does nothing else.
//
// It uses the HTTP server, the cryptography and the file system directly, and
// none of Parley's packages but the load generator, which measures Parley too.
// The cost above the floor is Parley's own; the floor is the price of its promises.
//
// Appends are as durable as Parley's: in memory they return when the record is stored,
// on disk when it is synced. Waiting records are written and synced together (see
// [Appender]). Only the floors of AGH use a NATS server, as the transport of AGH's
// agents.
package floor
