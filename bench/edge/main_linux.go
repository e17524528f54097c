package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
)

func main() {
	// What is started is to end with this process, of which to the kernel means:
	// with the thread that started it.
	runtime.LockOSThread()
	// The load's own collections are to disturb little.
	debug.SetGCPercent(400)
	err := command(os.Args[1:])
	var inside *exec.ExitError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &inside):
		os.Exit(1) // it has said why
	default:
		fmt.Fprintln(os.Stderr, "edge:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) > 0 {
		if args[0] == "publish" {
			return publish(args[1:])
		}
		if help := helpers[args[0]]; help != nil {
			return help(args[1:])
		}
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	o, err := parseOptions(args, operationNames(), filepath.Join(cache, "relayedge-bench"))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.folder != "" {
		if err := furnish(o.folder, o.tree); err != nil {
			return err
		}
		return o.run(ctx, "network namespace", full, os.Stdout)
	}
	return o.prepared(ctx, args)
}

// prepared builds, finds the peers, and runs in namespaces of their own if it can.
func (o *options) prepared(ctx context.Context, args []string) error {
	folder, err := os.MkdirTemp("", "relayedge-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := errors.Join(build(folder, false), certify(folder)); err != nil {
		return err
	}
	if !o.host && os.Geteuid() == 0 {
		if !o.system {
			if tree, err := peersSystem(o.cache); err != nil {
				fmt.Printf("the peers are those of this system: %v\n", err)
			} else {
				o.tree = tree
			}
		}
		ran, err := enclose(ctx, append(args, "-folder", folder, "-tree", o.tree))
		if ran || err != nil {
			return err
		}
	}
	fmt.Println("this runs in the host's namespaces, where other traffic may disturb it, with this system's peers")
	o.folder, o.tree = folder, "/"
	return o.run(ctx, "host", full, os.Stdout)
}

// operationNames are those of all operations, memory last.
func operationNames() (names []string) {
	for _, op := range operations {
		names = append(names, op.name)
	}
	return append(names, holdings...)
}

// run measures, prints and writes.
func (o *options) run(ctx context.Context, where string, l load, out io.Writer) error {
	l = l.scaled(o.scale)
	if err := l.enoughDescriptors(); err != nil {
		return err
	}
	s := &site{folder: o.folder, tree: o.tree, engine: o.engine, load: l}
	r, err := o.measure(ctx, s, where, out)
	if err != nil {
		return err
	}
	r.print(out)
	if o.out == "" {
		return nil
	}
	return r.write(o.out)
}
