package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// HostLabel makes a DNS label of a directory name, for the sub-domain of an agent. A name
// that is no label gets a part of its hash, so that two names never have the same label.
func HostLabel(name string) string {
	l := strings.NewReplacer("/", "-", ".", "-", "_", "-").Replace(name)
	if l == name && len(l) <= 63 {
		return l
	}
	sum := sha256.Sum256([]byte(name))
	return l[:min(len(l), 54)] + "-" + hex.EncodeToString(sum[:4])
}
