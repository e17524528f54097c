package redisstore

import (
	_ "embed"

	"github.com/redis/rueidis"
)

// script is one that the server runs as a whole: by its hash, or by its text
// where the server does not know it (any more), which is no failure.
type script struct{ lua *rueidis.Lua }

//go:embed window.lua
var windowScript string

//go:embed messages.lua
var messagesScript string

// serverClock gives scripts the time in microseconds. It is the server's, so that
// all processes count by one clock. Tests put one of their own in its place.
const serverClock = `local function clock()
	local t = redis.call('TIME')
	return t[1] * 1000000 + t[2]
end
`

func newScript(clock, text string) *script { return &script{rueidis.NewLuaScript(clock + text)} }
