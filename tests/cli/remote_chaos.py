"""A bus that hangs, fails, lies and floods; ends that die at every step; clocks that are wrong; disks that are full."""

import os
import random
import shutil
import signal
import subprocess
import time

from remote_ends import *  # noqa: F403
from remote_ends import Skip, World, equal, eventually, finish, holds, kill, read, root, sign, stop, test, write


# Before or after the Nth call of git or ssh-keygen that an end makes, the end itself is killed.
KILLER = """
n=$(($(cat "{folder}/calls" 2>/dev/null || echo 0) + 1))
echo $n >"{folder}/calls"
if [ $n = {at} ]; then
    [ {when} = before ] || "$REAL" "$@" >/dev/null 2>&1
    kill -9 $PPID
    exit 1
fi
exec "$REAL" "$@"
"""


def calls_of(end):
    path = os.path.join(end.folder, "calls")
    n = int(read(path)) if os.path.exists(path) else 0
    if n:
        os.unlink(path)
    return n


def set_killer(end, at, when):
    calls_of(end)
    for name in ("git", "ssh-keygen"):
        end.tool(name, KILLER.format(folder=end.folder, at=at, when=when))


def points_between(steps):
    """Once between any two calls, and in front of the first and behind the last one."""
    return [(at, when) for at in range(1, steps + 1, 2) for when in ("before", "after")] + [(steps, "after")] * (steps % 2 == 0)


def clear_killer(end):
    for name in ("git", "ssh-keygen"):
        end.tool(name, None)
    calls_of(end)


@test("kill -9 of a worker at every call of git and ssh-keygen: nothing is lost, nothing is answered twice")
def _():
    w = World()
    w.mini.program()
    set_killer(w.mini, 0, "before")
    w.alice.ask()
    w.mini.serve()
    steps = calls_of(w.mini)
    holds(steps > 12, f"{steps} calls")
    points = points_between(steps)
    done_before = len(w.mini.ran())
    for at, when in points:
        nonce = w.alice.ask()
        set_killer(w.mini, at, when)
        died = w.mini.call("serve", "--once")
        equal(died.returncode, -signal.SIGKILL, (at, when, died.out, died.err))
        clear_killer(w.mini)
        w.mini.serve()
        what = f"killed {when} call {at}"
        holds(nonce in w.refs("results"), what)
        equal(w.result(nonce)["outcome"], "done", what)
        holds(1 <= w.mini.ran().count(nonce) <= 2, f"{what}: ran {w.mini.ran().count(nonce)} times")
        equal((w.refs("claims"), os.listdir(os.path.join(w.mini.state, "runs"))), ([], []), what)
        w.alice.ok("fetch", nonce)
    # What was complete was not run again: only those that were killed with the run's result in their hands alone.
    total = len(w.mini.ran()) - done_before
    asked = len(points)
    holds(total < 1.5 * asked + 2, f"{total} runs for {asked} requests")


@test("kill -9 of a worker while it runs: the run ends with it, and begins again with the next")
def _():
    w = World()
    w.mini.program('echo $$ >>"$OLDPWD/pids"; sleep 1000'.replace("$OLDPWD", w.folder))
    nonce = w.alice.ask()
    server = w.mini.start("serve", "--poll", "1")
    pids = os.path.join(w.folder, "pids")
    eventually(lambda: os.path.exists(pids) and read(pids).strip(), "it runs")
    equal(w.refs("claims"), [nonce])
    w.mini.program()
    kill(server)
    w.mini.serve()  # at once: it waits until nothing of the last one is left
    eventually(lambda: not os.path.exists(f"/proc/{read(pids).split()[0]}"), "the run has ended")
    result = w.result(nonce)
    equal((result["outcome"], result["attempt"], w.mini.ran()), ("done", 2, [nonce, nonce]))
    # SIGTERM, in order: the same.
    w.mini.program("sleep 1000")
    nonce = w.alice.ask()
    server = w.mini.start("serve", "--poll", "1")
    eventually(lambda: nonce in w.mini.ran(), "it runs")
    out = stop(server)
    equal(server.returncode, 128 + signal.SIGTERM)
    equal(w.refs("claims"), [nonce], out)
    w.mini.program()
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.result(nonce)["attempt"]), ("done", 2))
    # One that kills its worker each time is given up.
    nonce = w.alice.ask()
    for _ in range(3):
        w.mini.program("kill -9 $(ps -o ppid= -p $PPID)")
        died = w.mini.call("serve", "--once")
        equal(died.returncode, -signal.SIGKILL, died.out)
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.result(nonce)["reason"]), ("failed", "workers died several times while it ran"))


@test("kill -9 of the end that asks, at every call: a request is whole or not there, and another one works")
def _():
    w = World()
    w.mini.program()
    set_killer(w.alice, 0, "before")
    w.alice.ask()
    steps = calls_of(w.alice)
    points = points_between(steps)
    for at, when in points:
        set_killer(w.alice, at, when)
        equal(w.alice.call("run", "env").returncode, -signal.SIGKILL)
        clear_killer(w.alice)
    nonce = w.alice.ask()
    w.mini.serve()
    equal(w.refs("requests"), w.refs("results"))
    equal({w.result(n)["outcome"] for n in w.refs("results")}, {"done"})
    equal(sorted(w.mini.ran()), w.refs("results"))
    w.alice.ok("fetch", nonce)
    equal([n for n in os.listdir(w.alice.state) if n.startswith("bus-")], [])


@test("a dead worker's claim is taken over after its lease, by the clock of the one that takes it")
def _():
    w = World()
    other = w.add_worker("big", lease_seconds=3)
    w.mini.program("sleep 1000")
    other.program()
    nonce = w.alice.ask()
    server = w.mini.start("serve", "--poll", "1")
    eventually(w.mini.ran, "it runs")
    kill(server)
    equal(w.refs("claims"), [nonce])
    begun = time.monotonic()
    log = other.serve()
    equal(other.ran(), [], log)
    server = other.start("serve", "--poll", "1")
    eventually(other.ran, "it is taken over")
    holds(time.monotonic() - begun >= 3, "not before the lease is over")
    eventually(lambda: nonce in w.refs("results"), "it is answered")
    stop(server)
    equal((w.result(nonce)["worker"], w.result(nonce)["attempt"]), ("big", 2))
    # The dead one comes back: the work is done.
    w.mini.program()
    w.mini.serve()
    equal((len(w.mini.ran()), len(other.ran())), (1, 1))
    # A worker that lives, and whose claim was taken away, ends its run.
    w.mini.program("sleep 1000")
    w.mini.change(limits={"renew_seconds": 1})
    nonce = w.alice.ask()
    server = w.mini.start("serve", "--poll", "1")
    eventually(lambda: nonce in w.mini.ran(), "it runs")
    w.put("claims", nonce, {"claim.json": "{}"})
    line = ""
    while "another worker has taken over" not in line and server.poll() is None:
        line = server.stdout.readline()
    holds("taken over" in line, "it ends its run")
    stop(server)
    equal(w.refs("results").count(nonce), 0)


@test("signs of life keep a claim, whatever the clocks say")
def _():
    clock = wrong_clock()

    def keeps(lease):
        """Whether a run that is longer than the lease of another worker's stays with its own."""
        w = World(renew_seconds=1)
        other = w.add_worker("big", lease_seconds=lease)
        w.mini.program(f"sleep {2 * lease + 1}")
        other.program()
        nonce = w.alice.ask()
        servers = [w.mini.start("serve", "--poll", "1")]
        eventually(w.mini.ran, "it runs")
        # An hour ahead, every lease is over by what the claim says.
        servers.append(other.start("serve", "--poll", "1", environment={"LD_PRELOAD": clock, "WRONG_BY": "3600"}))
        eventually(lambda: nonce in w.refs("results"), "it is answered")
        for server in servers:
            stop(server)
        return (w.mini.ran(), other.ran(), w.result(nonce)["attempt"]) == ([nonce], [], 1)

    # A worker that stands still for as long as a lease gives no sign of life: then once more with a longer one.
    holds(any(keeps(lease) for lease in (4, 12, 24)), "it was taken over")


def wrong_clock():
    """A library that moves the calendar's clock of one program."""
    source = os.path.join(root, "clock.c")
    library = os.path.join(root, "clock.so")
    write(source, """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
static long shift(void) { const char *by = getenv("WRONG_BY"); return by ? atol(by) : 0; }
int clock_gettime(clockid_t clock, struct timespec *t) {
    int failed = (int)syscall(SYS_clock_gettime, clock, t);
    if (clock == CLOCK_REALTIME) t->tv_sec += shift();
    return failed;
}
time_t time(time_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
""")
    if not shutil.which("cc"):
        raise Skip("there is no C compiler")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@test("a clock that is off by an hour: the reason says so, and nothing is run")
def _():
    w = World()
    w.mini.program()
    clock = wrong_clock()
    slow = {"LD_PRELOAD": clock, "WRONG_BY": "-3600"}
    nonce = w.alice.ask()
    w.mini.serve(environment=slow)
    equal(w.result(nonce)["outcome"], "rejected")
    holds("one of the two clocks is wrong" in w.result(nonce)["reason"], w.result(nonce))
    holds("set the clock" in w.mini.call("doctor", environment=slow).out)
    done = w.alice.call("fetch", nonce)
    holds("clocks is wrong" in done.out, done.out + done.err)
    # An hour ahead is within the life of a request.
    nonce = w.alice.ask()
    w.mini.serve(environment={"LD_PRELOAD": clock, "WRONG_BY": "3600"})
    equal(w.result(nonce)["outcome"], "done")
    equal(w.mini.ran(), [n for n in w.refs("results") if w.result(n)["outcome"] == "done"])


@test("a bus that hangs is given up after its time; the worker goes on when it answers again")
def _():
    w = World(bus_seconds=2)
    w.mini.program()
    w.alice.change(limits={"bus_seconds": 2})
    hang = 'for word; do case $word in ls-remote|fetch|push) trap "" TERM; sleep 1000 & wait;; esac; done; exec "$REAL" "$@"'
    w.alice.tool("git", hang)
    w.alice.fails("no answer within 2 s", "run", "env")
    w.alice.fails("no answer within 2 s", "list")
    w.alice.tool("git", None)
    w.alice.change(limits={"bus_seconds": 600})  # where nothing hangs, nothing depends on it
    nonce = w.alice.ask()
    w.mini.tool("git", hang)
    server = w.mini.start("serve", "--poll", "1")
    line = ""
    while "cannot work" not in line and server.poll() is None:
        line = server.stdout.readline()
    holds("no answer within 2 s" in line, line)
    w.mini.tool("git", None)
    eventually(lambda: nonce in w.refs("results"), "it is answered")
    stop(server)
    # Hanging on one thing alone: the fetch of a request.
    w.mini.tool("git", hang.replace("ls-remote|fetch|push", "fetch"))
    nonce = w.alice.ask()

    def cannot_be_read():  # but where the machine stands still it has not even come so far
        return f"{nonce}: cannot be read" in w.mini.call("serve", "--once").out

    eventually(cannot_be_read, "the fetch is given up")
    w.mini.tool("git", None)
    w.mini.change(limits={"bus_seconds": 600})
    w.mini.serve()
    equal(w.result(nonce)["outcome"], "done")
    # An interrupt does not wait for the bus.
    w.alice.tool("git", hang)
    process = w.alice.start("list")
    eventually(lambda: "ls-remote" in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout, "it hangs")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    holds("interrupted" in err, err)


@test("a bus whose answer is lost, or that fails half-way, neither loses nor doubles")
def _():
    w = World()
    w.mini.program()
    # The push arrives, its answer does not.
    lost_answer = ('for word; do case $word in push) "$REAL" "$@"; echo "fatal: the remote end hung up" >&2; exit 128;; esac; done; '
                   'exec "$REAL" "$@"')
    w.alice.tool("git", lost_answer)
    nonce = w.alice.ask()
    w.mini.tool("git", lost_answer)
    w.mini.serve()
    equal((w.result(nonce)["outcome"], w.mini.ran(), w.refs("claims")), ("done", [nonce], []))
    # The push does not arrive.
    failing = 'for word; do case $word in push) echo "fatal: the remote end hung up" >&2; exit 128;; esac; done; exec "$REAL" "$@"'
    w.alice.tool("git", failing)
    w.alice.fails("hung up", "run", "env")
    w.alice.tool("git", None)
    second = w.alice.ask()
    w.mini.tool("git", failing)
    log = w.mini.serve()
    holds("later again" in log and w.mini.ran() == [nonce], log)
    w.mini.tool("git", None)
    # The result does not arrive: it stays on the disk, and is pushed when the bus takes it.
    w.mini.tool("git", 'case "$*" in *" push "*refs/heads/kakeya/results/*) exit 128;; esac; exec "$REAL" "$@"')
    log = w.mini.serve()
    equal((w.refs("results"), w.mini.ran()), ([nonce], [nonce, second]), log)
    w.mini.serve()
    equal((w.refs("results"), w.mini.ran()), ([nonce], [nonce, second]))
    w.mini.tool("git", None)
    w.mini.serve()
    equal((w.result(second)["outcome"], w.mini.ran(), w.refs("claims")), ("done", [nonce, second], []))
    # Sometimes everything fails.
    chance = random.Random(11)
    for _ in range(5):
        w.mini.tool("git", f'[ $(($(od -An -N1 -tu1 /dev/urandom) % 4)) != 0 ] || exit 128; exec "$REAL" "$@"  # {chance.random()}')
        third = w.alice.ask()
        for _ in range(4):
            w.mini.call("serve", "--once")
        w.mini.tool("git", None)
        w.mini.serve()
        equal(w.result(third)["outcome"], "done")


@test("corrupt objects, missing ones, huge ones: not read, and the next request is")
def _():
    w = World()
    w.mini.program()
    bad = []
    for _ in range(3):
        nonce, body = w.request()
        bad.append(w.forge(body, nonce))
    for n, damage in enumerate((b"", b"x" * 50)):
        oid = w.git("rev-parse", f"refs/heads/kakeya/requests/{bad[n]}:request.json").decode().strip()
        path = os.path.join(w.bus, "objects", oid[:2], oid[2:])
        holds(os.path.exists(path), "a loose object")
        os.chmod(path, 0o644)
        write(path, damage)
    oid = w.git("rev-parse", f"refs/heads/kakeya/requests/{bad[2]}^{{tree}}").decode().strip()
    os.unlink(os.path.join(w.bus, "objects", oid[:2], oid[2:]))
    good = w.alice.ask()
    log = w.mini.serve()
    equal(w.refs("results"), [good], log)
    for nonce in bad:
        holds(f"{nonce}: cannot be read" in log, log)

    size = 100 << 20
    for data in (b"\0" * size, os.urandom(size)):
        nonce, _ = w.request()
        w.put("requests", nonce, {"request.json": data, "request.json.sig": "x"})
        server = w.mini.start("serve", "--once")
        most = 0
        while server.poll() is None:
            held = subprocess.run(["du", "-s", "--apparent-size", "-B1", w.mini.state], capture_output=True, text=True).stdout.split()
            most = max(most, int(held[0]) if held else 0)
            time.sleep(0.02)
        log = server.communicate()[0]
        holds(f"{nonce}: cannot be read" in log, log)
        holds(most < (70 << 20), f"the state folder held {most} bytes")
        w.git("update-ref", "-d", f"refs/heads/kakeya/requests/{nonce}")
    good = w.alice.ask()
    w.mini.serve()
    holds(good in w.refs("results"))
    # The same from the other side: a result that is too large.
    w.put("results", good, {"result.json": b"\0" * (1 << 20), "result.json.sig": "x"})
    w.alice.fails("result.json: ", "fetch", good)


@test("many refs, of all kinds, that nobody has signed: few answers, and the one good request is run")
def _():
    w = World()
    w.mini.program()
    now = time.time()
    _, body = w.request()
    other = sign(w.mini.key, body)  # a key that is no requester's
    for i in range(40):
        nonce = time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime(now)) + f"{i:08x}"
        w.put("requests", nonce, {"request.json": body, "request.json.sig": other})
    for i in range(80):  # more than are read in one round
        w.put("requests", time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime(now - 1)) + f"{i:08x}", {"request.json": body})
    good = w.alice.ask()
    log = w.mini.serve()
    holds(good in w.refs("results") and w.result(good)["outcome"] == "done", log)
    holds(25 <= len(w.refs("results")) <= 35, len(w.refs("results")))
    holds("there were too many like it" in log, log)


@test("a full disk: nothing is run that could not be noted, and it is run when there is room")
def _():
    w = World()
    w.mini.program()
    nonce = w.alice.ask()
    inside = os.path.join(w.folder, "small")
    os.makedirs(inside)
    if subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=2m", "x", inside], capture_output=True).returncode:
        raise Skip("no file system of its own can be mounted here")
    shell = (f'mount -t tmpfs -o size=2m x "{inside}" && head -c 3000000 /dev/zero >"{inside}/full" 2>/dev/null; "$@"; s=$?; '
             f'find "{inside}" -name served.log -exec cat {{}} +; exit $s')
    done = w.mini.call("serve", "--once", "--state", inside, wrapper=("unshare", "-rm", "sh", "-c", shell, "sh"))
    holds("no space left" in (done.out + done.err).lower() or "cannot" in done.out + done.err, done.out + done.err)
    equal((w.mini.ran(), w.refs("results")), ([], []))
    # Full in the middle: the run itself fills it.
    w.mini.program(f"head -c 3000000 /dev/zero >fill; echo '{{}}'")
    shell = f'mount -t tmpfs -o size=2m x "{inside}" && "$@"; "$@"'
    done = w.mini.call("serve", "--once", "--state", inside, wrapper=("unshare", "-rm", "sh", "-c", shell, "sh"))
    holds(w.mini.ran().count(nonce) >= 1, done.out)
    w.mini.program()
    w.mini.serve()
    if w.refs("claims"):  # of the worker whose disk is gone
        w.git("update-ref", "-d", f"refs/heads/kakeya/claims/{nonce}")
        w.mini.serve()
    holds(nonce in w.refs("results"), "it is answered")


finish()
