// Package supervise runs a program that exchanges lines of JSON over its standard input and output, as a server of MCP
// does. For example, the caller starts `files-server /srv`, writes requests, reads answers, and stops it; then no
// process of its group is left.
//
// No shell sees the arguments. The environment is what the caller lists, and nothing else; Windows adds SYSTEMROOT.
// A process that leaves the group (setsid) is not ended with it.
package supervise

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/parley-hub/parley/internal/jsonx"
)

// A Command says what to run.
type Command struct {
	// Args are the program and its arguments. A program without a slash is looked up in the PATH of this process, not in
	// that of Env; one with a slash is relative to the working directory of this process, not to Dir.
	Args []string
	Env  []string // the whole environment: KEY=VALUE
	Dir  string   // working directory; "": that of this process

	MaxLine   int           // bytes in a line of its standard output; 0: 4 MiB
	WriteWait time.Duration // for the program to read a line; 0: 30 s
	Grace     time.Duration // between the end of its input and SIGTERM, and between that and SIGKILL; 0: 3 s

	Log   *slog.Logger // gets its standard error, and lines of its standard output that are no JSON objects
	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
}

// Reasons for which a program is ended. They are what [Process.Read] and [Process.Write] return then.
var (
	ErrLine   = errors.New("it wrote a line that is too long")
	ErrInput  = errors.New("it does not read its standard input")
	ErrOutput = errors.New("it closed its standard output")
	ErrStop   = errors.New("it was stopped")
)

// A Process is a program that runs. Call Stop in the end.
type Process struct {
	c    Command
	in   *os.File
	out  *os.File
	read *bufio.Reader
	log  *bounded

	writing sync.Mutex

	once   sync.Once
	ending chan struct{} // closed when the program shall end
	reason error         // set before ending is closed
	own    bool          // the program may have ended by itself: its exit says more than reason

	drain   sync.Once
	drained chan struct{} // closed at the end of its output
	stop    sync.Once
	stopped chan struct{} // closed by Stop
	done    chan struct{} // closed when the whole group has ended
	err     error         // set before done is closed
}

// Start starts a program.
func Start(c Command) (*Process, error) {
	if len(c.Args) == 0 {
		return nil, errors.New("no program to start")
	}
	path, err := exec.LookPath(c.Args[0])
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, err
	}
	c.MaxLine = cmp.Or(c.MaxLine, 4<<20)
	c.WriteWait, c.Grace = cmp.Or(c.WriteWait, 30*time.Second), cmp.Or(c.Grace, 3*time.Second)
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.After == nil {
		c.After = time.After
	}
	// An empty Env must not be nil, which would be the environment of this process.
	cmd := &exec.Cmd{Path: path, Args: c.Args, Env: append([]string{}, c.Env...), Dir: c.Dir}
	var theirs, ours [3]*os.File
	closeAll := func(files [3]*os.File) {
		for _, f := range files {
			if f != nil {
				_ = f.Close() // pipes: nothing is lost
			}
		}
	}
	for i := range theirs {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(theirs)
			closeAll(ours)
			return nil, err
		}
		if theirs[i], ours[i] = w, r; i == 0 {
			theirs[i], ours[i] = r, w
		}
	}
	// Files, so that Wait does not wait for those who hold the other ends.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	p := &Process{c: c, in: ours[0], out: ours[1], read: bufio.NewReaderSize(ours[1], 64<<10),
		log: newBounded(c.Log, c.Now), ending: make(chan struct{}), drained: make(chan struct{}),
		stopped: make(chan struct{}), done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, ours[2], started)
	err = <-started
	closeAll(theirs)
	if err != nil {
		closeAll(ours)
		return nil, err
	}
	return p, nil
}

// run starts the program, and ends its group when it ends or shall end.
func (p *Process) run(cmd *exec.Cmd, errs *os.File, started chan<- error) {
	// Linux ends the program with the thread that started it; see prepare.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prepare(cmd)
	err := cmd.Start()
	var g group
	if err == nil {
		if g, err = groupOf(cmd.Process); err != nil {
			_ = cmd.Process.Kill() // it may have ended
			_ = cmd.Wait()         // the error of groupOf says more
		}
	}
	started <- err
	if err != nil {
		return
	}
	noted := make(chan struct{})
	go func() {
		defer close(noted)
		p.log.lines(errs)
	}()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	var exit error
	alone := true
	select {
	case exit = <-exited:
	case <-p.ending:
		exit, alone = p.shutDown(g, exited)
	}
	g.kill() // what the program left behind
	g.close()
	// All writers have ended, so the rest of the output is short; but a process that left the group may hold it open.
	for _, end := range []<-chan struct{}{p.drained, noted} {
		select {
		case <-end:
		case <-p.c.After(p.c.Grace):
		case <-p.stopped: // nobody reads
		}
	}
	for _, f := range []*os.File{p.in, p.out, errs} {
		_ = f.Close() // in may be closed
	}
	<-noted
	p.log.flush()
	p.end(nil, true)
	if p.err = p.reason; p.own && alone {
		if p.err = errors.New("it ended by itself: exit status 0"); exit != nil {
			p.err = fmt.Errorf("it ended by itself: %w", exit)
		}
	}
	close(p.done)
}

// shutDown ends the program: its input, then SIGTERM, then SIGKILL. alone: it needed no signal.
func (p *Process) shutDown(g group, exited <-chan error) (exit error, alone bool) {
	go func() {
		_ = p.in.Close() // on Windows it may wait for a write
	}()
	alone = true
	for _, signal := range []func(){g.terminate, g.kill} {
		select {
		case exit = <-exited:
			return exit, alone
		case <-p.c.After(p.c.Grace):
			alone = false
			signal()
		}
	}
	return <-exited, false
}

// end makes the program end. own: perhaps it has ended by itself.
func (p *Process) end(reason error, own bool) {
	p.once.Do(func() {
		p.reason, p.own = reason, own
		close(p.ending)
	})
}

// Stop ends the program with its group, and returns when they have ended. Read and Write then return [ErrStop], unless
// the program ended earlier.
func (p *Process) Stop() {
	p.stop.Do(func() { close(p.stopped) })
	p.end(ErrStop, false)
	<-p.done
}

// Done is closed when the program and its group have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Read gives the next JSON object that the program wrote. After the last one comes an error
// that says why the program ended.
func (p *Process) Read() ([]byte, error) {
	for {
		line, whole, err := readLine(p.read, p.c.MaxLine)
		if err == nil && !whole {
			p.end(fmt.Errorf("%w: more than %d bytes", ErrLine, p.c.MaxLine), false)
		}
		if err != nil || !whole {
			p.drain.Do(func() { close(p.drained) })
			p.end(ErrOutput, true)
			<-p.done
			return nil, p.err
		}
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		if line[0] == '{' && utf8.Valid(line) && jsonx.Tolerable(line) {
			return line, nil
		}
		p.log.line(slog.LevelWarn, "a line of its standard output is no JSON object, and was dropped", line)
	}
}

// Write gives the program a JSON text as one line. The error says why the program ended.
func (p *Process) Write(message []byte) error {
	if bytes.ContainsAny(message, "\r\n") {
		var b bytes.Buffer
		if err := json.Compact(&b, message); err != nil {
			return err
		}
		message = b.Bytes()
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	written := make(chan struct{})
	go func() {
		select {
		case <-p.c.After(p.c.WriteWait):
			p.end(ErrInput, false)
		case <-written:
		case <-p.ending:
		}
	}()
	_, err := p.in.Write(append(bytes.Clone(message), '\n'))
	close(written)
	if err == nil {
		return nil
	}
	p.end(ErrInput, true)
	<-p.done
	return p.err
}

// readLine reads a line without its line feed, of at most limit bytes. whole: it was no longer than that.
func readLine(r *bufio.Reader, limit int) (line []byte, whole bool, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		end := len(line)
		if err == nil {
			end--
		}
		switch {
		case end > limit:
			return line[:limit], false, nil
		case err == nil:
			return line[:end], true, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case end > 0:
			return line, true, nil // the last line
		default:
			return nil, false, err
		}
	}
}
