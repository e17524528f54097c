package main_test

import (
	"context"
	"os/exec"
	"testing"
)

// Debian's python3-websockets is for the system's Python, which is not always
// the first one on the PATH.
const systemPython = "/usr/bin/python3"

const helloInPython = `
import asyncio, ssl, sys, websockets

async def main(url):
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with websockets.connect(url, ssl=context, subprotocols=["relaycore.v1"], open_timeout=60, close_timeout=60) as ws:
        print("subprotocol", ws.subprotocol)
        await ws.send(bytes([1, 0, 1]))
        welcome = await asyncio.wait_for(ws.recv(), 60)
        print("frame", hex(welcome[0]), "version", int.from_bytes(welcome[1:3], "big"), "length", len(welcome))
        pong = await ws.ping()
        await asyncio.wait_for(pong, 60)
        print("pong")
    print("closed", ws.close_code)

asyncio.run(main(sys.argv[1]))
`

func TestPythonReachesTheRelay(t *testing.T) {
	t.Parallel()
	if err := exec.Command(systemPython, "-c", "import websockets").Run(); err != nil {
		missing(t, "python3-websockets for "+systemPython)
	}
	e := runEdge(t, relayBehind)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, systemPython, "-c", helloInPython, "wss://"+e.listeners["public"]+"/relay").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = "subprotocol relaycore.v1\nframe 0x81 version 1 length 76\npong\nclosed 1000\n"
	if string(out) != want {
		t.Errorf("python wrote %q, want %q", out, want)
	}
	e.shows(t, `relayedge_connections_total 1`, `relayedge_connections{listener="public"} 0`,
		`relaycore_rejections_total{reason="unknown_frame"} 0`)
}
