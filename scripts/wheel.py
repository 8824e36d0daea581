"""Packs the folder that scripts/bundle.sh makes as a Python wheel.

    wheel.py BUNDLE VERSION PLATFORM OUT     prints the wheel's path

The wheel has the bundle as the folder titan_train of site-packages, and a script titan_train, which pip makes, starts it
with the LibTorch of the installed torch.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import stat
import sys
import zipfile

TORCH = "2.11.0"
# The package: its function is what pip's script titan_train calls. torch is looked for, never imported.
PACKAGE = '''"""The program titan_train and what it needs; not a library of Python."""
import importlib.util
import os
import sys


def main():
    """Starts the program with the LibTorch of the installed torch."""
    if not os.environ.get("TITAN_LIBTORCH"):
        torch = importlib.util.find_spec("torch")
        os.environ["TITAN_LIBTORCH"] = os.path.dirname(torch.origin) if torch and torch.origin else sys.prefix
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "titan_train")
    os.execv("/bin/sh", ["sh", program, *sys.argv[1:]])
'''
ENTRY_POINTS = """[console_scripts]
titan_train = titan_train:main
"""
METADATA = """Metadata-Version: 2.1
Name: titan-train
Version: {version}
Summary: Trains Llama models: titan_train, its libraries and configs
License-File: LICENSE
Requires-Python: >=3.10
Requires-Dist: torch=={torch}
"""
WHEEL = """Wheel-Version: 1.0
Generator: titan
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""
# Equal files give an equal wheel: zip keeps no time before 1980.
EPOCH = (1980, 1, 1, 0, 0, 0)


class Wheel:
    def __init__(self, path: pathlib.Path):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record: list[str] = []

    def add(self, name: str, content: bytes, executable: bool = False) -> None:
        entry = zipfile.ZipInfo(name, EPOCH)
        entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append(f"{name},sha256={digest},{len(content)}")

    def close(self, info: str) -> None:
        self.record.append(f"{info}/RECORD,,")
        self.archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", EPOCH), "\n".join(self.record) + "\n")
        self.archive.close()


def main() -> int:
    bundle, version, platform, out = sys.argv[1:]
    folder, info = pathlib.Path(bundle).resolve(), f"titan_train-{version}.dist-info"
    path = pathlib.Path(out) / f"titan_train-{version}-py3-none-{platform}.whl"
    path.parent.mkdir(parents=True, exist_ok=True)
    wheel = Wheel(path)
    wheel.add("titan_train/__init__.py", PACKAGE.encode())
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    # A wheel has no links: of a library's names only the one that is loaded, which is a link, is kept.
    linked = {file.resolve() for file in files if file.is_symlink()}
    for file in files:
        if file in linked:
            continue
        content = file.read_bytes()
        wheel.add(f"titan_train/{file.relative_to(folder)}", content, file.stat().st_mode & 0o111 != 0)
    wheel.add(f"{info}/entry_points.txt", ENTRY_POINTS.encode())
    wheel.add(f"{info}/licenses/LICENSE", (folder / "LICENSE").read_bytes())
    wheel.add(f"{info}/METADATA", METADATA.format(version=version, torch=TORCH).encode())
    wheel.add(f"{info}/WHEEL", WHEEL.format(platform=platform).encode())
    wheel.close(info)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
