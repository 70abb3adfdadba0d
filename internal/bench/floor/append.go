package floor

import (
	"bytes"
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

// groupMax and groupBytes bound the records that are written and synced together; a
// group that has reached groupBytes gets no further record.
const (
	groupMax   = 512
	groupBytes = 4 << 20
)

// An Appender makes records durable as a bare program does: all waiting records are
// written to the end of one file with one write, and synced. A lone record does not
// wait, and no timer gathers records: records that arrive during a sync are the next
// group. In memory it keeps a copy of each record.
type Appender struct {
	file file // nil: in memory

	mu   sync.Mutex
	kept [][]byte // in memory

	records chan record   // unbuffered: a waiting sender is in the next group
	closing chan struct{} // closed by Close
	done    chan struct{} // closed when the writer has ended
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
	a := &Appender{file: f, records: make(chan record), closing: make(chan struct{}), done: make(chan struct{})}
	if f == nil {
		close(a.done)
	} else {
		go a.write()
	}
	return a
}

// Append records data, and returns when the record is durable.
func (a *Appender) Append(ctx context.Context, data []byte) error {
	if a.file == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.kept = append(a.kept, bytes.Clone(data))
		return ctx.Err()
	}
	r := record{data, make(chan error, 1)}
	select {
	case a.records <- r:
	case <-a.done:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write is the writer: group after group, until a is closed.
func (a *Appender) write() {
	defer close(a.done)
	var buffer []byte
	var group []record
	var err error // after an error nothing is written
	for {
		select {
		case r := <-a.records:
			buffer, group = buffer[:0], append(group[:0], r)
		case <-a.closing:
			return
		}
		for more := true; more; {
			last := group[len(group)-1].data
			buffer = append(binary.BigEndian.AppendUint32(buffer, uint32(len(last))), last...)
			more = false
			if len(group) < groupMax && len(buffer) < groupBytes {
				select {
				case r := <-a.records:
					group, more = append(group, r), true
				default:
				}
			}
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

// Close ends the appender; records not yet written are refused.
func (a *Appender) Close() error {
	close(a.closing)
	<-a.done
	if a.file == nil {
		return nil
	}
	return a.file.Close()
}
