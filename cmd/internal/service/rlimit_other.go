//go:build !unix

package service

// DescriptorLimit returns how many descriptors this process may have, or 0 if
// that is not known.
func DescriptorLimit() int { return 0 }
