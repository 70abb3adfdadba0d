package supervise

import (
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/windows"
)

// A group is a job object. Windows ends its processes when its last handle is closed, so also when this process ends.
type group windows.Handle

func prepare(*exec.Cmd) {}

func groupOf(first *os.Process) (group, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, err
	}
	var limits windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	limits.BasicLimitInformation.LimitFlags = windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE
	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits)))
	var process windows.Handle
	if err == nil {
		process, err = windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(first.Pid))
	}
	if err == nil {
		err = windows.AssignProcessToJobObject(job, process)
		_ = windows.CloseHandle(process) // cannot fail: it is open
	}
	if err != nil {
		_ = windows.CloseHandle(job)
		return 0, err
	}
	return group(job), nil
}

// terminate does nothing: a process without a console gets no signal. The end of its input tells it.
func (group) terminate() {}

func (g group) kill() { _ = windows.TerminateJobObject(windows.Handle(g), 1) } // it may have ended

func (g group) close() { _ = windows.CloseHandle(windows.Handle(g)) } // cannot fail: it is open
