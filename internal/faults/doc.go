// Package faults holds tests of what a hub promises when things go wrong: it
// is killed under load, its disk fills, its files are damaged, and strangers
// send it anything but proper messages. Nothing here is mocked: the tests
// start real processes on real sockets and file systems.
//
// What the tests need and how they are tuned:
//
//	PARLEY_CRASH_ROUNDS  how often each hub is killed; when not set, 20 times
//	                     under SAMVAD load, and 5 times with at-most-once and 3
//	                     with at-least-once while agents of all protocols speak
//	PARLEY_CRASH_SEED    repeats the random choices of a run that failed
//	PARLEY_SMALLFS       a mounted file system of some 64 MiB for the tests of a
//	                     full disk, where the tests may not mount one themselves
//	PARLEY_READY         "long" has a journal of 2 GB opened after a kill
//	PARLEY_GUESTS        "long" makes the attacks of guests last minutes
//	CI                   "true" makes it a failure that strace is missing or that
//	                     no small file system can be had, instead of a skip
package faults
