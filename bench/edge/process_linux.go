package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// process is a program that was started, with all that it has started itself.
type process struct {
	pid  int
	log  string // the file of what it says
	stop func()
	gone <-chan struct{} // closed when it has ended
}

// start starts a program. root is the folder that it shall take for the root of the
// file system, / for the one there is.
func start(program string, args []string, root, log string) (*process, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if root != "/" {
		cmd.SysProcAttr.Chroot, cmd.Dir = root, "/"
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	gone := make(chan struct{})
	go func() {
		cmd.Wait()
		close(gone)
	}()
	p := &process{pid: cmd.Process.Pid, log: log, gone: gone}
	p.stop = sync.OnceFunc(func() {
		// Nothing of theirs has to outlast them.
		pids, _ := p.tree()
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		cmd.Process.Kill()
		<-gone
	})
	return p, nil
}

// said is the end of what a process has said, for an error.
func (p *process) said() string {
	b, _ := os.ReadFile(p.log)
	if len(b) > 2<<10 {
		b = b[len(b)-2<<10:]
	}
	return string(bytes.TrimSpace(b))
}

// tree are the process and its descendants.
func (p *process) tree() ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := make(map[int][]int)
	for _, file := range stats {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// The name, in parentheses, may have spaces.
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil || len(fields) < 2 {
			return nil, fmt.Errorf("%s says %q", file, b)
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s says %q", file, b)
		}
		children[parent] = append(children[parent], pid)
	}
	all := []int{p.pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i]]...)
	}
	return all, nil
}

// cpu is the CPU time that the process and its descendants have used.
func (p *process) cpu() (time.Duration, error) {
	pids, err := p.tree()
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, pid := range pids {
		used, err := cpuOf(pid)
		if err != nil {
			return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
		}
		sum += used
	}
	return sum, nil
}

// cpuOf reads a process's CPU clock, ended threads included: clock_getcpuclockid(3)
// says how its number is made.
func cpuOf(pid int) (time.Duration, error) {
	const scheduled = 2 // CPUCLOCK_SCHED
	clock := ^pid<<3 | scheduled
	var t syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, uintptr(clock), uintptr(unsafe.Pointer(&t)), 0); errno != 0 {
		return 0, errno
	}
	return time.Duration(t.Nano()), nil
}

// rest waits until the process has done what was left to do.
func (p *process) rest() error {
	const moment, nothing = 50 * time.Millisecond, time.Millisecond
	before, err := p.cpu()
	for deadline := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(deadline); {
		time.Sleep(moment)
		var after time.Duration
		if after, err = p.cpu(); err == nil && after-before < nothing {
			return nil
		}
		before = after
	}
	return err // a busy machine may keep it from resting: then it is measured as it is
}

// memory are PSS and RSS of the process and its descendants, in bytes.
func (p *process) memory() (pss, rss float64, err error) {
	pids, err := p.tree()
	if err != nil {
		return 0, 0, err
	}
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, 0, err
		}
		for line := range strings.Lines(string(b)) {
			fields := strings.Fields(line)
			if len(fields) != 3 || fields[0] != "Pss:" && fields[0] != "Rss:" {
				continue
			}
			kb, err := strconv.Atoi(fields[1])
			if err != nil {
				return 0, 0, err
			}
			if fields[0] == "Pss:" {
				pss += float64(kb) * 1024
			} else {
				rss += float64(kb) * 1024
			}
		}
	}
	if rss == 0 {
		return 0, 0, errors.New("/proc has no memory of it")
	}
	return pss, rss, nil
}

// helper is a process of this very program. It ends when its standard input does,
// so at the latest when this one does.
type helper struct {
	cmd   *exec.Cmd
	in    io.Closer
	out   *bufio.Reader
	close func() error // tells it to end, and waits
}

// help starts a helper and returns its first line.
func help(args ...string) (*helper, string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, "", err
	}
	h := &helper{cmd: exec.Command(self, args...)}
	h.cmd.Stderr = os.Stderr
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, "", err
	}
	h.close = sync.OnceValue(func() error {
		h.in.Close()
		late := time.AfterFunc(patience, func() { h.cmd.Process.Kill() })
		defer late.Stop()
		return h.cmd.Wait()
	})
	h.out = bufio.NewReader(out)
	late := time.AfterFunc(2*patience, func() { h.cmd.Process.Kill() })
	line, err := h.out.ReadString('\n')
	if !late.Stop() || err != nil {
		return nil, "", fmt.Errorf("%s: it has not begun: %w", strings.Join(args, " "), errors.Join(err, h.close()))
	}
	return h, strings.TrimSpace(line), nil
}
