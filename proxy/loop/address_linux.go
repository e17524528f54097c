package loop

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

func asAddress(any *unix.RawSockaddrAny) unsafe.Pointer { return unsafe.Pointer(any) }

// networkOrder reads a port as the kernel writes it.
func networkOrder(port uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], port)
	return binary.BigEndian.Uint16(b[:])
}
