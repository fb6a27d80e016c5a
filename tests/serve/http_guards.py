"""The HTTP layer under clients that send what no client library sends."""

import base64
import fcntl
import hashlib
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import tempfile
import time

from harness import BUILD, KAKEYA, SHORT, Server, Skip, WAIT, WHOLE, equal, eventually, holds, in_threads, read_all, run_tests, test

server = Server()
HOST = b"Host: localhost\r\n"


def status(data):
    found = re.match(rb"HTTP/1\.1 (\d\d\d) ", data)
    holds(found, f"a status line, not {data[:80]!r}")
    return int(found.group(1))


def alive(s=server):
    equal(s.get("/livez").status, 200, "the next request")


def refused(name, data, code=400, half_close=False):
    reply = server.raw(data, half_close=half_close)
    equal(status(reply), code, name)
    equal(reply.count(b"server: kakeya/"), 1, f"{name}: nothing behind it is read as a request")
    holds(b"connection: close" in reply, name)
    holds(b"content-type: application/json" in reply and b'{"error":{"message":' in reply, name)
    alive()


@test("F5: two lengths, a length beside chunks, no Host, two Hosts")
def _():
    smuggled = b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"
    post = b"POST /livez HTTP/1.1\r\n" + HOST
    refused("two lengths", post + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n" + smuggled)
    refused("two equal lengths", post + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n" + smuggled)
    refused("both", post + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled)
    refused("two encodings", post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled)
    refused("another encoding", post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + smuggled)
    refused("no Host", b"GET /livez HTTP/1.1\r\n\r\n" + smuggled)
    refused("two Hosts", b"GET /livez HTTP/1.1\r\n" + HOST + HOST + b"\r\n" + smuggled)


@test("heads that are none: bare line feeds, folded lines, blanks before colons, bad numbers, bad chunks")
def _():
    get = b"GET /livez HTTP/1.1\r\n" + HOST
    refused("blank before the colon", get + b"A : b\r\n\r\n")
    refused("folded line", get + b"A: b\r\n c\r\n\r\n")
    refused("bare line feed", get + b"A: b\nC: d\r\n\r\n")
    refused("NUL", get + b"A: b\0c\r\n\r\n")
    for number in (b"-1", b"+1", b"1 1", b"0x10", b"", b"9" * 19):
        refused(f"length {number}", get.replace(b"GET", b"POST") + b"Content-Length: " + number + b"\r\n\r\n")
    refused("no version", b"GET /livez\r\n\r\n")
    refused("version 2", b"GET /livez HTTP/2.0\r\n" + HOST + b"\r\n")
    refused("relative target", b"GET livez HTTP/1.1\r\n" + HOST + b"\r\n")
    refused("bad escape", b"GET /%zz HTTP/1.1\r\n" + HOST + b"\r\n")
    post = b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    for body in (b"zz\r\n", b"5\r\nabcdeX\r\n", b"5\nabcde\r\n", b"1000000000000000\r\n", b"-1\r\n", b"5 \r\nabcde\r\n",
                 b"5;\r\nabcde\r\n", b"5;a=\x01\r\nabcde\r\n", b"0\r\nno trailer\r\n\r\n"):
        refused(f"chunks {body}", post + body)
        equal(status(server.raw(b"POST /livez HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + body + get +
                                b"\r\n")), 405, "nobody wants the body")


@test("two headers of which one counts, a target of another host")
def _():
    get = b"GET /livez HTTP/1.1\r\n" + HOST
    for name in (b"Authorization", b"X-Api-Key", b"Content-Type", b"Origin"):
        refused(name.decode(), get + name + b": a\r\n" + name.lower() + b": b\r\n\r\n")
    refused("another host", get.replace(b"/livez", b"http://evil.example/livez") + b"\r\n")
    refused("a host for another", get.replace(b"/livez", b"http://localhost/livez").replace(HOST, b"Host: localhost:1\r\n") + b"\r\n")
    refused("a user", get.replace(b"/livez", b"http://a@localhost/livez") + b"\r\n")
    refused("a fragment", get.replace(b"/livez", b"/livez#a") + b"\r\n")
    refused("a list of hosts", get.replace(HOST, b"Host: localhost, evil.example\r\n") + b"\r\n")


@test("F2: a head of 70 KB, 2,000 headers")
def _():
    refused("70 KB", b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 70000 + b"\r\n\r\n")
    refused("70 KB without an end", b"GET / HTTP/1.1\r\n" + HOST + b"A: " + b"x" * 70000)
    refused("2,000 headers", b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n" * 2000 + b"\r\n")


@test("F6: a TLS greeting, the preface of HTTP/2, random bytes")
def _():
    refused("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)))
    refused("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    refused("random", bytes((i * 73 + 11) % 251 + 1 for i in range(500)))


def resident(s=server):
    with open(f"/proc/{s.process.pid}/status") as f:
        return int(re.search(r"VmRSS:\s+(\d+) kB", f.read()).group(1))


def peak_while(act, s=server):
    """What the process grew by at most while something was done, in kB."""
    with open(f"/proc/{s.process.pid}/clear_refs", "w") as f:
        f.write("5")  # the mark of the most begins anew
    before = resident(s)
    act()
    with open(f"/proc/{s.process.pid}/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read()).group(1)) - before


def cpu_seconds(s):
    with open(f"/proc/{s.process.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@test("F1: a body of 33 MiB, by its length and in chunks")
def _():
    before = resident()
    head = b"POST /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    size = 33 << 20
    with server.connect() as s:
        s.sendall(head + b"Content-Length: %d\r\n\r\n" % size)
        equal(status(read_all(s)), 413, "by its length: refused before it is sent")
    with server.connect() as s:
        s.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"%x\r\n" % 65536 + b"x" * 65536 + b"\r\n"
        sent = 0
        try:
            while sent < size:
                s.sendall(piece)
                sent += 65536
        except (BrokenPipeError, ConnectionResetError):
            pass
        equal(status(read_all(s)), 413, "in chunks")
    alive()
    holds(resident() < before + 40 * 1024, "no memory stays behind")


@test("a body of 16 MB with 8 million values is refused before they take memory, also inside a string")
def _():
    zeros = b"[" + b"0," * (8 << 20) + b"0]"

    def send(body, code):
        reply = server.post("/v1/chat/completions", body)
        equal((reply.status, reply.error["code"]), (400, code))

    took = peak_while(lambda: send(b'{"model":"demo","messages":' + zeros + b"}", "invalid_json"))
    holds(took < 60 << 10, f"{took} kB")
    call = b'{"id":"a","type":"function","function":{"name":"f","arguments":"' + zeros + b'"}}'
    ends = b'{"model":"demo","messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[%s]}]}' % call
    took = peak_while(lambda: send(ends, "context_length_exceeded"))
    holds(took < 400 << 10, f"{took} kB in arguments")
    alive()


@test("chunked bodies, Expect: 100-continue, requests behind each other, HTTP/1.0, HEAD, queries, slashes")
def _():
    def post(extra, body):
        return b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n" + extra + b"\r\n" + body

    close = b"GET /livez HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
    reply = server.raw(post(b"Transfer-Encoding: chunked\r\n", b"3;a=b\r\n{} \r\n0\r\nTrailer: x\r\n\r\n") + close)
    equal(re.findall(rb"HTTP/1\.1 (\d+)", reply)[-1], b"200", "what follows the chunks is the next request")
    unwanted = post(b"Transfer-Encoding: chunked\r\n", b"3\r\n{} \r\n0\r\n\r\n").replace(b"application/json", b"text/plain")
    equal(re.findall(rb"HTTP/1\.1 (\d+)", server.raw(unwanted + close)), [b"415", b"200"], "nor are those of a body nobody wants")
    with server.connect() as s:
        s.sendall(post(b"Content-Length: 2\r\nExpect: 100-continue\r\n", b""))
        equal(s.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n", "the client may go on")
        s.sendall(b"{}" + close)
        holds(read_all(s).endswith(b'{"status":"ok"}'))
    reply = server.raw(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n" + b"HEAD /livez/?a=b HTTP/1.1\r\n" + HOST + b"\r\n" + close)
    equal(re.findall(rb"HTTP/1\.1 (\d+)", reply), [b"200"] * 3, "three replies, in order")
    equal(reply.count(b'{"status":"ok"}'), 2, "HEAD has no body")
    equal(reply.count(b"content-length: 15\r\n"), 3, "but its length")
    reply = server.raw(b"GET /livez HTTP/1.0\r\n\r\n")
    holds(reply.endswith(b'{"status":"ok"}') and b"connection: close" in reply, "HTTP/1.0 closes")
    reply = server.raw(b"GET http://localhost/livez HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
    equal(status(reply), 200, "a target with a host")


@test("routes and methods: 404, 405 with Allow, OPTIONS, request ids")
def _():
    equal(server.get("/nothing").error["code"], "not_found")
    reply = server.post("/health", {})
    equal((reply.status, reply.headers["allow"]), (405, "GET, HEAD, OPTIONS"))
    for method in ("PUT", "PATCH", "FOO"):
        equal(server.request(method, "/health").status, 405, method)
    equal(server.request("OPTIONS", "/anything").status, 204)
    equal(server.get("/livez", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"], "mine-1")
    for dirty in ("a b", "x" * 129):
        holds(re.fullmatch(r"req_[0-9A-Za-z]{24}", server.get("/livez", headers={"X-Request-Id": dirty}).headers["x-request-id"]))
    head = server.get("/livez").headers
    equal((head["cache-control"], head["x-content-type-options"]), ("no-store", "nosniff"))
    holds(head["server"].startswith("kakeya/"))


@test("18: keys: wrong, missing, Bearer, x-api-key, from the environment and a file that SIGHUP reads again")
def _():
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as f:
        f.write("# comment\n  file-key  \n\n")
        f.flush()
        s = Server("--api-key", "secret", "--api-key-file", f.name, environment={"KAKEYA_API_KEYS": "one, two"})

        def code(**headers):
            return s.get("/v1/models", headers={k.replace("_", "-"): v for k, v in headers.items()}).status

        denied = s.get("/v1/models")
        equal((denied.status, denied.headers["www-authenticate"]), (401, 'Bearer realm="kakeya"'))
        equal((denied.error["type"], denied.error["code"]), ("authentication_error", "invalid_api_key"))
        for wrong in ("Bearer wrong", "Bearer ", "Bearer secre", "Basic secret", "secret", "Bearer # comment"):
            equal(code(authorization=wrong), 401, wrong)
        for right in ("Bearer secret", "bearer secret", "BEARER one", "Bearer two", "Bearer file-key"):
            holds(code(authorization=right) != 401, right)
        holds(code(x_api_key="secret") != 401)
        equal(s.get("/health").status, 200, "health needs no key")
        f.seek(0)
        f.truncate()
        f.write("fresh\n")
        f.flush()
        s.signal(signal.SIGHUP)
        eventually(lambda: code(authorization="Bearer fresh") != 401, "the file is read again")
        equal(code(authorization="Bearer file-key"), 401, "a key that is gone")
        f.seek(0)
        f.truncate()
        f.write("only\n")
        f.flush()
        equal(s.stop(), 0)
        s = Server("--api-key-file", f.name)
        f.seek(0)
        f.truncate()
        s.signal(signal.SIGHUP)
        eventually(lambda: "there is no key in it" in s.log(), "a file without keys does not open the server")
        holds(code(authorization="Bearer only") != 401, "and the keys stay as they were")
        equal(code(authorization="Bearer fresh"), 401)
        equal(s.stop(), 0)


@test("key files as editors on Windows write them; UTF-16 and NUL are refused")
def _():
    with tempfile.NamedTemporaryFile("wb", suffix=".keys") as f:
        f.write(b"\xef\xbb\xbffirst\r\nsecond\r\n")
        f.flush()
        s = Server("--api-key-file", f.name)
        for key in ("first", "second"):
            holds(s.get("/v1/models", headers={"Authorization": "Bearer " + key}).status != 401, key)
        equal(s.get("/v1/models", headers={"Authorization": "Bearer third"}).status, 401)
        for bad, reason in (("key\n".encode("utf-16"), "is UTF-16"), (b"one\0\ntwo\n", "there is a NUL in it")):
            f.seek(0)
            f.truncate()
            f.write(bad)
            f.flush()
            s.signal(signal.SIGHUP)
            eventually(lambda: reason in s.log(), reason)
            holds(s.get("/v1/models", headers={"Authorization": "Bearer second"}).status != 401, "the keys stay as they were")
        f.seek(0)
        f.truncate()
        f.write(b"\xef\xbb\xbf# none\r\nthird\r\n")
        f.flush()
        s.signal(signal.SIGHUP)
        eventually(lambda: s.get("/v1/models", headers={"Authorization": "Bearer third"}).status != 401, "a comment behind the mark")
        equal(s.get("/v1/models", headers={"Authorization": "Bearer # none"}).status, 401)
        equal(s.stop(), 0)


@test("19: Host of somebody else, content types, origins")
def _():
    equal(server.get("/livez", headers={"Host": "evil.example"}).error["code"], "forbidden_host")
    for host in ("localhost", "LOCALHOST:8080", "127.0.0.1", "[::1]:80", "192.168.1.1:1"):
        equal(server.get("/livez", headers={"Host": host}).status, 200, host)
    for host in ("localhost.evil.example", "[evil]", ""):
        equal(server.get("/livez", headers={"Host": host}).status, 403, host)
    s = Server("--allowed-host", "kakeya.test", "--cors-origin", "https://a.test")
    equal(s.get("/livez", headers={"Host": "kakeya.test:80"}).status, 200)
    head = s.get("/livez", headers={"Origin": "https://a.test"}).headers
    equal((head["access-control-allow-origin"], head["vary"]), ("https://a.test", "Origin"))
    holds("access-control-allow-origin" not in s.get("/livez", headers={"Origin": "https://b.test"}).headers)
    preflight = s.request("OPTIONS", "/v1/chat/completions", headers={
        "Origin": "https://a.test", "Access-Control-Request-Headers": "authorization,x-foo"})
    equal(preflight.headers["access-control-allow-headers"], "authorization,x-foo")
    equal(preflight.headers["access-control-max-age"], "600")
    holds("access-control-allow-origin" not in server.get("/livez", headers={"Origin": "https://a.test"}).headers)
    s.stop()


LONG = 30 << 20


def post(path, extra):
    return b"POST %s HTTP/1.1\r\n" % path + extra


def send(s, data):
    """As far as the other side takes it."""
    try:
        s.sendall(data)
    except (BrokenPipeError, ConnectionResetError):
        pass


@test("what is wrong with a head is said before any of the body is taken, also to who waits for 100 Continue")
def _():
    s = Server("--api-key", "k", "--cors-origin", "https://a.test")
    key, json_type = b"Authorization: Bearer k\r\n", b"Content-Type: application/json\r\n"
    heads = [
        (401, post(b"/v1/chat/completions", HOST + json_type)),
        (401, post(b"/nothing", HOST + json_type)),
        (401, post(b"/v1/messages", HOST + b"X-Api-Key: wrong\r\n" + json_type)),
        (403, post(b"/v1/chat/completions", b"Host: evil.example\r\n" + key + json_type)),
        (404, post(b"/nothing", HOST + key + json_type)),
        (405, post(b"/health", HOST + json_type)),
        (405, post(b"/v1/models", HOST + key + json_type)),
        (415, post(b"/v1/chat/completions", HOST + key + b"Content-Type: text/plain\r\n")),
        (200, b"GET /v1/models HTTP/1.1\r\n" + HOST + key),
        (204, b"OPTIONS /v1/chat/completions HTTP/1.1\r\n" + HOST + b"Origin: https://a.test\r\n"),
    ]
    length, chunks, expect = b"Content-Length: %d\r\n" % LONG, b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n"
    for code, head in heads:
        for framing in (length, length + expect, chunks + expect, b"Content-Length: 2\r\n" + expect):
            with s.connect() as c:  # and sends no body
                c.sendall(head + framing + b"\r\n")
                reply = read_all(c)
                equal((status(reply), b"connection: close" in reply, reply.count(b"HTTP/1.1")), (code, True, 1), (head, framing))
        reply = s.raw(head + b"Content-Length: 5\r\n\r\nGET /" + b"GET /livez HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        equal(re.findall(rb"HTTP/1\.1 (\d+)", reply), [b"%d" % code, b"200"], f"{head}: a short body is passed over")

    def pour():
        with s.connect() as c:
            send(c, heads[0][1] + length + b"\r\n")
            for _ in range(30):
                send(c, b" " * (1 << 20))
            equal(status(read_all(c)), 401)

    took = peak_while(lambda: in_threads([pour] * 20), s)
    holds(took < 20 << 10, f"{took} kB for twenty bodies that nobody may send")
    equal(status(s.raw(post(b"/v1/messages", HOST + key + json_type + b"Content-Length: %d\r\n\r\n" % (33 << 20)))), 413)
    s.stop()


@test("all bodies together have a limit; beyond it clients hear 503 and when to try again")
def _():
    s = Server("--max-bodies", "64M")
    head = post(b"/tokenize", HOST + b"Content-Type: application/json\r\n")
    open_ones = []

    def pour():
        c = s.connect()
        open_ones.append(c)
        send(c, head + b"Content-Length: %d\r\n\r\n" % LONG)
        send(c, b" " * (LONG - 1))

    def fill():
        for _ in range(2):
            pour()
        eventually(lambda: resident(s) > before + (55 << 10), "two bodies are there")
        for _ in range(4):
            pour()
            reply = read_all(open_ones[-1])
            equal((status(reply), b"retry-after: 1\r\n" in reply, b'"code":"overloaded"' in reply), (503, True, True), reply[:300])

    before = resident(s)
    took = peak_while(fill, s)
    holds(took < 80 << 10, f"{took} kB")
    alive(s)
    for c in open_ones:
        c.close()
    eventually(lambda: s.metric("kakeya_http_connections") == 1, "all are gone")
    for _ in range(5):
        equal(s.post("/tokenize", b" " * LONG + b"{}").error["code"], "missing_required_parameter", "each gives back what it took")
    values = b'{"content":"a","b":[' + b"0," * 500000 + b"0]}"
    equal(s.post("/tokenize", values).status, 200, "its tree has room")
    s.stop()
    s = Server("--max-bodies", "32M")
    refused_tree = s.post("/tokenize", values)
    equal((refused_tree.status, refused_tree.headers["retry-after"]), (503, "1"), "a tree that has none")
    equal(s.post("/tokenize", {"content": "a"}).status, 200)
    s.stop()


@test("--max-connections: idle ones give way, else a new one hears 503; --max-per-address")
def _():
    s = Server("--max-connections", "20")
    idle = [s.connect() for _ in range(30)]
    alive(s)
    holds(s.metric("kakeya_http_connections") <= 20)
    for c in idle:
        c.close()
    eventually(lambda: s.metric("kakeya_http_connections") == 1, "only the one that asks")
    busy = []
    for _ in range(20):
        busy.append(s.connect())
        busy[-1].sendall(post(b"/tokenize", HOST + b"Content-Type: application/json\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"))
        equal(status(busy[-1].recv(1000)), 100, "its body is read")
    for _ in range(40):
        with s.connect() as c:
            reply = read_all(c)
            equal((status(reply), b"retry-after: " in reply), (503, True), "nobody is idle")
    for c in busy:
        c.close()
    eventually(lambda: s.get("/livez").status == 200, "there is a place again")
    s.stop()
    s = Server("--max-per-address", "10")
    held = [s.connect() for _ in range(10)]
    with s.connect() as c:
        equal(status(read_all(c)), 503, "the eleventh")

    def elsewhere(n):
        return [socket.create_connection(("127.0.0.1", s.port), WAIT, ("127.0.0.2", 0)) for _ in range(n)]

    others = elsewhere(10)
    others[0].sendall(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
    equal(status(others[0].recv(4096)), 200, "another address is another client")
    for c in held + others:
        c.close()
    eventually(lambda: s.get("/livez").status == 200, "places are given back")
    s.stop()


@test("an address that others can reach: not without a key or --no-key, and then Host is looked at")
def _():
    def refused_start(*options):
        done = subprocess.run([KAKEYA, "serve", "--port", "0", *options], capture_output=True, text=True, timeout=WAIT,
                              env={k: v for k, v in os.environ.items() if not k.startswith("KAKEYA_")})
        equal((done.returncode, done.stdout), (1, ""), options)
        holds("--no-key" in done.stderr.splitlines()[-1], done.stderr)

    refused_start("--host", "0.0.0.0", "--grpc", "off")
    if os.path.exists(f"{BUILD}/tools/grpc_server"):
        refused_start("--grpc", "0.0.0.0:0")
    s = Server("--host", "0.0.0.0", "--no-key", "--allowed-host", "kakeya.test")
    for host, code in (("localhost", 200), ("10.1.2.3:80", 200), ("kakeya.test", 200), ("evil.example", 403)):
        equal(s.get("/livez", headers={"Host": host}).status, code, host)
    s.stop()
    s = Server("--host", "0.0.0.0", environment={"KAKEYA_API_KEYS": "k"})
    equal(s.get("/v1/models", headers={"Host": "kakeya.example", "Authorization": "Bearer k"}).status, 200, "who has the key")
    s.stop()


@test("F3: 500 connections that send a byte a second, in the head and in the body, are cut; others are served")
def _():
    count = 500
    slow, begun = [], []
    for i in range(count):
        begun.append(time.monotonic())
        s = server.connect()
        s.sendall(b"GET /livez HTTP/1.1\r\nHost: localho" if i % 2 else
                  b"POST /livez HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n")
        slow.append(s)
    end = time.monotonic() + WAIT
    cut = [None] * count
    while None in cut and time.monotonic() < end:
        for i, s in enumerate(slow):
            if cut[i] is not None:
                continue
            try:
                s.send(b"x")
                s.setblocking(False)
                if s.recv(1000) == b"":
                    cut[i] = time.monotonic() - begun[i]
            except BlockingIOError:
                pass
            except OSError:
                cut[i] = time.monotonic() - begun[i]
            finally:
                s.setblocking(True)
        alive()
        time.sleep(1)
    holds(None not in cut, f"{cut.count(None)} connections are still open")
    holds(min(cut) > 15, f"a connection was cut after {min(cut):.1f} s")
    for s in slow:
        s.close()


@test("a client that leaves is noticed while nothing is sent to it")
def _():
    with server.connect() as s:
        s.sendall(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
        s.recv(1000)
        s.shutdown(socket.SHUT_WR)
        equal(s.recv(1000), b"", "the server closes too")


@test("a reply that is larger than what sockets hold reaches a client that reads it late")
def _():
    body = b'{"with_pieces": true, "content": "%s"}' % (b"a b " * 250000)
    request = b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    with server.connect() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        s.sendall(request + b"Connection: close\r\n\r\n" + body)
        began = s.recv(1000)  # the reply has begun; longer than the server lingers passes before the rest is asked for
        time.sleep(3.5)
        head, rest = (began + read_all(s)).split(b"\r\n\r\n", 1)
    size = int(re.search(rb"content-length: (\d+)", head).group(1))
    holds(size > 8 << 20, f"the reply has {size} bytes: too few to test anything")
    equal(len(rest), size)


@test("requests behind each other whose replies nobody reads: the server stops reading, and goes on when the client does")
def _():
    many, size = 3000, len(server.get("/").body)
    before = server.metric("kakeya_request_total", route="/", status="200")

    def answered():
        for _ in range(20):
            alive()
        return server.metric("kakeya_request_total", route="/", status="200") - before

    with server.connect() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        s.sendall((b"GET / HTTP/1.1\r\n" + HOST + b"\r\n") * (many - 1) + b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        last = -1
        while (now := answered()) != last:
            last = now
        holds(0 < now * size < 16 << 20, f"{now} replies of {size} bytes wait")
        reply = read_all(s)
    equal(reply.count(b"HTTP/1.1 200 OK\r\n"), many)


@test("requests that come a byte at a time, behind empty lines")
def _():
    with server.connect() as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        s.sendall(b"\r\n" * 5 + b"GE")
        for byte in b"T /livez HTTP/1.1\r\n" + HOST + b"\r\n" + b"POST /tokenize HTTP/1.1\r\n" + HOST + (
                b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
                b"GET /livez HTTP/1.1\r\nConnection: close\r\n") + HOST + b"\r\n":
            s.sendall(bytes([byte]))
        equal(re.findall(rb"HTTP/1\.1 (\d+)", read_all(s)), [b"200", b"400", b"200"])


@test("TLS: the certificate is used, plain clients are not answered, a bad file is named")
def _():
    with tempfile.TemporaryDirectory() as d:
        made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                               "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", f"{d}/key.pem", "-out",
                               f"{d}/cert.pem"], capture_output=True)
        equal(made.returncode, 0, made.stderr)
        s = Server("--tls-cert", f"{d}/cert.pem", "--tls-key", f"{d}/key.pem", ready=False)
        holds(s.url.startswith("https://"))
        context = ssl.create_default_context(cafile=f"{d}/cert.pem")
        with context.wrap_socket(s.connect(), server_hostname="localhost") as c:
            for _ in range(3):
                c.sendall(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n")
                reply = b""
                while b'{"status":"ok"}' not in reply:
                    reply += c.recv(4096)
                equal(status(reply), 200)
        holds(b"HTTP/1.1" not in s.raw(b"GET /livez HTTP/1.1\r\n" + HOST + b"\r\n"))
        s.stop()
        bad = subprocess.run([KAKEYA, "serve", "--port", "0", "--tls-cert", f"{d}/none.pem", "--tls-key", f"{d}/key.pem"],
                             capture_output=True, text=True, timeout=WAIT)
        equal((bad.returncode, bad.stdout), (1, ""))
        holds("none.pem" in bad.stderr.splitlines()[-1], bad.stderr)


@test("the port is open while the model is loading; a model that cannot be loaded ends the server")
def _():
    s = Server("--synthetic", "e2b:layers=6", "--threads", "1", ready=False)
    early = s.get("/health")
    if early.status == 503:  # not where loading was faster than the first request
        equal((early.json["status"], early.json["error"]["code"]), ("loading", 503))
    equal(s.get("/livez").status, 200)
    s.stop()
    bad = subprocess.run([KAKEYA, "serve", "--port", "0", "--model", "/nonexistent"], capture_output=True, text=True, timeout=WAIT)
    equal(bad.returncode, 1)
    holds("/nonexistent" in bad.stderr, bad.stderr)
    taken = subprocess.run([KAKEYA, "serve", "--port", str(server.port)], capture_output=True, text=True, timeout=WAIT)
    equal((taken.returncode, taken.stdout), (1, ""))
    holds(str(server.port) in taken.stderr, taken.stderr)


@test("SIGTERM ends an idle server with status 0, also while it loads")
def _():
    s = Server()
    idle = s.connect()
    equal(s.stop(), 0)
    idle.close()
    s = Server("--synthetic", "e2b:layers=6", "--threads", "1", ready=False)
    equal(s.stop(), 0)


@test("F4: 10,000 idle connections take less than 64 MB, and requests beside them are served")
def _():
    wanted = 900 if SHORT else 10000 if WHOLE else 3000
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < wanted + 200:
        raise Skip(f"a process may open {most} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    s = Server()
    before, connections = resident(s), []
    for _ in range(wanted):
        connections.append(s.connect())
    eventually(lambda: s.metric("kakeya_http_connections") > wanted, "all are accepted")
    alive(s)
    took = resident(s) - before
    holds(took < 64 * 1024 * wanted // 10000, f"{took} kB for {wanted} connections")
    for c in connections:
        c.close()
    eventually(lambda: s.metric("kakeya_http_connections") <= 1, "all are gone")
    in_threads([lambda: alive(s)] * 4)
    s.stop()


@test("F4: beyond the limit of files accepting pauses, the server rests, and goes on when there is room")
def _():
    s = Server(wrapper=["sh", "-c", 'ulimit -n 60; exec "$@"', "sh"])
    connections = [s.connect() for _ in range(100)]  # the kernel takes those that the server does not
    eventually(lambda: s.process.poll() is None and len(os.listdir(f"/proc/{s.process.pid}/fd")) >= 59, "no file is left")
    begun, used = time.monotonic(), cpu_seconds(s)
    while time.monotonic() < begun + 2:
        time.sleep(0.1)
    holds(cpu_seconds(s) - used < 1, f"{cpu_seconds(s) - used} s of CPU in 2 s of waiting")
    for c in connections:
        c.close()
    alive(s)
    s.stop()


@test("another server that holds the directory's lock: metrics are told, and answers computed; with it, files are given up")
def _():
    with tempfile.TemporaryDirectory() as d:
        s = Server("--session-dir", d, "--cache-disk", "4M")

        def ask(word):
            body = {"model": "demo", "messages": [{"role": "user", "content": word * 700}], "max_tokens": 1}
            equal(s.post("/v1/chat/completions", body).status, 200)

        ask("one ")
        eventually(lambda: s.metric("kakeya_store_files") > 0, "the first is saved")
        with open(f"{d}/.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

            def waits():
                fds = f"/proc/{s.process.pid}/fd"
                return any(os.path.realpath(f"{fds}/{fd}") == os.path.realpath(f"{d}/.lock") for fd in os.listdir(fds))

            ask("two ")
            eventually(waits, "the second wants the place of the first")
            before = s.metric("kakeya_request_total", route="/metrics", status="200")
            ask("three ")
            holds(s.metric("kakeya_request_total", route="/metrics", status="200") > before)
        eventually(lambda: s.metric("kakeya_store_save_seconds_count") > 1, "the second has its place")
        holds(s.metric("kakeya_store_bytes", tier="disk") <= 4 << 20)
        equal(s.stop(), 0)


@test("60: the page brings everything along, and its policy lets its own script run (test_page.sh shows it in a browser)")
def _():
    page = server.get("/")
    equal((page.status, page.headers["content-type"]), (200, "text/html; charset=utf-8"))
    holds(len(page.body) < 40 << 10)
    text = page.body.decode()
    equal(re.findall(r"(?:src|href|action)=|url\(|@import|https?://", text), [], "what would come from elsewhere")
    equal(re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", text), [], "text taken for HTML")
    script = text.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = page.headers["content-security-policy"]
    holds("default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy and "connect-src 'self'" in policy, policy)
    equal(page.headers["x-frame-options"], "DENY")
    without = Server("--no-page")
    equal(without.get("/").status, 404)
    without.stop()


run_tests()
