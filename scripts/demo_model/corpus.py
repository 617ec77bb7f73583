"""The demo model's text: English prose out of Debian packages, as cleaned paragraphs.

Every source is one Debian package. Its .deb is fetched with apt-get (never installed) and read as a
stream; a reader turns it into documents, a document is a list of paragraphs. Code, tables, markup,
addresses and duplicates are dropped: the model can only write as well as what it reads.
"""

import gzip
import hashlib
import html.parser
import re
import struct
import subprocess
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator

Document = tuple[str, list[str]]  # (name, paragraphs)


@dataclass
class Source:
    package: str
    what: str
    licence: str
    pattern: str  # members of the package that are read, a regular expression
    read: Callable[[str, bytes], Iterator[Document]]


# ---- Readers: bytes of one package member -> documents ---------------------------------------------------


def unwrap(lines: list[str]) -> list[str]:
    """Joins hard-wrapped lines; blank lines part paragraphs."""
    paragraphs, current = [], []
    for line in lines + [""]:
        if line.strip():
            current.append(line.strip())
        elif current:
            paragraphs.append(" ".join(current))
            current = []
    return paragraphs


def book(name: str, lines: list[str], heading: str) -> Iterator[Document]:
    """A book, one document for each chapter. `heading` matches the line that starts a chapter."""
    chapter, number = [], 0
    for line in lines + [None]:
        if line is None or re.match(heading, line):
            if number:
                yield f"{name}/{number}", unwrap(chapter)
            chapter, number = [], number + 1
        else:
            chapter.append(line)


def gutenberg_body(data: bytes) -> list[str]:
    """Lines of a Project Gutenberg text without its frame."""
    text = data.decode("utf-8", "replace").replace("\r", "")
    start = re.search(r"\*\*\* ?START OF.*\n", text)
    end = re.search(r"(\*\*\* ?END OF|End of (the )?Project Gutenberg)", text)
    return text[start.end() if start else 0 : end.start() if end else len(text)].split("\n")


def r_strings(data: bytes) -> Iterator[list[str]]:
    """The character vectors of an R lazy-load database: zlib chunks of serialised values."""
    while len(data) > 4:
        chunk = zlib.decompressobj()
        raw = chunk.decompress(data[4:])
        data = chunk.unused_data
        strings = []
        for m in re.finditer(rb"\x00[\x00-\x0f][\x00\x40\x80]\x09(....)", raw, re.S):  # CHARSXP, length
            size = struct.unpack(">i", m[1])[0]
            if 0 <= size <= len(raw) - m.end():
                strings.append(raw[m.end() : m.end() + size].decode("utf-8", "replace"))
        yield strings


def read_austen(name: str, data: bytes) -> Iterator[Document]:
    for lines in r_strings(data):
        yield from book(lines[0].title(), lines, r"(?i)\s*chapter [ivxl\d]+\.?\s*$")


def read_moby_dick(name: str, data: bytes) -> Iterator[Document]:
    for strings in r_strings(data):
        text = max(strings, key=len)
        yield from book("Moby Dick", gutenberg_body(text.encode()), r"CHAPTER \d+\.")


def read_sherlock(name: str, data: bytes) -> Iterator[Document]:
    yield from book("Sherlock Holmes", gutenberg_body(data), r"(ADVENTURE )?[IVX]+\. [A-Z' -]+$")


def read_sawyer(name: str, data: bytes) -> Iterator[Document]:
    yield from book("Tom Sawyer", gutenberg_body(data), r"\s*CHAPTER [IVXL]+")


ES_NAMES = {
    "first": "Alex", "last": "Moreau", "ship": "Wanderer", "destination": "the station", "origin": "the port",
    "planet": "this world", "system": "the next", "cargo": "cargo", "commodity": "food", "payment": "a fair sum of credits",
    "npc": "Valiant", "model": "freighter", "date": "the first of May", "day": "the first of May", "bunks": "three",
    "government": "the Republic", "fare": "a few credits", "tons": "twenty tons", "passengers": "three passengers",
    "stopovers": "the nearest worlds", "waypoints": "the nearby systems", "marks": "the nearby systems",
}  # fmt: skip


def read_endless_sky(name: str, data: bytes) -> Iterator[Document]:
    """Missions and places: each top-level entry of a data file is a document."""
    paragraphs, title = [], None
    choice_depth, options = None, 0
    for line in data.decode("utf-8", "replace").split("\n") + ["end"]:
        if line.strip() and not line[0].isspace() and not line.startswith("#"):
            if paragraphs:
                yield f"{name}/{title}", paragraphs
            paragraphs, title, choice_depth = [], line.strip(), None
        depth = len(line) - len(line.lstrip("\t"))
        word = line.split(maxsplit=1)[0] if line.strip() else ""
        if choice_depth is not None and line.strip() and depth <= choice_depth:
            choice_depth = None
        if word == "choice":
            choice_depth, options = depth, 0
        m = re.search(r"`([^`]*)`", line) or re.search(r'\b(?:description|spaceport|dialog) "([^"]*)"', line)
        if not m:
            continue
        if choice_depth is not None:  # the player's answers: only the first of them leads on
            options += 1
            if options > 1:
                continue
        text = re.sub(r"<([a-z ]+)(?:@[^>]*)?>", lambda t: ES_NAMES.get(t[1], "\x00"), m[1])
        paragraphs.append(text.strip())


def read_naev(name: str, data: bytes) -> Iterator[Document]:
    text = data.decode("utf-8", "replace")
    if name.endswith(".xml"):
        found = re.findall(r"<(?:description|bar)>(.*?)</", text, re.S)
    else:
        found = [a or b for a, b in re.findall(r'(?:\[\[(.*?)\]\]|"((?:[^"\\\n]|\\.)*)")', text, re.S)]
    paragraphs = []
    for string in found:
        for paragraph in re.split(r"\n\s*\n|\\n\\n", string):
            paragraphs.append(re.sub(r"\\(.)", r"\1", " ".join(paragraph.split())))
    yield name, paragraphs


def read_wesnoth(name: str, data: bytes) -> Iterator[Document]:
    """Scenarios: the story is narrated, what units say is quoted."""
    text = data.decode("utf-8", "replace")
    text = re.sub(r'"\s*\+\s*_?\s*"', "", text)
    paragraphs, speaker = [], ""
    for m in re.finditer(r'speaker=([^\n]*)|\b(message|story|description)\s*=\s*_\s*"((?:[^"]|"")*)"', text):
        if m[1] is not None:
            speaker = m[1]
            continue
        string = re.sub(r"<ref>.*?text='([^']*)'.*?</ref>", r"\1", m[3].replace('""', "'"))
        spoken = m[2] == "message" and "narrator" not in speaker
        for paragraph in re.split(r"\n\s*\n", re.sub(r"<[^>]*>", "", string)):
            paragraph = " ".join(paragraph.split())
            paragraphs.append(f'"{paragraph}"' if spoken else paragraph)
    yield name, paragraphs


def read_crawl(name: str, data: bytes) -> Iterator[Document]:
    for entry in data.decode("utf-8", "replace").split("%%%%"):
        lines = [line for line in entry.strip().split("\n") if not line.startswith("#")]
        if len(lines) > 2 and not lines[1].strip():
            yield f"{name}/{lines[0]}", unwrap(lines[1:])


class _Prose(html.parser.HTMLParser):
    """Collects the text of <p>; what stands in <pre>, tables and the like is left out."""

    SKIP = {"pre", "script", "style", "nav", "h1", "h2", "h3", "h4", "sup"}
    END = {"p", "dd", "div", "li", "dt", "ul", "ol", "dl", "td", "table", "body"}

    def __init__(self):
        super().__init__()
        self.paragraphs, self.current, self.skip = [], None, 0

    def flush(self):
        if self.current:
            self.paragraphs.append(" ".join("".join(self.current).split()))
        self.current = None

    def handle_starttag(self, tag, attrs):
        if tag in self.SKIP:
            self.skip += 1
        elif tag in self.END:
            self.flush()
        if tag in ("p", "dd") or ("class", "para") in attrs:
            self.current = []

    def handle_endtag(self, tag):
        if tag in self.SKIP:
            self.skip = max(0, self.skip - 1)
        elif tag in self.END:
            self.flush()

    def handle_data(self, data):
        if self.current is not None and not self.skip:
            self.current.append(data)


def read_html(name: str, data: bytes) -> Iterator[Document]:
    parser = _Prose()
    encoding = "latin-1" if b"charset=iso-8859-1" in data[:2000].lower() else "utf-8"
    text = re.sub(r"<(script|title)[^>]*/>", "", data.decode(encoding, "replace"))
    parser.feed(text)
    parser.flush()
    yield name, parser.paragraphs


def read_jargon(name: str, data: bytes) -> Iterator[Document]:
    """The lexicon, its short entries run together forty to a document."""
    text = gzip.decompress(data).decode("utf-8", "replace").translate({ord("{"): None, ord("}"): None})
    entries = re.split(r"\n:[^\n]+:[^\n]*\n", text)[1:]
    for i in range(0, len(entries), 40):
        yield f"{name}/{i}", [p for entry in entries[i : i + 40] for p in unwrap(entry.split("\n"))]


SOURCES = [
    Source("r-cran-janeaustenr", "six novels by Jane Austen", "public domain (package: MIT)", r"data/Rdata\.rdb", read_austen),
    Source("r-cran-tokenizers", "Moby Dick", "public domain (package: MIT)", r"data/Rdata\.rdb", read_moby_dick),
    Source("golang-github-jdkato-prose-dev", "The Adventures of Sherlock Holmes", "public domain (package: Expat)", r"/sherlock\.txt", read_sherlock),
    Source("golang-github-klauspost-compress-dev", "The Adventures of Tom Sawyer", "public domain (package: BSD-3-Clause)", r"compress/testdata/Mark\.Twain.*\.txt", read_sawyer),
    Source("endless-sky-data", "missions and places of a space trading game", "GPL-3+", r"endless-sky/data/.*\.txt", read_endless_sky),
    Source("naev-data", "missions and places of a space game", "GPL-3+", r"naev/dat/(missions|events|assets|landing).*\.(lua|xml)", read_naev),
    *[
        Source(f"wesnoth-1.18-{part}", "a fantasy campaign" if part != "data" else "units and help of a fantasy game", "GPL-2+ and CC-BY-SA-4.0", r"/(campaigns/.*|core/units/.*|core/help|multiplayer/.*)\.cfg", read_wesnoth)
        for part in "data did dm dw ei httt l low nr sof sota sotbe thot trow tsg ttb utbs wof".split()
    ],
    Source("crawl-common", "descriptions of a dungeon game", "GPL-2+", r"dat/descript/(?!quotes|commands|tutorial|hints|monstatus|status)\w+\.txt", read_crawl),
    Source("cfi-en", "Copyright Does Not Exist, a book", "public domain", r"html/(ch\d+web|preface)\.htm", read_html),
    Source("jargon-text", "the Jargon File", "public domain", r"jargon\.txt\.gz", read_jargon),
    Source("rust-doc", "books about the Rust language", "MIT or Apache-2.0", r"html/(book|nomicon|embedded-book|edition-guide)/(?!.*(print|toc)\.html).*\.html", read_html),
    Source("debian-handbook", "The Debian Administrator's Handbook", "GPL-2+ or CC-BY-SA-3.0", r"html/en-US/.*\.html", read_html),
    Source("debian-history", "a history of the Debian project", "GPL-2+", r"\.en\.html", read_html),
]  # fmt: skip


# ---- Cleaning ----------------------------------------------------------------------------------------------

PLAIN = str.maketrans({"“": '"', "”": '"', "‘": "'", "’": "'", "\u00a0": " ", "–": "-", "…": "...", "\u00ad": "", "\u200b": "", "\ufeff": "", "\u2011": "-"})
NOT_PROSE = re.compile(r"https?:|www\.|\w@\w|[{}<>|\\\x00\ufffd^~=]|\$\w|%[sdi(]|\(\)|::|_\w+_\w|/\w+/|\[[a-z_]+\]|&\w+;|[^\x00-\u024f—‐-⁀€£]|\d{5}")


def clean(paragraph: str) -> str | None:
    """The paragraph as plain prose, or None when it is not prose."""
    text = " ".join(paragraph.translate(PLAIN).split())
    text = re.sub(r"\s*(?<!-)--(?!-)\s*|\s+—\s+", "—", text)
    text = re.sub(r"(^|[\s\"'(—])_([^_]+)_", r"\1\2", text)  # _emphasis_
    text = re.sub(r"\s*\[(\d+|Illustration.*?|Footnote.*?)\]", "", text)
    text = re.sub(r"\*\*?([^*]+)\*\*?", r"\1", text)
    if NOT_PROSE.search(text):  # keep the sentences that are prose
        kept = [s for s in re.split(r"(?<=[.!?])\s+(?=[\"A-Z])", text) if not NOT_PROSE.search(s)]
        text = " ".join(kept)
    text = text.strip("`* ")
    if text.count('"') % 2 and text[:1] == '"' and text.count('"') == 1 and not text.endswith(","):
        text += '"'
    letters = sum(c.isalpha() or c == " " for c in text)
    words = text.split()
    if len(words) < 4 or letters < 0.9 * len(text):
        return None
    if not (text[0].isupper() or text[0] in "\"'(") or text.rstrip("\"')—")[-1:] not in (".", "!", "?"):
        return None
    if sum(w.isupper() and len(w) > 2 for w in words) > 0.3 * len(words):  # headings, shouting
        return None
    return text


# ---- Packages ----------------------------------------------------------------------------------------------


def fetch(packages: list[str], folder: Path) -> dict[str, Path]:
    """Downloads what is not there yet. Returns each package's .deb."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [p for p in packages if not list(folder.glob(f"{p}_*.deb"))]
    if missing:
        print(f"fetching {len(missing)} packages", flush=True)
        # apt would become another user to download, who may not write to the folder.
        subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *missing], cwd=folder, check=True)
    return {p: sorted(folder.glob(f"{p}_*.deb"))[-1] for p in packages}


def members(deb: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    """The files of a .deb whose path matches, without unpacking it to disk."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as unpack:
        with tarfile.open(fileobj=unpack.stdout, mode="r|") as tar:
            for member in tar:
                if member.isfile() and re.search(pattern + "$", member.name):
                    data = tar.extractfile(member).read()
                    yield member.name, data


def build(folder: Path) -> tuple[list[dict], list[dict]]:
    """All documents {source, name, text} in a fixed order, and a table of the sources."""
    debs = fetch([s.package for s in SOURCES], folder)
    documents, table, seen = [], [], set()
    for source in SOURCES:
        deb, size, count = debs[source.package], 0, 0
        found = sorted(members(deb, source.pattern))
        for path, data in found:
            for name, paragraphs in source.read(path, data):
                kept = []
                for paragraph in paragraphs:
                    text = clean(paragraph)
                    key = hashlib.sha1(text.encode()).digest() if text else None
                    if text and key not in seen:
                        seen.add(key)
                        kept.append(text)
                text = "\n\n".join(kept)
                if len(text) >= 200:
                    documents.append({"source": source.package, "name": name, "text": text})
                    size, count = size + len(text.encode()), count + 1
        version = deb.name.split("_")[1].replace("%3a", ":")
        table.append({"package": source.package, "version": version, "licence": source.licence, "what": source.what, "documents": count, "bytes": size})
        print(f"  {source.package:40} {count:5} documents {size / 1e6:7.2f} MB", flush=True)
    return documents, table
