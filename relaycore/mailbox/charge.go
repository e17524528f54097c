package mailbox

import "slices"

// Overhead is what a message is charged beside its payload, in bytes: its row,
// its recipient's and its source's where it is the only one they have, and their
// places in the tables. A test holds it to the memory that is really taken.
const Overhead = 768

// pageSize is the step in which the runtime gives out memory beyond its size classes.
const pageSize = 8 << 10

// sizeClasses are the lengths that the runtime gives out for up to 32 KiB.
var sizeClasses = func() (classes []int) {
	for n := 1; n <= 32<<10; {
		class := cap(append([]byte(nil), make([]byte, n)...))
		classes = append(classes, class)
		n = class + 1
	}
	return classes
}()

// Charge returns what a message with a payload of n bytes is charged: the memory
// that a payload of that length takes, and Overhead. Both stores charge alike.
func Charge(n int) int64 {
	if n <= 0 {
		return Overhead
	}
	if i, _ := slices.BinarySearch(sizeClasses, n); i < len(sizeClasses) {
		return int64(sizeClasses[i]) + Overhead
	}
	return int64(n+pageSize-1)/pageSize*pageSize + Overhead
}
