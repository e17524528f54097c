//go:build race

package httpguard

const underRace = true
