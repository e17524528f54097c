package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// inTree is where the folder of the run stands in the peers' system.
const inTree = "/mnt"

// enclose runs this program once more, with the arguments given, in network,
// process and mount namespaces of its own. It reports false where the kernel does
// not allow that. All processes inside end with the first of them.
func enclose(ctx context.Context, args []string) (ran bool, err error) {
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Start()
	if errors.Is(err, syscall.EPERM) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, cmd.Wait()
}

// furnish makes the namespaces fit for the run: a /proc of their own, a loopback
// interface that is up, enough ports, and the folder of the run in the peers' system.
func furnish(folder, tree string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of our own: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("/proc: %w", err)
	}
	if tree != "/" {
		if err := syscall.Mount(folder, filepath.Join(tree, inTree), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s in %s: %w", inTree, tree, err)
		}
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up: %w: %s", err, out)
	}
	for name, value := range map[string]string{
		"ipv4/ip_local_port_range": "10000 64999",
		"ipv4/tcp_max_syn_backlog": "8192",
		"core/somaxconn":           "4096",
	} {
		if err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644); err != nil {
			return err
		}
	}
	return nil
}
