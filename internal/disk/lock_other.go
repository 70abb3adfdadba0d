//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd || windows)

package disk

import (
	"errors"
	"os"
)

func lock(*os.File, bool) error { return errors.ErrUnsupported }
