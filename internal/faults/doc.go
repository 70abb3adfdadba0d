// Package faults holds tests of the promises of a hub when things go wrong: it
// is killed under load, its disk fills, its files are damaged, and guests
// send it anything but proper messages. Nothing here is mocked: the tests
// start real processes on real sockets and file systems.
//
// The tests are tuned by environment variables:
//
//	PARLEY_FAULTS        "long" does more of everything, as .ci/run does: a test
//	                     takes up to half a minute. "longest" is for single
//	                     tests, run by name: attacks of guests last minutes, and
//	                     a journal of 2 GB is opened after a kill
//	PARLEY_CRASH_ROUNDS  how often each hub is killed
//	PARLEY_CRASH_SEED    repeats the random choices of a run that failed
//	PARLEY_SMALLFS       a mounted file system of some 64 MiB for the tests of a
//	                     full disk, where the tests may not mount one themselves
//	CI                   "true" makes it a failure that strace is missing or that
//	                     no small file system can be had, instead of a skip
package faults
