package service

import (
	"crypto/sha256"
	"io"

	"relayedge/internal/plainfile"
	"relayedge/internal/policyfile"
)

// contents are the digests of files that a policy names, by key and file. What
// cannot be read has none: whoever needs it says so.
type contents map[policyfile.Value][sha256.Size]byte

func contentsOf(files []policyfile.Value) contents {
	all := make(contents, len(files))
	for _, f := range files {
		if sum, ok := digest(f.Text); ok {
			all[f] = sum
		}
	}
	return all
}

// maxDigested is as much as the largest of them, limits.deny_file, may have.
const maxDigested = 64 << 20

// digest looks at a regular file alone: another kind might never end.
func digest(path string) (sum [sha256.Size]byte, ok bool) {
	file, err := plainfile.Open(path)
	if err != nil {
		return sum, false
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, io.LimitReader(file, maxDigested)); err != nil {
		return sum, false
	}
	hash.Sum(sum[:0])
	return sum, true
}

// changes returns the keys whose file is the same and holds something else.
func (c contents) changes(next contents) (changes []policyfile.Change) {
	for f, sum := range next {
		if was, ok := c[f]; ok && was != sum {
			changes = append(changes, policyfile.Change{Key: f.Key, What: "the content of the file has changed"})
		}
	}
	return changes
}
