"""Prints how large the program is: signs of weight, for before and after a change.

    size.py [CHECKOUT]          of src/ and include/; CHECKOUT is this one if it is not given
    size.py --frames            the calls from main to the first matrix product of a training step (needs gdb)

Classes and functions are found by their form in formatted sources, without a compiler: methods are the declarations of a
class body, members are names that end with an underscore, a function ends with a brace in the first column.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]


def sources(checkout):
    folders = (checkout / "src", checkout / "include")
    return [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in (".h", ".cpp", ".cu", ".cuh")]


def includers(texts):
    """By header, by the end of its path: the files that include it."""
    found = collections.defaultdict(set)
    for path, text in texts.items():
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', text, re.M):
            found[name].add(path)
    return found


def class_bodies(text):
    """(name, body) of classes and structs that are not nested."""
    for match in re.finditer(r"^(?:class|struct) (\w+)[^;{()]*\{$", text, re.M):
        end = text.find("\n};", match.end())
        yield match[1], text[match.end() : end]


def without_bodies(body):
    """Inline bodies and nested types have braces; what is left are declarations."""
    while True:
        shorter = re.sub(r"\{[^{}]*\}", ";", body)
        if shorter == body:
            return re.sub(r"//[^\n]*", "", body)
        body = shorter


def functions(text):
    """(name, lines) of functions that are no part of a class body."""
    lines, signature = text.splitlines(), ""
    start = None
    for number, line in enumerate(lines):
        if start is not None:
            if line.startswith("}"):
                yield signature.split("(")[0].split(" ")[-1], number - start + 1
                start, signature = None, ""
        elif line == "" or line.endswith(";") or line.startswith(("//", "#", "}")):
            signature = ""
        elif not signature and line.startswith(" "):
            continue  # of a class body
        else:
            signature += line
            if line.endswith("{"):
                if ")" in signature and not re.match(r"(class|struct|namespace|enum|union|extern)\b", signature):
                    start = number
                else:
                    signature = ""


def report(checkout):
    paths = sources(checkout)
    texts = {path: path.read_text() for path in paths}
    lines = {path: text.count("\n") for path, text in texts.items()}
    total = sum(lines.values())
    included = includers(texts)
    headers = [path for path in paths if path.suffix == ".h"]
    single, small = [], [path for path in headers if lines[path] <= 30]
    for path in headers:
        users = {user for name, files in included.items() if str(path).endswith("/" + name) for user in files}
        if len([user for user in users if user.suffix != ".cpp" or user.stem != path.stem]) == 1:
            single.append(path)
    methods, members, longest = [], [], []
    for path, text in texts.items():
        for name, body in class_bodies(text):
            flat = without_bodies(body)
            declared = re.findall(r"\b~?\w+\s*\([^;]*\)[^;]*;", flat)
            methods.append((sum("= delete" not in declaration for declaration in declared), name))
            members.append((len(set(re.findall(r"\b(\w+_)\b\s*(?:=[^;]*)?;", flat))), name))
        longest += [(count, name, path.name) for name, count in functions(text)]
    print(f"lines                      {total:8,}")
    print(f"files                      {len(paths):8,}")
    print(f"lines a file, mean         {total / len(paths):8.0f}")
    print(f"headers of at most 30 lines{len(small):8,}")
    print(f"headers with one includer  {len(single):8,}  (besides their own source)")
    print("classes by methods:       ", ", ".join(f"{name} {count}" for count, name in sorted(methods, reverse=True)[:5]))
    print("classes by members:       ", ", ".join(f"{name} {count}" for count, name in sorted(members, reverse=True)[:5]))
    print("longest functions:        ", ", ".join(f"{name} {count} ({file})" for count, name, file in sorted(longest, reverse=True)[:5]))


def frames():
    program = ROOT / "build" / "release" / "titan_train"
    script = ["set breakpoint pending on", "break at::native::cpublas::gemm", "break cblas_sgemm", "break sgemm_", "run", "backtrace"]
    words = [word for line in script for word in ("-ex", line)]
    options = ["--training.steps=1", "--training.threads=1", "--job.dump_folder=/tmp/titan-frames"]
    done = subprocess.run(["gdb", "-batch", *words, "--args", program, ROOT / "configs/debug_model.toml", *options],
                          check=False, capture_output=True, text=True)  # fmt: skip
    found = re.findall(r"^#\d+ .*", done.stdout, re.M)
    print("\n".join(line[:160] for line in found))
    print(f"calls from main to the first product  {len(found)}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--frames"]:
        frames()
    else:
        report(pathlib.Path(sys.argv[1]) if sys.argv[1:] else ROOT)
