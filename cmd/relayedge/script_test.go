package main_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

var update = flag.Bool("update", false, "rewrite the golden files of the scripts with what the commands say")

// The scripts have these commands beside testscript's own:
//
//	background NAME PROGRAM [ARG...]   start a program
//	await NAME stdout|stderr PATTERN   wait until it wrote PATTERN; (?P<VAR>...) sets $VAR
//	signal NAME                        send it SIGTERM
//	hangup NAME                        send it SIGHUP
//	ended NAME CODE                    wait until it ended by itself with exit code CODE
//	shows URL PATTERN                  wait until the body at URL matches PATTERN
//	status URL CODE                    wait until URL answers with the HTTP status CODE
//	occupy VAR                         take a port, as another program would; $VAR is its address
//	echo-service VAR                   start a TCP echo service; $VAR is its address
//	hold NAME ADDRESS                  open a TLS connection and keep it
//	[!] echoes NAME                    write on the held connection and read the same back
//	refuses ADDRESS                    wait until nothing listens at ADDRESS
//	hears-end NAME                     read the held connection to its end, and close it
//	release NAME                       close it
//	certificate                        write fullchain.pem and privkey.pem for localhost
//	expand FILE                        replace $VAR in the file by its value
//	valid-json FILE                    the file is a JSON object
//
// The condition metrics-port-held is that the tests hold 127.0.0.1:9090.
func TestScripts(t *testing.T) {
	bin := binFolder(t)
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Setup: func(env *testscript.Env) error {
			s := &stage{processes: map[string]*process{}, held: map[string]*tls.Conn{}}
			env.Values[stageKey{}] = s
			env.Defer(s.clear)
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("GORACE", os.Getenv("GORACE"))
			example, err := filepath.Abs("../../config.example.yaml")
			env.Setenv("EXAMPLE", example)
			return err
		},
		Condition: func(condition string) (bool, error) {
			if condition != "metrics-port-held" {
				return false, fmt.Errorf("there is no condition %q", condition)
			}
			return metricsPortHeld, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"background":   takes(-2, background),
			"await":        takes(3, await),
			"signal":       takes(1, signalProcess),
			"hangup":       takes(1, hangUp),
			"ended":        takes(2, ended),
			"shows":        takes(2, shows),
			"status":       takes(2, status),
			"occupy":       takes(1, occupy),
			"echo-service": takes(1, echoService),
			"hold":         takes(2, hold),
			"echoes":       echoes,
			"refuses":      takes(1, refuses),
			"hears-end":    takes(1, hearsEnd),
			"release":      takes(1, release),
			"certificate":  takes(0, certificate),
			"expand":       takes(1, expand),
			"valid-json":   takes(1, validJSON),
		},
	})
}

// stage is what a script has standing.
type stage struct {
	processes map[string]*process
	held      map[string]*tls.Conn
	others    []func()
}

type stageKey struct{}

func stageOf(ts *testscript.TestScript) *stage { return ts.Value(stageKey{}).(*stage) }

func (s *stage) clear() {
	for _, conn := range s.held {
		conn.NetConn().Close()
	}
	for _, p := range s.processes {
		p.stop()
	}
	for _, end := range s.others {
		end()
	}
}

// takes refuses a negated command, and a number of arguments other than n; at
// least -n if n is negative.
func takes(n int, do func(*testscript.TestScript, []string)) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, negated bool, args []string) {
		if negated {
			ts.Fatalf("this command cannot be negated")
		}
		if n >= 0 && len(args) != n || n < 0 && len(args) < -n {
			ts.Fatalf("wrong number of arguments: %q", args)
		}
		do(ts, args)
	}
}

func background(ts *testscript.TestScript, args []string) {
	s := stageOf(ts)
	if s.processes[args[0]] != nil {
		ts.Fatalf("%s runs already", args[0])
	}
	program := args[1]
	if found := filepath.Join(binaries.folder, program); exists(found) {
		program = found
	}
	cmd := exec.Command(program, args[2:]...)
	cmd.Dir = ts.MkAbs(".")
	p, err := start(cmd, args[0])
	ts.Check(err)
	s.processes[args[0]] = p
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func processOf(ts *testscript.TestScript, name string) *process {
	p := stageOf(ts).processes[name]
	if p == nil {
		ts.Fatalf("nothing named %s was started", name)
	}
	return p
}

func await(ts *testscript.TestScript, args []string) {
	p := processOf(ts, args[0])
	tr := map[string]*transcript{"stdout": &p.stdout, "stderr": &p.stderr}[args[1]]
	if tr == nil {
		ts.Fatalf("%q is neither stdout nor stderr", args[1])
	}
	pattern, err := regexp.Compile("(?m)" + args[2])
	ts.Check(err)
	match, err := p.await(tr, pattern)
	ts.Check(err)
	for i, name := range pattern.SubexpNames() {
		if name != "" {
			ts.Setenv(name, match[i])
		}
	}
}

func signalProcess(ts *testscript.TestScript, args []string) {
	ts.Check(processOf(ts, args[0]).cmd.Process.Signal(syscall.SIGTERM))
}

func hangUp(ts *testscript.TestScript, args []string) {
	ts.Check(processOf(ts, args[0]).cmd.Process.Signal(syscall.SIGHUP))
}

func ended(ts *testscript.TestScript, args []string) {
	p := processOf(ts, args[0])
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	code, err := p.ended()
	ts.Check(err)
	if code != want {
		ts.Fatalf("%s ended with exit code %d; it wrote:\n%s%s", p.name, code, p.stdout.String(), p.stderr.String())
	}
}

func get(url string) (code int, body string, err error) {
	client := &http.Client{Timeout: patience}
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, string(b), err
}

func shows(ts *testscript.TestScript, args []string) {
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	ts.Check(eventually(func() error {
		_, body, err := get(args[0])
		if err == nil && !pattern.MatchString(body) {
			err = fmt.Errorf("%s does not show %s:\n%s", args[0], pattern, body)
		}
		return err
	}))
}

func status(ts *testscript.TestScript, args []string) {
	ts.Check(eventually(func() error {
		code, body, err := get(args[0])
		if err == nil && strconv.Itoa(code) != args[1] {
			err = fmt.Errorf("%s answers %d: %s", args[0], code, body)
		}
		return err
	}))
}

func occupy(ts *testscript.TestScript, args []string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Setenv(args[0], ln.Addr().String())
	stageOf(ts).others = append(stageOf(ts).others, func() { ln.Close() })
}

func echoService(ts *testscript.TestScript, args []string) {
	s, err := serve("127.0.0.1:0", echo)
	ts.Check(err)
	ts.Setenv(args[0], s.Addr().String())
	stageOf(ts).others = append(stageOf(ts).others, s.close)
}

func hold(ts *testscript.TestScript, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}}
	conn, err := dialer.DialContext(ctx, "tcp", args[1])
	ts.Check(err)
	stageOf(ts).held[args[0]] = conn.(*tls.Conn)
}

func echoes(ts *testscript.TestScript, negated bool, args []string) {
	if len(args) != 1 || stageOf(ts).held[args[0]] == nil {
		ts.Fatalf("usage: [!] echoes NAME")
	}
	conn := stageOf(ts).held[args[0]]
	conn.SetDeadline(time.Now().Add(patience))
	_, err := io.WriteString(conn, "are you there?\n")
	line := ""
	if err == nil {
		line, err = bufio.NewReader(conn).ReadString('\n')
	}
	if good := err == nil && line == "are you there?\n"; good == negated {
		ts.Fatalf("%q came back, %v", line, err)
	}
}

func refuses(ts *testscript.TestScript, args []string) {
	ts.Check(eventually(func() error {
		conn, err := net.DialTimeout("tcp", args[0], patience)
		if err == nil {
			conn.Close()
			return fmt.Errorf("%s takes connections", args[0])
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	}))
}

func hearsEnd(ts *testscript.TestScript, args []string) {
	conn := stageOf(ts).held[args[0]]
	if conn == nil {
		ts.Fatalf("no connection %s is held", args[0])
	}
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
		ts.Fatalf("the connection %s does not end", args[0])
	}
	release(ts, args)
}

func release(ts *testscript.TestScript, args []string) {
	s := stageOf(ts)
	if s.held[args[0]] == nil {
		ts.Fatalf("no connection %s is held", args[0])
	}
	s.held[args[0]].Close()
	delete(s.held, args[0])
}

func certificate(ts *testscript.TestScript, _ []string) {
	_, _, err := writeCertificate(ts.MkAbs("."))
	ts.Check(err)
}

func validJSON(ts *testscript.TestScript, args []string) {
	var object map[string]any
	if err := json.Unmarshal([]byte(ts.ReadFile(args[0])), &object); err != nil {
		ts.Fatalf("%s: %v", args[0], err)
	}
}

func expand(ts *testscript.TestScript, args []string) {
	text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o644))
}
