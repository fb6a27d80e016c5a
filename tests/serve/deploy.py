"""Every command of docs/guide/deploy.md: run as it stands, with free ports and directories of this test, or by the test that is named
here, or not run, which the text before it says."""

import os
import re
import shlex
import shutil
import tempfile

from harness import *  # noqa: F403

PAGE = "docs/guide/deploy.md"
# Commands that another test runs, and a word of it that shows that it does.
ELSEWHERE = {
    "haproxy -f packaging/haproxy.cfg": ("tests/serve/restarts.py", "haproxy.cfg"),
    "pip install aiperf==0.13.0": ("tests/serve/load_generator.py", "AIPerf"),
    "aiperf profile --model demo --url http://127.0.0.1:8080 --endpoint-type chat --streaming --tokenizer \"$PWD/models/demo\"   "
    "--request-count 6 --concurrency 2 --synthetic-input-tokens-mean 64 --output-tokens-mean 8 --extra-inputs ignore_eos:true --ui none":
        ("tests/serve/load_generator.py", "ignore_eos:true"),
    "packaging/oci/image.sh build/packages/kakeya_*.deb build/image": ("tests/serve/kubernetes_files.py", "packaging/oci/image.sh"),
}
folder = tempfile.mkdtemp(prefix="kakeya-deploy-")


def blocks():
    """The paragraph before each block of commands, and its lines."""
    with open(PAGE) as f:
        paragraphs = [p for p in re.split(r"\n\n+", f.read()) if p.strip()]
    for before, block in zip(paragraphs, paragraphs[1:]):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            yield before, "\n".join(line[4:] for line in lines).replace("\\\n", "").splitlines()


def is_not_run(before):
    return re.search("not run by a test|no test runs", " ".join(before.split()), re.IGNORECASE) is not None


class Block:
    """Runs the lines of a block: servers stay until its end."""

    def __init__(self):
        self.ports, self.processes, self.servers = {}, [], []

    def port(self, named):
        if named not in self.ports:
            with socket.socket() as s:
                s.bind(("127.0.0.1", 0))
                self.ports[named] = str(s.getsockname()[1])
        return self.ports[named]

    def replaced(self, line):
        line = re.sub(r"\b80\d\d\b", lambda m: self.port(m.group()), line)
        return line.replace("/srv/kakeya/sessions", os.path.join(folder, "sessions"))

    def run(self, line):
        line = self.replaced(line)
        words = shlex.split(line)
        if words[:2] == ["kakeya", "serve"] and "--dry-run" not in words:
            at = words.index("--port")
            self.servers.append(Server(*words[2:at], *words[at:]))
        elif words[0] == "python3" and words[1].startswith("tests/serve/"):
            self.processes.append(subprocess.Popen([sys.executable, *words[1:]]))
            address = ("127.0.0.1", int(words[2]))

            def listens():
                with socket.socket() as s:
                    return s.connect_ex(address) == 0

            eventually(listens, f"{line} listens")
        elif words[0] in ("kakeya", "curl"):
            if words[0] == "kakeya":
                words[0] = KAKEYA
            done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT)
            equal(done.returncode, 0, f"{line}: {done.stderr}")
            holds(done.stdout, f"{line} says something")
        else:
            raise AssertionError(f"nobody knows how to run: {line}")

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
        for server in self.servers:
            equal(server.stop(), 0)


@test("every command is run, here or by another test, or the text before it says that it is not")
def _():
    if not shutil.which("curl"):
        raise Skip("there is no curl")
    os.mkdir(os.path.join(folder, "sessions"), 0o700)
    run = 0
    for before, lines in blocks():
        if is_not_run(before):
            continue
        block = Block()
        try:
            for line in lines:
                if line in ELSEWHERE:
                    name, word = ELSEWHERE[line]
                    with open(name) as f:
                        holds(word in f.read(), f"{name} runs {line}")
                    holds(os.path.basename(name)[:-3].replace("_files", "") in before.replace("test_", ""), f"{line}: {name} is named")
                else:
                    block.run(line)
                    run += 1
        finally:
            block.end()
    holds(run >= 8, f"{run} commands were run")


@test("what is named exists: files of packaging/, tests, and other pages with their sections")
def _():
    with open(PAGE) as f:
        text = f.read()
    for path in set(re.findall(r"`((?:packaging|tests)/[\w./-]+\.\w+)", text)):
        holds(os.path.exists(path), path)

    def sections(path):
        with open(path) as f:
            heads = [line.lstrip("# ").strip() for line in f if line.startswith("#")]
        return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in heads}

    for path, section in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", text):
        path = os.path.join(os.path.dirname(PAGE), path) if path else PAGE
        holds(section in sections(path), f"{path}#{section}")


try:
    run_tests()
finally:
    Server.stop_all()
    shutil.rmtree(folder, ignore_errors=True)
