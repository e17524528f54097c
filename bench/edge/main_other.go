//go:build !linux

package main

import (
	"errors"
	"fmt"
	"os"
)

// What is measured, and how, is of Linux; its results can be published anywhere.
func main() {
	err := errors.New("measuring needs Linux; elsewhere there is only: publish FILE...")
	if len(os.Args) > 1 && os.Args[1] == "publish" {
		err = publish(os.Args[2:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "edge:", err)
		os.Exit(1)
	}
}
