"""Makes the page's files a part of the program: bundle.py MODULES-FILE OUT.cc

MODULES-FILE names the folder with the npm packages of package-lock.json (scripts/lib.sh), or is empty: then the
program has no page. esbuild puts the sources and packages together; what comes out is compressed and written as
C++ (page_routes.h).
"""

import glob
import gzip
import hashlib
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BYTES_MAX = 250_000  # of all files, compressed
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def bundle(modules, folder):
    program = glob.glob(os.path.join(modules, "@esbuild", "*", "bin", "esbuild"))
    if not program:
        sys.exit(f"{modules} has no esbuild for this system: remove the folder, and it is fetched again")
    subprocess.run(
        [
            program[0],
            os.path.join(HERE, "page.js"),
            os.path.join(HERE, "page.css"),
            "--bundle",
            "--minify",
            "--format=esm",
            "--target=chrome109,firefox109,safari16.4",
            "--legal-comments=eof",
            "--charset=utf8",
            "--log-level=warning",
            f"--outdir={folder}",
        ],
        check=True,
        env={**os.environ, "NODE_PATH": modules},
    )
    files = {}
    for name in ("page.html", "icon.svg"):
        with open(os.path.join(HERE, name), "rb") as file:
            files[name] = file.read()
    for name in ("page.js", "page.css"):
        with open(os.path.join(folder, name), "rb") as file:
            files[name] = file.read()
    return files


def array(name, data):
    lines = [",".join(str(byte) for byte in data[i : i + 32]) for i in range(0, len(data), 32)]
    return f"constexpr unsigned char {name}[] = {{\n" + ",\n".join(lines) + "};\n"


def main():
    modules_file, out = sys.argv[1:]
    with open(modules_file, encoding="utf-8") as file:
        modules = file.read().strip()
    arrays, entries, total = [], [], 0
    if modules:
        with tempfile.TemporaryDirectory() as folder:
            files = bundle(modules, folder)
        for i, (name, data) in enumerate(files.items()):
            packed = gzip.compress(data, 9, mtime=0)
            total += len(packed)
            path = "/" if name == "page.html" else "/" + name
            tag = hashlib.sha256(packed).hexdigest()[:20]
            arrays.append(array(f"kPageBytes{i}", packed))
            entries.append(
                f'    {{"{path}", "{TYPES[os.path.splitext(name)[1]]}", "{tag}",\n'
                f"     {{reinterpret_cast<const char*>(kPageBytes{i}), sizeof(kPageBytes{i})}}}},\n"
            )
    if total > BYTES_MAX:
        sys.exit(f"the page has {total} bytes compressed, and {BYTES_MAX} at most are wanted")
    table = "".join(entries)
    text = (
        '#include "node/web/page_routes.h"\n\nnamespace strata {\nnamespace {\n\n'
        + "".join(arrays)
        + "\n}  // namespace\n\nabsl::Span<const PageFile> PageFiles() {\n"
        + (f"  static const PageFile kFiles[] = {{\n{table}  }};\n  return kFiles;\n" if entries else "  return {};\n")
        + "}\n\n}  // namespace strata\n"
    )
    with open(out, "w", encoding="utf-8") as file:
        file.write(text)


main()
