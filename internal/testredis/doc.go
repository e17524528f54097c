// Package testredis runs redis-server for tests: alone, with a replica and
// redis-sentinel, or as a cluster. Each server has a port and a folder of its own,
// keeps nothing on disk, and can be stopped, started again and frozen. A [Proxy]
// before it delays what passes, or cuts it. A test that needs a server is skipped
// where the program is missing.
package testredis
