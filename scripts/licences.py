"""Collects the licence of every shared library that a package of titan holds.

    licences.py LIBRARIES FOLDER [SITE]...

For each library in the folder LIBRARIES a text FOLDER/NAME.txt is written, NAME being the package that the library comes
from: what the Python package in a SITE says whose record names the file, else the copyright file of the Debian package.
titan's own libraries need none beside LICENSE. Exits with 69 and names the libraries for which there is no text.
"""

from __future__ import annotations

import csv
import pathlib
import re
import subprocess
import sys

OWN = re.compile(r"(lib)?titan(_\w+)?(\.so)?$")
TEXTS = re.compile(r"(?i)(licen[cs]e|notice|copying|copyright)")


def python_packages(site: pathlib.Path) -> dict[str, tuple[str, list[pathlib.Path]]]:
    """File name of each shared library of the site's packages → the package and its licence texts."""
    found = {}
    for record in sorted(site.glob("*.dist-info/RECORD")):
        package = record.parent.name.split("-")[0]
        with record.open(newline="") as lines:
            files = [site / name for name, *_ in csv.reader(lines)]
        texts = sorted(file for file in files if TEXTS.match(file.name) and file.is_file())
        found |= {file.name: (package, texts) for file in files if ".so" in file.name}
    return found


def debian_text(library: pathlib.Path) -> tuple[str, list[pathlib.Path]] | None:
    """The package that owns the library of this name on this machine; the copies have other contents (stripped)."""
    for folder in ("/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib", "/usr/local/lib"):
        path = pathlib.Path(folder, library.name)
        if not path.exists():
            continue
        for one in (path, path.resolve()):
            owner = subprocess.run(["dpkg", "-S", str(one)], capture_output=True, text=True, check=False)
            if owner.returncode == 0:
                package = owner.stdout.split(":")[0]
                return package, [pathlib.Path("/usr/share/doc", package, "copyright")]
    return None


def main() -> int:
    libraries, folder, *sites = map(pathlib.Path, sys.argv[1:])
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, tuple[str, list[pathlib.Path]]] = {}
    for site in sites:
        known |= python_packages(site)
    missing = []
    for library in sorted(libraries.iterdir()):
        if OWN.match(library.name.split(".so")[0]):
            continue
        source = known.get(library.name) or debian_text(library)
        texts = [path for path in source[1] if path.is_file()] if source else []
        if not texts:
            missing.append(library.name)
            continue
        parts = [path.read_text(errors="replace") for path in texts]
        (folder / f"{source[0]}.txt").write_text("\n\n".join(parts))
        with (folder / "libraries.txt").open("a") as index:
            index.write(f"{library.name}  {source[0]}.txt\n")
    if missing:
        print(f"error: no licence text was found for {', '.join(missing)}", file=sys.stderr)
        print("  Install the packages of these libraries, with their files below /usr/share/doc.", file=sys.stderr)
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main())
