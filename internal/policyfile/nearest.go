package policyfile

import "strings"

// Nearest returns the candidate that name was probably meant to be, or "" if
// none is near: spelled alike but for case, hyphens and underscores, or a few
// letters away.
func Nearest(name string, candidates []string) string {
	plain := folded(name)
	best, bestDistance := "", max(1, min(3, len([]rune(plain))/3))+1
	for _, c := range candidates {
		if d := distance(plain, folded(c), bestDistance); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// folded drops what people vary without meaning another word.
func folded(s string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(s))
}

// maxCompared bounds the names that are compared, since the work grows with the product of their lengths.
const maxCompared = 80

// distance is the number of insertions, deletions, replacements and swaps of
// neighbours that turn a into b, or limit if it takes that many or more.
func distance(a, b string, limit int) int {
	s, t := []rune(a), []rune(b)
	if len(s) > maxCompared || len(t) > maxCompared || max(len(s)-len(t), len(t)-len(s)) >= limit {
		return limit
	}
	before, last, row := make([]int, len(t)+1), make([]int, len(t)+1), make([]int, len(t)+1)
	for j := range last {
		last[j] = j
	}
	for i := range s {
		row[0] = i + 1
		for j := range t {
			cost := 1
			if s[i] == t[j] {
				cost = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+cost)
			if i > 0 && j > 0 && s[i] == t[j-1] && s[i-1] == t[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return min(last[len(t)], limit)
}
