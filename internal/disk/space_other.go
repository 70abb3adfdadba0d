//go:build unix && !(darwin || dragonfly || freebsd || linux)

package disk

import (
	"errors"
	"fmt"
)

// Space returns how many bytes of the file system that holds dir are free for
// this user, and how many it has.
func Space(dir string) (free, total uint64, err error) {
	return 0, 0, fmt.Errorf("free space of %s: %w", dir, errors.ErrUnsupported)
}
