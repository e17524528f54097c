package main

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// flooder is one address that opens connections, and more than it may.
type flooder struct {
	to   syscall.SockaddrInet4
	from syscall.SockaddrInet4
	held []int // those that it has
}

// newFlooder opens as many connections as one address may have.
func newFlooder(address string, perAddress int) (*flooder, error) {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	f := &flooder{
		to:   syscall.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()},
		from: syscall.SockaddrInet4{Addr: [4]byte{127, 9, 9, 9}},
	}
	for range perAddress {
		fd, err := f.connect()
		if err != nil {
			f.leave()
			return nil, fmt.Errorf("a connection that is allowed: %w", err)
		}
		f.held = append(f.held, fd)
	}
	time.Sleep(100 * time.Millisecond) // a proxy may accept them later than the kernel does
	for _, fd := range f.held {
		if n, _, err := syscall.Recvfrom(fd, make([]byte, 1), syscall.MSG_DONTWAIT|syscall.MSG_PEEK); n == 0 && err == nil || errors.Is(err, syscall.ECONNRESET) {
			f.leave()
			return nil, errors.New("a connection that is allowed was refused")
		}
	}
	return f, nil
}

func (f *flooder) leave() {
	for _, fd := range f.held {
		syscall.Close(fd)
	}
	f.held = nil
}

// connect connects a blocking socket, below net: what the flood costs the machine
// is what the flooded may not have.
func (f *flooder) connect() (int, error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	wait := syscall.Timeval{Sec: 5}
	err = errors.Join(
		syscall.SetsockoptInt(fd, syscall.SOL_IP, bindAddressNoPort, 1),
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait),
		syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_SNDTIMEO, &wait),
		syscall.Bind(fd, &f.from))
	if err == nil {
		err = syscall.Connect(fd, &f.to)
	}
	if err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// flood opens n connections, for a while at most, each of which has to be refused.
// It returns how many were.
func (f *flooder) flood(n int, period time.Duration) (int, error) {
	end := time.Now().Add(period)
	var refused atomic.Int64
	err := each(n, func(_, _ int) error {
		if time.Now().After(end) {
			return nil
		}
		fd, err := f.connect()
		if errors.Is(err, syscall.ECONNRESET) {
			refused.Add(1)
			return nil
		}
		if err != nil {
			return err
		}
		defer syscall.Close(fd)
		switch n, err := syscall.Read(fd, make([]byte, 1)); {
		case err == nil && n > 0:
			return errors.New("a connection over the cap was answered")
		case err == nil, errors.Is(err, syscall.ECONNRESET):
			refused.Add(1)
			return nil
		default:
			return fmt.Errorf("a connection over the cap was let in: %w", err)
		}
	})
	if err == nil && refused.Load() == 0 {
		err = errors.New("nothing was refused")
	}
	return int(refused.Load()), err
}
