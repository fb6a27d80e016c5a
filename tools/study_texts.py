#!/usr/bin/env python3
"""Texts for the study of a public model (docs/laboratory/real-model.md), from Debian packages: to train on, by others to test with.

usage: tools/study_texts.py DIR

DIR/train gets prose and documentation, short articles (the dictionaries FOLDOC and GCIDE), code (Python, Ruby, Go and C++) and
documentation in fourteen languages besides English; TRAIN below lists it all. DIR/test gets four kinds by other authors: prose
(developers-reference), short articles (dict-jargon), code (docutils), German (developers-reference-de), a language that is not in
DIR/train. Articles of FOLDOC that name the Jargon File are left out.
DIR/pieces has six pieces of each of the four, a sequence each for `kakeya eval fidelity` with --prompt-length 600. DIR/longer/N has
four with the same beginnings, one of each kind, which are long enough for --prompt-length N: 600, 780, 960, 1140, 1320 and 1500.
Packages are downloaded with apt-get and unpacked there; nothing is installed, and what is there already is kept.
"""
import gzip
import html.parser
import pathlib
import re
import subprocess
import sys

TEST_PACKAGES = ["developers-reference", "developers-reference-de", "dict-jargon", "python3-docutils"]
# What is trained on: a name, the package, the files in it, and how many megabytes are taken of them, evenly spread. None is German.
MANUALS = ["ca", "cs", "da", "es", "fr", "it", "nl", "pt", "ro", "sv"]
DESKTOP = ["ca", "cs", "da", "es", "fi", "fr", "hu", "it", "nl", "pl", "pt_BR", "ro", "sv"]
TRAIN = [
    *((f"handbook-{language}", "debian-handbook", f"share/doc/debian-handbook/html/{language}/*.html", 2)
      for language in ("en-US", "es-ES", "fr-FR", "it-IT", "pt-BR", "nb-NO")),  # those that are translated throughout
    ("anarchism", "anarchism", "share/doc/anarchism/html/sec*.html", 4),
    ("postgresql", "postgresql-doc-15", "share/**/*.html", 4),
    ("git", "git-doc", "share/doc/git-doc/**/*.txt", 3),
    *((f"python-{part}", "python3.11-doc", f"share/doc/python3.11/html/_sources/{part}/*.rst.txt", 2)
      for part in ("howto", "tutorial", "faq", "reference")),
    ("perl", "perl-doc", "share/perl/*/pod/*.pod", 3),
    ("faq", "debian-faq", "share/doc/debian/FAQ/*.en.html", 1),
    ("sqlite", "sqlite3-doc", "share/doc/sqlite3/**/*.html", 2),
    ("foldoc", "dict-foldoc", "share/dictd/foldoc.dict.dz", 6),
    ("gcide", "dict-gcide", "share/dictd/gcide.dict.dz", 2.5),
    *((f"reference-{language}", f"debian-reference-{language}", f"share/debian-reference/*.{language}.html", 1)
      for language in ("es", "fr", "it", "pt")),
    *((f"installation-{language}", "installation-guide-amd64", f"share/doc/installation-guide-amd64/{language}/*.html", 0.7)
      for language in ("en", *MANUALS)),
    *((f"desktop-{language}", "gnome-user-docs", f"share/help/{language}/gnome-help/*.page", 0.6) for language in ("C", *DESKTOP)),
    *((f"office-{language}", f"libreoffice-help-{language}", f"share/libreoffice/help/{language}/**/*.html", 1.5)
      for language in ("da", "nl", "sv")),
    ("library", "libpython3.11-stdlib", "lib/python3.11/*.py", 5),
    ("library-minimal", "libpython3.11-minimal", "lib/python3.11/*.py", 5),
    *((name, f"python3-{name}", f"lib/python3/dist-packages/{name}/**/*.py", most)
      for name, most in (("django", 4), ("networkx", 2), ("sympy", 4), ("numpy", 2), ("scipy", 2), ("sqlalchemy", 3), ("twisted", 3),
                         ("pygments", 1.5))),
    ("ruby", "libruby3.1", "lib/ruby/3.1.0/**/*.rb", 1.5),
    ("go", "golang-1.19-src", "share/go-1.19/src/**/*.go", 2),
    ("eigen", "libeigen3-dev", "include/eigen3/Eigen/**/*.h", 1.5),
]
NOT_TEXT = {"search", "genindex", "index", "toc", "keywords"}
NOT_CODE = {"locale", "tests", "test", "RelNotes", "unicode_data"}  # lists of translated words; one test is like another
TOGETHER = 40000  # characters of a file of short pages, side by side, so that sequences are long
TAGS_WITH_A_LINE = {"p", "div", "li", "dt", "dd", "h1", "h2", "h3", "h4", "h5", "pre", "tr", "br", "table", "section"}
TAGS_LEFT_OUT = {"script", "style", "head", "nav", "footer", "form", "svg", "info"}
SMALLEST = 3000  # bytes of a file: shorter ones are menus
KINDS, PIECE = ("prose", "german", "jargon", "code"), 4000  # characters of a piece: 664 tokens or more, not twice that
LONGER = 3250  # the same where a piece is to be as long as its prompt
PROMPTS = (600, 780, 960, 1140, 1320, 1500)  # tokens before those that are scored, of a kind's six longer pieces


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


def write_pages(folder, kind, prefix, pages):
    for path in sorted(pages):
        if path.stem not in NOT_TEXT:
            write(folder, kind, f"{prefix}-{path.stem}.txt", page(path))


def articles(path):
    """Of a dictionary, those that are not from the one that is tested with. An article begins at the margin."""
    text = gzip.open(path).read().decode("utf-8", errors="replace")
    return [a for a in re.split(r"\n(?=\S)", text) if "jargon" not in a.lower()]


def trained_texts(paths):
    for path in paths:
        if path.suffix == ".dz":
            found = articles(path)
            yield from ("\n".join(found[i:i + 100]) + "\n" for i in range(0, len(found), 100))
        elif path.suffix in (".html", ".page"):
            yield page(path)
        else:
            yield path.read_text(encoding="utf-8", errors="replace")


def write_train(folder, name, top, pattern, most):
    """Evenly spread over the texts, `most` million bytes of them at most, short ones together."""
    paths = [p for p in sorted(top.glob(pattern)) if p.is_file() and p.stem not in NOT_TEXT and not NOT_CODE & set(p.parts)]
    texts = list(trained_texts(paths))
    size = sum(len(t.encode()) for t in texts)
    if not size:
        sys.exit(f"{name}: nothing is at {top}/{pattern}")
    share = min(1, most * 1e6 / size)
    texts = [t for i, t in enumerate(texts) if int((i + 1) * share) > int(i * share)]
    together, number = "", 0
    for i, text in enumerate(texts):
        together += text + "\n"
        if len(together) >= TOGETHER or i + 1 == len(texts):
            write(folder, "train", f"{name}-{number:03}.txt", together)
            together, number = "", number + 1


def write_pieces(folder):
    """Evenly spaced over all texts of a kind, from the beginning of a line on."""
    for kind in KINDS:
        files = sorted((folder / "test").glob(f"{kind}*.txt"))
        files = [f for f in files if f.stem != f"{kind}-developers-reference"]  # a table of contents
        text = "\n".join(f.read_text(encoding="utf-8") for f in files)
        for i, prompt in enumerate(PROMPTS):
            begin = text.index("\n", (2 * i + 1) * len(text) // (2 * len(PROMPTS))) + 1
            write(folder, "pieces", f"{kind}-{i}.txt", text[begin:begin + PIECE])
            write(folder, f"longer/{prompt}", f"{kind}.txt", text[begin:begin + LONGER * (prompt + 64) // (PROMPTS[0] + 64)])


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1]).resolve()
    (folder / "packages").mkdir(parents=True, exist_ok=True)
    packages = [*TEST_PACKAGES, *(entry[1] for entry in TRAIN)]
    package = {name: unpacked(folder, name) for name in dict.fromkeys(packages)}
    for name, of, pattern, most in TRAIN:
        write_train(folder, name, package[of], pattern, most)
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
