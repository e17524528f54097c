package handover

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// lineVar tells a child which of its descriptors is the line to its parent.
const lineVar = "RELAYEDGE_HANDOVER_FD"

// lineFD is the first of exec.Cmd.ExtraFiles.
const lineFD = "3"

// program is what this process was started as.
var program, programErr = findProgram(os.Args[0])

// findProgram returns the path by which the process was started, links as they are,
// so that what has come into their place since is what runs next.
func findProgram(name string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := name
	if !strings.ContainsRune(name, filepath.Separator) {
		if path, err = exec.LookPath(name); err != nil {
			return self, nil
		}
	}
	if path, err = filepath.Abs(path); err != nil {
		return self, nil
	}
	mine, errMine := os.Stat(self)
	its, errIts := os.Stat(path)
	if errMine != nil || errIts != nil || !os.SameFile(mine, its) {
		return self, nil // its first argument says something else
	}
	return path, nil
}

// Child is a process that was started to take this one's place.
type Child struct {
	Line *Line
	PID  int

	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts this process's program again, as it stands on the disk by now, with
// the same arguments, output and environment, and a line to it.
func Start(environment []string) (*Child, error) {
	if programErr != nil {
		return nil, fmt.Errorf("the program of this process cannot be found: %w", programErr)
	}
	line, theirs, err := Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	cmd := exec.Command(program)
	cmd.Args = slices.Clone(os.Args)
	cmd.Env = append(slices.Clone(environment), lineVar+"="+lineFD)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = nil, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		line.Close()
		return nil, fmt.Errorf("the program cannot be started: %w; put a program for this machine at that path, executable, and ask again", err)
	}
	c := &Child{Line: line, PID: cmd.Process.Pid, cmd: cmd, exited: make(chan struct{})}
	go func() {
		defer close(c.exited)
		cmd.Wait() // State tells of it
	}()
	return c, nil
}

// Exited is closed when the child has ended.
func (c *Child) Exited() <-chan struct{} { return c.exited }

// State says how the child has ended, once Exited is closed.
func (c *Child) State() string { return c.cmd.ProcessState.String() }

// Kill ends the child at once and returns when it has ended.
func (c *Child) Kill() {
	c.cmd.Process.Kill()
	<-c.exited
}

// Parent returns the line to the process that started this one to take its place;
// nil: there is none. It is asked once.
func Parent() (*Line, error) {
	fd := os.Getenv(lineVar)
	os.Unsetenv(lineVar)
	switch fd {
	case "":
		return nil, nil
	case lineFD:
	default:
		return nil, errors.New(lineVar + " is set, and not by a process of this program; take it out of the environment")
	}
	line, err := LineOf(os.NewFile(3, "line"))
	if err != nil {
		return nil, fmt.Errorf("%s is set, and not by a process of this program; take it out of the environment: %w", lineVar, err)
	}
	return line, nil
}
