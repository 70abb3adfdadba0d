package floor

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// Storage says where records go.
type Storage string

const (
	Memory Storage = "memory"
	Disk   Storage = "disk" // each acknowledged record is synced
)

// groupMax and groupBytes bound the records that are written and synced together.
const (
	groupMax   = 512
	groupBytes = 4 << 20
)

// An Appender makes records durable as a bare program does: all that wait are
// written to the end of one file with one write, and synced. A lone record waits
// for nobody, and no timer gathers records: those that come while a group is
// being synced are the next one. In memory it keeps a copy of each record.
type Appender struct {
	file file // nil: in memory

	mu      sync.Mutex
	kept    [][]byte // in memory
	waiting []record
	closed  bool

	wake chan struct{} // capacity 1: something waits, or closed
	done chan struct{} // closed when the writer has ended
}

type file interface {
	io.WriteCloser
	Sync() error
}

type record struct {
	data []byte
	done chan error // capacity 1
}

var errClosed = errors.New("floor: the appender is closed")

// NewAppender makes an appender whose file is in dir. Close it.
func NewAppender(s Storage, dir string) (*Appender, error) {
	if s == Memory {
		return newAppender(nil), nil
	}
	f, err := os.OpenFile(filepath.Join(dir, "records"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("floor: %w", err)
	}
	return newAppender(f), nil
}

func newAppender(f file) *Appender {
	a := &Appender{file: f, wake: make(chan struct{}, 1), done: make(chan struct{})}
	if f == nil {
		close(a.done)
	} else {
		go a.write()
	}
	return a
}

// Append records data, and returns when that is durable.
func (a *Appender) Append(ctx context.Context, data []byte) error {
	r := record{data, make(chan error, 1)}
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return errClosed
	}
	if a.file == nil {
		a.kept = append(a.kept, append([]byte(nil), data...))
		a.mu.Unlock()
		return ctx.Err()
	}
	a.waiting = append(a.waiting, r)
	a.mu.Unlock()
	a.signal()
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *Appender) signal() {
	select {
	case a.wake <- struct{}{}:
	default: // it has not looked since the last one
	}
}

// write is the writer: group after group, until a is closed and nothing waits.
func (a *Appender) write() {
	defer close(a.done)
	var buffer []byte
	var err error // nothing is written after one
	for range a.wake {
		for {
			group, closed := a.group()
			if len(group) == 0 && closed {
				return
			}
			if len(group) == 0 {
				break
			}
			buffer = buffer[:0]
			for _, r := range group {
				buffer = binary.BigEndian.AppendUint32(buffer, uint32(len(r.data)))
				buffer = append(buffer, r.data...)
			}
			if err == nil {
				_, err = a.file.Write(buffer)
			}
			if err == nil {
				err = a.file.Sync()
			}
			for _, r := range group {
				r.done <- err
			}
		}
	}
}

// group takes the records to write next.
func (a *Appender) group() (group []record, closed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n, size := 0, 0
	for n < len(a.waiting) && n < groupMax && (n == 0 || size+len(a.waiting[n].data) <= groupBytes) {
		size += len(a.waiting[n].data)
		n++
	}
	group = append(group, a.waiting[:n]...)
	a.waiting = append(a.waiting[:0], a.waiting[n:]...)
	return group, a.closed
}

// Close writes the waiting records and ends the appender.
func (a *Appender) Close() error {
	a.mu.Lock()
	again := a.closed
	a.closed = true
	a.mu.Unlock()
	if again {
		return nil
	}
	a.signal()
	<-a.done
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}
