#!/usr/bin/env python3
"""Texts for the study of a public model (docs/laboratory/real-model.md), from Debian packages: to train on, by others to test with.

usage: tools/study_texts.py DIR

DIR/train gets prose, documentation and code (debian-handbook, also in Spanish, French, Italian, Portuguese and Norwegian, anarchism,
python3.11-doc, git-doc, postgresql-doc-15, Python's own library, Django, NetworkX), DIR/test four kinds by other authors: prose
(developers-reference), short articles (dict-jargon), code (docutils), German (developers-reference-de), a language that is not in
DIR/train.
DIR/pieces has six pieces of each of the four, a sequence each for `kakeya eval fidelity`. Packages are downloaded with apt-get and unpacked
there; nothing is installed, and what is there already is kept.
"""
import gzip
import html.parser
import pathlib
import re
import subprocess
import sys

PACKAGES = ["debian-handbook", "anarchism", "python3.11-doc", "git-doc", "postgresql-doc-15", "libpython3.11-stdlib",
            "libpython3.11-minimal", "python3-django", "python3-networkx", "developers-reference", "developers-reference-de",
            "dict-jargon", "python3-docutils"]
HANDBOOK = ["en-US", "es-ES", "fr-FR", "it-IT", "pt-BR", "nb-NO"]  # translated throughout, and none of them the language of the test
TAGS_WITH_A_LINE = {"p", "div", "li", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "pre", "tr", "br", "table", "section"}
TAGS_LEFT_OUT = {"script", "style", "head", "nav", "footer", "form", "svg"}
SMALLEST = 3000  # bytes of a file: shorter ones are menus
KINDS, PIECES, PIECE = ("prose", "german", "jargon", "code"), 6, 4000  # pieces of a kind, characters: 664 tokens or more, not twice that


class Text(html.parser.HTMLParser):
    """What a page says, a paragraph a line."""

    def __init__(self):
        super().__init__()
        self.parts, self.left_out, self.as_is = [], [], False

    def handle_starttag(self, tag, attrs):
        if self.left_out or tag in TAGS_LEFT_OUT or (tag == "div" and ("role", "navigation") in attrs):
            self.left_out.append(tag)
        if tag in TAGS_WITH_A_LINE:
            self.parts.append("\n")
        self.as_is |= tag == "pre"

    def handle_endtag(self, tag):
        if tag in self.left_out:
            del self.left_out[len(self.left_out) - 1 - self.left_out[::-1].index(tag):]
        if tag in TAGS_WITH_A_LINE:
            self.parts.append("\n")
        self.as_is &= tag != "pre"

    def handle_data(self, data):
        if not self.left_out:
            self.parts.append(data if self.as_is else re.sub(r"\s+", " ", data))

    def text(self):
        lines = [line.rstrip() for line in "".join(self.parts).replace("¶", "").split("\n")]
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


def page(path):
    parser = Text()
    parser.feed(path.read_text(encoding="utf-8", errors="replace"))
    return parser.text()


def unpacked(folder, name):
    """The files of a package."""
    into = folder / "packages" / name
    if not into.exists():
        subprocess.run(["apt-get", "download", "-q", name], cwd=folder / "packages", check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        archive = sorted((folder / "packages").glob(name + "_*.deb"))[-1]
        subprocess.run(["dpkg-deb", "-x", archive, into], check=True)
        print(archive.name.split("_")[0], archive.name.split("_")[1].replace("%3a", ":"))
    return into / "usr"


def write(folder, kind, name, text):
    if len(text.encode()) >= SMALLEST:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        (folder / kind / name).write_text(text, encoding="utf-8")


def write_pages(folder, kind, prefix, pages, join=None):
    texts = [(path.stem, page(path)) for path in sorted(pages) if path.stem not in ("search", "genindex", "index")]
    if join:  # short pages side by side, so that sequences are long
        for i in range(0, len(texts), join):
            write(folder, kind, f"{prefix}-{i:03}.txt", "\n".join(text for _, text in texts[i:i + join]))
        return
    for name, text in texts:
        write(folder, kind, f"{prefix}-{name}.txt", text)


def write_pieces(folder):
    """Evenly spaced over all texts of a kind, from the beginning of a line on."""
    for kind in KINDS:
        files = sorted((folder / "test").glob(f"{kind}*.txt"))
        files = [f for f in files if f.stem != f"{kind}-developers-reference"]  # a table of contents
        text = "\n".join(f.read_text(encoding="utf-8") for f in files)
        for i in range(PIECES):
            begin = text.index("\n", (2 * i + 1) * len(text) // (2 * PIECES)) + 1
            write(folder, "pieces", f"{kind}-{i}.txt", text[begin:begin + PIECE])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    (folder / "packages").mkdir(parents=True, exist_ok=True)
    package = {name: unpacked(folder, name) for name in PACKAGES}

    handbook = package["debian-handbook"] / "share/doc/debian-handbook/html"
    for language in HANDBOOK:
        write_pages(folder, "train", f"handbook-{language}", (handbook / language).glob("*.html"), join=8)
    sources = package["python3.11-doc"] / "share/doc/python3.11/html/_sources"
    for part in ("howto", "tutorial", "faq", "reference"):
        for path in sorted((sources / part).glob("*.rst.txt")):
            write(folder, "train", f"python-{part}-{path.name[:-8]}.txt", path.read_text(encoding="utf-8", errors="replace"))
    for name in ("libpython3.11-stdlib", "libpython3.11-minimal"):
        for path in sorted((package[name] / "lib/python3.11").glob("*.py")):
            if not path.is_file():  # a link into a package that is not here
                continue
            write(folder, "train", f"library-{path.stem}.txt", path.read_text(encoding="utf-8", errors="replace"))

    write_pages(folder, "train", "anarchism", (package["anarchism"] / "share/doc/anarchism/html").glob("sec*.html"))
    write_pages(folder, "train", "postgresql", package["postgresql-doc-15"].rglob("*.html"), join=8)
    for path in sorted((package["git-doc"] / "share/doc/git-doc").rglob("*.txt")):
        if path.parent.name != "RelNotes":  # hundreds of short notes of one form
            write(folder, "train", f"git-{path.stem}.txt", path.read_text(encoding="utf-8", errors="replace"))
    for name in ("django", "networkx"):
        top = package[f"python3-{name}"] / "lib/python3/dist-packages" / name
        for path in sorted(top.rglob("*.py")):
            if not {"locale", "tests"} & set(path.parts):  # lists of translated words; one test is like another
                write(folder, "train", f"{name}-{'-'.join(path.relative_to(top).with_suffix('').parts)}.txt",
                      path.read_text(encoding="utf-8", errors="replace"))

    for name, kind in (("developers-reference", "prose"), ("developers-reference-de", "german")):
        pages = [p for p in package[name].rglob("*.html") if "de.html" not in p.name or name.endswith("-de")]
        write_pages(folder, "test", kind, pages)
    jargon = gzip.open(package["dict-jargon"] / "share/dictd/jargon.dict.dz").read().decode("utf-8", errors="replace")
    write(folder, "test", "jargon.txt", jargon)
    for path in sorted((package["python3-docutils"] / "lib/python3/dist-packages/docutils").rglob("*.py")):
        if path.parent.name == "languages":  # lists of translated words
            continue
        write(folder, "test", f"code-{path.parent.name}-{path.stem}.txt", path.read_text(encoding="utf-8", errors="replace"))
    write_pieces(folder)
    for kind in ("train", "test", "pieces"):
        files = list((folder / kind).glob("*.txt"))
        print(f"{folder / kind}: {len(files)} files, {sum(f.stat().st_size for f in files)} bytes")


if __name__ == "__main__":
    main()
