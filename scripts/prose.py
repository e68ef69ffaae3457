"""Count statements that begin with "who" or "what": `prose.py [PATH…]`; a line for each, status 1 if there is one.

A sentence has a thing as its subject: the client, the node, the caller, the file. "Who is killed closes his files"
reads as a question, and names nobody.

Documents, docstrings, comments and messages are read. Lines of a paragraph are one text; a list item begins a
new one. A question (it ends with `?`) does not count, and neither does code or a console block.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("quine", "transport", "deploy", "docs", "examples", "bench", "scripts", "tests")
BEGINS = re.compile(r"(?:^|(?<=[.;:] ))(Who|What|who|what)\b[^.?!;:]*.?")
ITEM = re.compile(r"\s*(?:[-*>|#]|\d+\.)\s+")


def paragraphs(text: str, line: int) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of each paragraph or list item of a docstring or a document."""
    held: list[str] = []
    start, fenced = line, False
    for number, each in enumerate(text.split("\n"), line):
        fence = each.lstrip().startswith("```")
        if fence or fenced or not each.strip() or ITEM.match(each):
            if held:
                yield start, " ".join(held)
            held = []
        fenced ^= fence
        if fence or fenced or not each.strip():
            continue
        if not held:
            start = number
        held.append(ITEM.sub("", each, count=1).strip() if ITEM.match(each) else each.strip())
    if held:
        yield start, " ".join(held)


def texts_of_program(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of docstrings, comments and messages."""
    held: list[str] = []
    start = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        trailing = bool(
            token.line[: token.start[1]].strip()
        )  # a text of its own: its neighbours are about other lines
        if held and (trailing or token.start[0] != last + 1):
            yield start, " ".join(held)
            held = []
        if trailing:
            yield token.start[0], token.string.lstrip("#: ").strip()
            continue
        if not held:
            start = token.start[0]
        held.append(token.string.lstrip("#: ").strip())
        last = token.start[0]
    if held:
        yield start, " ".join(held)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield from paragraphs(node.value, node.lineno)


def found(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, beginning) of each such statement of one file."""
    source = path.read_text()
    texts = texts_of_program(source) if path.suffix == ".py" else paragraphs(source, 1)
    for line, text in texts:
        for match in BEGINS.finditer(text):
            if not match[0].endswith("?"):
                yield line, match[0][:80]


def main(words: list[str]) -> int:
    """Print the statements; return the exit status."""
    names = words or [*ROOMS, "*.md"]
    listed = subprocess.run(
        ["git", "ls-files", "--", *names], cwd=ROOT, capture_output=True, text=True, check=True
    )
    count = 0
    for name in listed.stdout.split("\n"):
        if not name.endswith((".py", ".md")) or not (ROOT / name).is_file():
            continue
        for line, text in found(ROOT / name):
            count += 1
            print(f"{name}:{line}: {text}")
    print(f"{count} statements begin with who or what")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
