package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// suiteOfPeers is the Debian release that the peers come from.
const suiteOfPeers = "trixie"

// peersSystem makes the system that the peers come from, in a folder below cache,
// unless it is there; and returns its root.
func peersSystem(cache string) (string, error) {
	root := filepath.Join(cache, suiteOfPeers)
	if complete(root) {
		return root, nil
	}
	if os.Geteuid() != 0 {
		return "", errors.New("debootstrap and chroot need root")
	}
	tool, err := exec.LookPath("debootstrap")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	part := root + ".part"
	if err := os.RemoveAll(part); err != nil {
		return "", err
	}
	fmt.Printf("debootstrap puts haproxy, nginx and hitch of %s into %s, once; that takes minutes\n", suiteOfPeers, root)
	out, err := exec.Command(tool, "--variant=minbase", "--include=haproxy,nginx,libnginx-mod-stream,hitch", suiteOfPeers, part).CombinedOutput()
	if err == nil && !complete(part) {
		err = errors.New("a peer is missing in what it made")
	}
	if err == nil {
		err = os.Rename(part, root)
	}
	if err != nil {
		os.RemoveAll(part)
		lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
		return "", fmt.Errorf("debootstrap: %w: %s", err, lines[len(lines)-1])
	}
	return root, nil
}

// complete reports whether all peers that a system has to have are below a root.
func complete(root string) bool {
	for _, p := range peers {
		if p.debian && !p.there(root) {
			return false
		}
	}
	return true
}

func (p *peer) there(root string) bool {
	_, err := os.Stat(filepath.Join(root, p.program))
	return err == nil
}

// version asks a peer which version it is of.
func (p *peer) version(root string) string {
	if !p.debian {
		return runtime.Version()
	}
	flag := map[string]string{"hitch": "--version"}[p.name]
	if flag == "" {
		flag = "-v"
	}
	number := regexp.MustCompile(`\d+(\.\d+)+`)
	return number.FindString(insideOf(root, p.program, flag))
}

// opensslVersion is that of the library that the peers use.
func opensslVersion(root string) string {
	return regexp.MustCompile(`\d+(\.\d+)+`).FindString(insideOf(root, "/usr/bin/dpkg-query", "-W", "-f", "${Package} ${Version}\n", "libssl3*"))
}

// insideOf is what a program of a system says; nothing if it fails.
func insideOf(root, program string, args ...string) string {
	cmd := exec.Command(program, args...)
	if root != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		cmd.Dir = "/"
	}
	out, _ := cmd.CombinedOutput()
	return string(out)
}

// thisMachine is what the figures are of.
func thisMachine() machine {
	m := machine{CPUs: runtime.NumCPU()}
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	if found := regexp.MustCompile(`(?m)^model name\s*: (.*)$`).FindSubmatch(cpu); found != nil {
		m.CPU = string(found[1])
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel = strings.TrimSpace(string(kernel))
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	m.Load, _ = strconv.ParseFloat(first, 64)
	return m
}

// build builds our programs into a folder, as they are released.
func build(folder string, race bool) error {
	args := []string{"build", "-o", folder + "/"}
	env := os.Environ()
	if race { // nothing is measured then, and other tests have built the same
		args = append(args, "-race")
	} else {
		args, env = append(args, "-trimpath"), append(env, "CGO_ENABLED=0")
	}
	cmd := exec.Command("go", append(args, "relayedge/cmd/relayedge", "relayedge/bench/naive")...)
	cmd.Env = env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	return nil
}

// certify writes the certificate that all proxies serve, its key, and both in one file.
func certify(folder string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		DNSNames:     []string{"localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(30 * 24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	secret := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	for name, text := range map[string][]byte{
		"certificate.pem": certificate, "key.pem": secret, "both.pem": append(certificate[:len(certificate):len(certificate)], secret...),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}
