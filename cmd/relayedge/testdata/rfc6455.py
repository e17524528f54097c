"""Plays RFC 6455's cases against a relay, with Autobahn's client.

Each case has a sender of its own, which proves an identity and opens a circuit
to one receiver. What a case does to the sender's connection is a few calls of
Autobahn's protocol; what it must come to are the messages that arrive at the
receiver, the pongs, and the code of the relay's close frame.
"""

import asyncio
import hashlib
import struct
import sys

from autobahn.asyncio.websocket import WebSocketClientFactory, WebSocketClientProtocol
from autobahn.websocket.utf8validator import Utf8Validator
from nacl.signing import SigningKey

PATIENCE = 20
HEAD = 43  # of a SEND
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class Client(WebSocketClientProtocol):
    def __init__(self):
        super().__init__()
        self.opened = asyncio.get_running_loop().create_future()
        self.closed = asyncio.get_running_loop().create_future()
        self.frames = asyncio.Queue()
        self.pongs = []
        self.well = asyncio.Event()
        self.subprotocol = self.extensions = None

    def onConnect(self, response):
        self.subprotocol, self.extensions = response.protocol, response.extensions

    def onOpen(self):
        self.opened.set_result(None)

    def onMessage(self, payload, isBinary):
        self.frames.put_nowait(payload if isBinary else b"text")

    def onPong(self, payload):
        if payload == b"well":
            self.well.set()
        else:
            self.pongs.append(payload)

    def onClose(self, wasClean, code, reason):
        if not self.opened.done():
            self.opened.set_exception(Exception("no upgrade: %s" % reason))
        # None stands for a stream that ended without a close frame.
        self.closed.set_result(self.remoteCloseCode)
        self.frames.put_nowait(None)

    async def frame(self, kind):
        """Waits for the next frame, which must be of the kind."""
        f = await asyncio.wait_for(self.frames.get(), PATIENCE)
        if f is None or f[0] != kind:
            raise Exception("%r came for %#x" % (f and f[:60], kind))
        return f

    async def publish(self, seed):
        key = SigningKey(hashlib.sha256(seed).digest())
        self.identity = key.verify_key.encode()
        self.sendMessage(b"\x01\x00\x01", isBinary=True)
        nonce = (await self.frame(0x81))[3:35]
        bundle = b"bundle"
        proof = nonce + hashlib.sha256(bundle).digest() + bytes(32)
        self.sendMessage(
            b"\x02" + self.identity + struct.pack(">H", len(bundle)) + bundle
            + key.sign(b"relaycore.v1 bundle\0" + bundle).signature
            + key.sign(b"relaycore.v1 proof\0" + proof).signature, isBinary=True)
        await self.frame(0x82)

    def ask(self, target):
        self.sendMessage(b"\x03" + bytes(8) + b"\x01" + target + bytes(5120), isBinary=True)

    def message(self, n):
        """The content of a message of n bytes."""
        filler = bytes(i * 7 & 0xFF for i in range(256)) * (n // 256 + 1)
        return b"\x04\x00\x00" + self.circuit + struct.pack(">32x")[:24] + struct.pack(">Q", n) + filler[HEAD:n]

    def whole(self, n, chop=None):
        self.sendFrame(BINARY, self.message(n), chopsize=chop)

    def cut(self, n, size, between=lambda: None, chop=None):
        """A message of n bytes in frames of size bytes."""
        m, opcode = self.message(n), BINARY
        while True:
            piece, m = m[:size], m[size:]
            self.sendFrame(opcode, piece, fin=not m, chopsize=chop)
            if not m:
                return
            opcode = 0
            between()

    def close(self, code, reason=b""):
        self.sendFrame(CLOSE, struct.pack(">H", code) + reason)


class Case:
    def __init__(self, name, act, delivered=(), pongs=(), fails=None, closes=None):
        self.name, self.act = name, act
        self.delivered, self.pongs = list(delivered), list(pongs)
        self.fails, self.closes = fails, closes


def steps(*calls):
    """Calls the methods that are named, with their arguments."""
    def act(c):
        for name, *args in calls:
            getattr(c, name)(*args)
    return act


def frame(opcode, payload=b"", fin=True, rsv=0):
    return ("sendFrame", opcode, payload, fin, rsv)


def cases():
    for n in (HEAD, 125, 126, 127, 128, 65535, 65536):
        for chop in (None, 1 if n < 1000 else 4096, 997):
            yield Case("binary of %d bytes in chops of %s" % (n, chop), lambda c, n=n, chop=chop: c.whole(n, chop), delivered=[n])
    yield Case("empty message", steps(("sendMessage", b"", True)), fails=1007)
    for n in (0, 125, 126, 127, 128, 65535, 65536):
        yield Case("text of %d bytes" % n, steps(("sendMessage", b"*" * n, False)), fails=1003)

    for payload in (b"", b"Hello", b"\x00\xff\xfe\xfd", b"\xfe" * 125):
        yield Case("ping %r" % payload[:8], steps(("sendPing", payload)), pongs=[payload])
        yield Case("pong %r" % payload[:8], steps(("sendPong", payload)))
    yield Case("pong, then ping", steps(("sendPong", b"a"), ("sendPing", b"b")), pongs=[b"b"])
    yield Case("ping in chops of 1", lambda c: c.sendFrame(PING, b"\xfe" * 125, chopsize=1), pongs=[b"\xfe" * 125])
    yield Case("ping of 126 bytes", steps(frame(PING, b"a" * 126)), fails=1002)
    yield Case("pong of 126 bytes", steps(frame(PONG, b"a" * 126)), fails=1002)
    ten = [b"payload %d" % i for i in range(10)]
    yield Case("ten pings", steps(*(("sendPing", p) for p in ten)), pongs=ten)
    yield Case("ten pings in chops of 1", lambda c: [c.sendFrame(PING, p, chopsize=1) for p in ten], pongs=ten)

    for rsv in range(1, 8):
        for opcode in (TEXT, BINARY, CLOSE, PING, PONG):
            yield Case("reserved bits %d, opcode %d" % (rsv, opcode), steps(("whole", 64), frame(opcode, b"", True, rsv), ("whole", 65)), delivered=[64], fails=1002)
    for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15):
        for payload in (b"", b"reserved"):
            yield Case("opcode %d with %d bytes" % (opcode, len(payload)), steps(("whole", 64), frame(opcode, payload), ("whole", 65)), delivered=[64], fails=1002)

    def streamed(c):
        m = c.message(1000)
        c.beginMessage(isBinary=True)
        c.sendMessageFrame(m[:100])
        c.sendMessageFrame(b"")
        c.beginMessageFrame(400)
        c.sendMessageFrameData(m[100:300])
        c.sendMessageFrameData(m[300:500])
        c.sendMessageFrame(m[500:])
        c.endMessage()

    yield Case("message frame by frame", streamed, delivered=[1000])
    yield Case("message that Autobahn fragments", lambda c: c.sendMessage(c.message(65536), isBinary=True, fragmentSize=1300), delivered=[65536])
    for size in (1, 2, 50, 99):
        yield Case("fragments of %d bytes" % size, lambda c, size=size: c.cut(100, size), delivered=[100])
        yield Case("fragments of %d bytes in chops of 1" % size, lambda c, size=size: c.cut(100, size, chop=1), delivered=[100])
    yield Case("pings between fragments", lambda c: c.cut(100, 20, lambda: c.sendPing(b"mid")), delivered=[100], pongs=[b"mid"] * 4)
    yield Case("pongs between fragments", lambda c: c.cut(100, 20, lambda: c.sendPong(b"mid")), delivered=[100])
    yield Case("message inside a message", lambda c: c.cut(100, 50, lambda: c.whole(101)), fails=1002)
    yield Case("text inside a message", lambda c: c.cut(100, 50, lambda: c.sendFrame(TEXT, b"a")), fails=1002)
    yield Case("close inside a message", lambda c: c.cut(100, 50, lambda: c.close(1000)), closes=1000)
    for fin in (False, True):
        yield Case("continuation of nothing, fin %s" % fin, steps(frame(0, b"a", fin), ("whole", 100)), fails=1002)
        yield Case("continuation behind a message, fin %s" % fin, steps(("whole", 64), frame(0, b"a", fin), ("whole", 65)), delivered=[64], fails=1002)
    for opcode in (CLOSE, PING, PONG):
        yield Case("fragmented control frame %d" % opcode, steps(frame(opcode, b"", False), frame(0, b"")), fails=1002)
    yield Case("text in fragments", steps(frame(TEXT, b"a", False), frame(0, b"b")), fails=1003)

    for text in (b"", b"Hello", "κόσμε".encode(), "\U0001f984".encode(), b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbe", b"\xf4\x8f\xbf\xbf",
                 b"\x80", b"\xc3", b"\xc3\x28", b"\xe2\x82", b"\xf0\x9f\xa6", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf",
                 b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xfe", b"\xff"):
        validator = Utf8Validator()
        valid, ends, _, _ = validator.validate(text)
        good = valid and ends
        yield Case("reason %r" % text, lambda c, text=text: c.close(1000, text),
                   closes=1000 if good else None, fails=None if good else 1007)
        yield Case("text %r" % text, steps(frame(TEXT, text), frame(PING, b"behind")), fails=1003)

    yield Case("sendClose", steps(("sendClose", 1000, "bye")), closes=1000)
    yield Case("sendClose of a code of ours", steps(("sendClose", 4999)), closes=4999)
    yield Case("close without a body", steps(frame(CLOSE)), closes=1000)
    yield Case("close of one byte", steps(frame(CLOSE, b"\x03")), fails=1002)
    yield Case("reason of 123 bytes", lambda c: c.close(1000, b"*" * 123), closes=1000)
    yield Case("reason of 124 bytes", lambda c: c.close(1000, b"*" * 124), fails=1002)
    yield Case("message, close, ping and message", steps(("whole", 64), ("close", 1000), frame(PING, b"behind"), ("whole", 65)), delivered=[64], closes=1000)
    yield Case("two closes", steps(("close", 1000), ("close", 1001)), closes=1000)
    yield Case("256 KiB, close and ping", steps(("whole", 1 << 18), ("close", 1000), frame(PING, b"behind")), delivered=[1 << 18], closes=1000)
    for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 3000, 3999, 4000, 4999):  # Autobahn does not know 1014
        yield Case("code %d" % code, steps(("close", code)), closes=code)
    for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535):
        yield Case("code %d" % code, steps(("close", code)), fails=1002)

    for n in (1 << 20, 4 << 20):
        yield Case("%d bytes" % n, steps(("whole", n)), delivered=[n])
        for size in (1 << 12, 1 << 16):
            yield Case("%d bytes in frames of %d" % (n, size), steps(("cut", n, size)), delivered=[n])
    yield Case("4 MiB and one byte", steps(("whole", (4 << 20) + 1)), fails=1009)
    yield Case("4 MiB and one byte in halves", steps(("cut", (4 << 20) + 1, 2 << 20)), fails=1009)
    yield Case("200 messages of 1,000 bytes", steps(*[("whole", 1000)] * 200), delivered=[1000] * 200)


async def connect(url):
    factory = WebSocketClientFactory(url, protocols=["relaycore.v1"])
    factory.protocol = Client
    factory.setProtocolOptions(failByDrop=False, openHandshakeTimeout=PATIENCE, closeHandshakeTimeout=PATIENCE, serverConnectionDropTimeout=PATIENCE)
    _, client = await asyncio.get_running_loop().create_connection(factory, factory.host, factory.port)
    await asyncio.wait_for(client.opened, PATIENCE)
    if client.subprotocol != "relaycore.v1" or client.extensions:
        raise Exception("subprotocol %r, extensions %r" % (client.subprotocol, client.extensions))
    return client


async def play(case, url, receiver):
    sender = await connect(url)
    await sender.publish(case.name.encode())
    sender.ask(receiver.identity)
    await receiver.frame(0x83)
    receiver.ask(sender.identity)
    sender.circuit = (await sender.frame(0x86))[9:]
    await receiver.frame(0x86)
    case.act(sender)
    if case.fails is None and case.closes is None:
        sender.sendFrame(PING, b"well")
        await asyncio.wait_for(sender.well.wait(), PATIENCE)
        # What was sent has arrived before its circuit ends.
        got = [await receiver.frame(0x84) for _ in case.delivered]
        sender.sendClose(1000)
        case.closes = 1000
    else:
        got = []
    code = await asyncio.wait_for(sender.closed, PATIENCE)
    while True:
        f = await asyncio.wait_for(receiver.frames.get(), PATIENCE)
        if f is None or f[0] == 0x87:
            break
        got.append(f)
    for f in got:
        if f[0] != 0x84 or f[1:] != sender.message(len(f))[1:]:
            raise Exception("%r arrived" % f[:60])
    if [len(f) for f in got] != case.delivered:
        raise Exception("messages of %r bytes arrived" % [len(f) for f in got])
    if sender.pongs != case.pongs:
        raise Exception("pongs %r" % sender.pongs)
    if code != (case.fails or case.closes):
        raise Exception("closed with %r, %r" % (code, sender.remoteCloseReason))
    acks = 0
    while not sender.frames.empty():
        f = sender.frames.get_nowait()
        acks += f is not None and f[0] == 0x88
    if acks != len(case.delivered):
        raise Exception("%d messages are acknowledged" % acks)


async def worker(url, number, rest, failed):
    """Plays cases with a receiver of its own until none is left."""
    receiver = await connect(url)
    await receiver.publish(b"receiver %d" % number)
    played = 0
    for case in rest:
        played += 1
        try:
            await play(case, url, receiver)
        except Exception as fault:
            failed.append("%s: %s: %s" % (case.name, type(fault).__name__, fault))
            if len(failed) > 10:
                break
            # What is on its way to this receiver belongs to no other case.
            receiver.sendClose(1000)
            receiver = await connect(url)
            await receiver.publish(b"receiver %d" % number)
    receiver.sendClose(1000)
    if await asyncio.wait_for(receiver.closed, PATIENCE) != 1000:
        failed.append("receiver %d: closed with %r" % (number, receiver.remoteCloseCode))
    return played


async def main(url):
    rest, failed = iter(cases()), []
    played = await asyncio.gather(*(worker(url, i, rest, failed) for i in range(4)))
    print("\n".join(failed + ["%d cases, %d failed" % (sum(played), len(failed))]))
    return failed


sys.exit(1 if asyncio.run(main(sys.argv[1])) else 0)
