package certs

import "syscall"

// volatile names the kind of file system that a folder lies on, if it is one
// that is commonly gone after a restart: of the machine, or of the container.
func volatile(path string) string {
	var st syscall.Statfs_t
	if syscall.Statfs(path, &st) != nil {
		return ""
	}
	switch uint32(st.Type) {
	case 0x01021994:
		return "tmpfs"
	case 0x858458f6:
		return "ramfs"
	case 0x794c7630:
		return "overlayfs"
	}
	return ""
}
