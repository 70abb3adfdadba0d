//go:build darwin || dragonfly || freebsd || linux

package disk

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Space returns how many bytes of the file system that holds dir are free for
// this user, and how many it has.
func Space(dir string) (free, total uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	// The types differ between systems. On FreeBSD the free space of a user is below
	// 0 when only root's reserve is left.
	block := uint64(st.Bsize)
	return uint64(max(0, int64(st.Bavail))) * block, uint64(st.Blocks) * block, nil
}
