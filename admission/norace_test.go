//go:build !race

package admission

const underRace = false
