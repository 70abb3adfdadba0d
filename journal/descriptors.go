package journal

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// outOfFiles reports whether a failure is for want of file descriptors, of the
// process or of the machine. It passes when others close theirs. The engine
// hands errors on as text only.
func outOfFiles(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) ||
		err != nil && strings.Contains(err.Error(), unix.EMFILE.Error())
}

// spareFiles gives an error where the process cannot open n more files now.
func spareFiles(n int) error {
	fds := make([]int, 0, n)
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	for range n {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if outOfFiles(err) {
			return err
		}
		if err != nil {
			return nil // another fault: whoever opens a file will meet it
		}
		fds = append(fds, fd)
	}
	return nil
}

const (
	// startFiles is how many descriptors the engine may need for its start,
	// besides one for each stream.
	startFiles = 16
	// readFiles is how many are free where a read has just not failed for want
	// of one: where they are short, single ones become free and are taken again.
	readFiles = 2
)
