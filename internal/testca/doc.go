// Package testca runs a certificate authority for tests: pebble, which nobody
// here wrote, as a program of its own, with a DNS server that leads every name to
// 127.0.0.1, and a proxy in front that counts orders and can refuse them.
package testca
