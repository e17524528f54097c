//go:build !unix

package service

import "time"

const processorTimeWorks = false

func processorTime() time.Duration { return 0 }
