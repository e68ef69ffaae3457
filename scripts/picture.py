"""Record the terminal picture of README.md: docs/demo.svg, from a real run of the demo against real sshd.

    python scripts/picture.py [FILE]

The commands below are run in the lab of the tests, with the guest of examples/demo.py. The picture shows what they
print, at the times at which they printed it; a pause for reading follows each command. A viewer that does not animate
shows the last state.
"""

from __future__ import annotations

import sys
import time
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.docs.console import Session  # noqa: E402 - the lab is no package of the distribution
from tests.lab import Lab  # noqa: E402

PREPARE = """
export QUINE_INVENTORY={inventory} QUINE_API_BASE={examples}/demo.jsonl
cp {examples}/access.log.gz .
quine run --on h1 -- true; quine run --on h2 -- true
"""
COMMANDS = (
    "quine hosts check h1,h2",
    "gzip -dc access.log.gz | quine 'report on the traffic in this access log' > report",
    "head -n 4 report",
    "quine tape tree",
    "quine run --on h1 -- sh -c 'exit 7'; echo $?",
    "quine run --on h2 -- yes | head -n 1",
)
PAUSE = 1.5  # seconds for reading
TYPED = 0.03  # seconds for a character
COLUMNS, SIZE, LINE, MARGIN = 96, 14, 19, 18
WIDE = 8.43  # pixels of a character of that size
COLORS = {"command": "#e6edf3", "output": "#9da7b3", "prompt": "#3fb950", "ground": "#0d1117"}


class Line(NamedTuple):
    text: str
    command: bool
    at: float  # seconds from the beginning


def recorded() -> list[Line]:
    """Run the commands; their lines with the times at which they stand in the picture."""
    lines, now = [], 0.5
    with Lab(("h1", "h2", "h3"), installed=True) as lab, Session(lab, "picture") as session:
        said = session.run(PREPARE.format(inventory=lab.inventory, examples=ROOT / "examples"))
        if said:
            raise SystemExit(f"picture: {said}")
        for command in COMMANDS:
            now += TYPED * len(command)
            lines.append(Line(command, True, now))
            began = time.monotonic()
            printed = session.run(command)
            now += time.monotonic() - began
            lines += [Line(text[:COLUMNS], False, now) for text in printed.splitlines()]
            now += PAUSE
    return lines


def drawn(lines: list[Line]) -> str:
    """The picture."""
    width, height = round(COLUMNS * WIDE) + 2 * MARGIN, len(lines) * LINE + 2 * MARGIN
    title = "A terminal: an agent reports on a log with a child on each of two hosts"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="{SIZE}">',
        f"<title>{title}</title>",
        f'<rect width="{width}" height="{height}" rx="8" fill="{COLORS["ground"]}"/>',
    ]
    for number, line in enumerate(lines):
        prompt = f'<tspan fill="{COLORS["prompt"]}">$ </tspan>' if line.command else ""
        kind = "command" if line.command else "output"
        parts.append(
            f'<text x="{MARGIN}" y="{MARGIN + SIZE + number * LINE}" fill="{COLORS[kind]}" xml:space="preserve">'
            f'<set attributeName="opacity" to="0" begin="0s" dur="{line.at:.2f}s"/>{prompt}{escape(line.text)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main(words: list[str]) -> int:
    """Exit status."""
    path = Path(words[0]) if words else ROOT / "docs" / "demo.svg"
    path.write_text(drawn(recorded()))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
