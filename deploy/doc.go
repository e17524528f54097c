// Package deploy holds what an operator installs beside the programs: units of
// systemd, the Debian package, the dashboard and the alerts. There is no Go code in
// it but the tests that hold these against the programs and against the tools that
// read them.
package deploy
