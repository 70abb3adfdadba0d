//go:build !linux

package faults

import (
	"errors"
	"testing"
)

func smallFS(t *testing.T) string {
	t.Helper()
	lacking(t, "the tests of a full disk mount a file system, which they can only do on Linux")
	return ""
}

func freeBytes(string) (uint64, error) { return 0, errors.ErrUnsupported }
