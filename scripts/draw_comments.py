#!/usr/bin/env python3
"""Draws comments at random, for a reader who judges whether each gives a reason that the code cannot.

    scripts/draw_comments.py [--seed N] [--count N] [--list] [FOLDER]...

What is drawn from: comments within function bodies of src and include (or of the folders given), and at constants of
sources. A reason says what was tried, what breaks otherwise, or why this order, constant or library call was chosen.
What is not: the opening of a file, and what a declaration promises (above a function, at a member of a type, at a
constant of a public header), which callers need even where it gives no reason; marks for tools.
The same seed draws the same comments from the same files. --list prints all of them.
"""

import argparse
import pathlib
import random
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
TYPE = re.compile(r"\b(struct|class|union|enum)\b(?![^{;]*\)\s*(const)?\s*$)")
CONSTANT = re.compile(r"^\s*(inline |static )*(constexpr|const)\b[^()]*(=|\{)")
MARK = re.compile(r"^//+\s*(namespace\b|NOLINT|NOLINTNEXTLINE|clang-format)")


def split_comment(line):
    """The code and the comment of a line; a // within a string is code."""
    quoted = False
    for at, char in enumerate(line):
        if char == '"' and (at == 0 or line[at - 1] != "\\" or line[at - 2 : at] == "\\\\"):
            quoted = not quoted
        elif not quoted and line.startswith("//", at):
            return line[:at], line[at:]
    return line, ""


def scope_after(code, before, scopes):
    """Follows the braces of a line: `before` is the code since the last brace or semicolon."""
    code = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])\'', '""', code)
    for char in code:
        if char == "{":
            kind = "body"
            if re.search(r"\bnamespace\b|extern \"\"", before):
                kind = "namespace"
            elif TYPE.search(before) and "=" not in before:
                kind = "type"
            scopes.append(kind)
            before = ""
        elif char == "}":
            if scopes:
                scopes.pop()
            before = ""
        elif char == ";":
            before = ""
        else:
            before += char
    return before + " "


def comments_of(path):
    """(first line, comment, the code that it stands at) of each comment that is drawn from."""
    lines = path.read_text().splitlines()
    public = "include" in path.relative_to(ROOT).parts
    scopes, before = [], ""
    found, block, start, opening = [], [], 0, True
    for number, line in enumerate(lines + [""], 1):
        code, comment = split_comment(line)
        alone = bool(comment) and not code.strip()
        if block and not alone:  # a block of comment lines ends: judge it by the code that follows
            in_body = bool(scopes) and scopes[-1] == "body"
            promises = public and block[0].startswith("///")
            if not opening and not promises and (in_body or (CONSTANT.match(code) and "type" not in scopes)):
                found.append((start, "\n".join(block), code.strip()))
            block, opening = [], False
        if alone and not MARK.match(comment):
            start = start if block else number
            block.append(comment.strip())
        in_body = bool(scopes) and scopes[-1] == "body"
        if comment and not alone and not MARK.match(comment):
            if in_body or (CONSTANT.match(code) and "type" not in scopes):
                found.append((number, comment.strip(), code.strip()))
        if code.strip():
            opening = False
        if not code.lstrip().startswith("#"):
            before = scope_after(code, before, scopes)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--list", action="store_true", help="all comments, in order")
    parser.add_argument("folders", nargs="*", default=["src", "include"])
    arguments = parser.parse_args()
    comments = []
    for folder in arguments.folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu"):
                comments += [(path.relative_to(ROOT), *comment) for comment in comments_of(path)]
    drawn = comments
    if not arguments.list:
        drawn = random.Random(arguments.seed).sample(comments, min(arguments.count, len(comments)))
    for path, number, comment, code in drawn:
        print(f"{path}:{number}\n{comment}\n    {code}\n")
    print(f"{len(drawn)} of {len(comments)} comments")


if __name__ == "__main__":
    main()
