"""The verb `xargs`: one command for each item of the input, many at a time, here or on hosts."""

from __future__ import annotations

import os
import select

from quine.base.errors import Misconfigured, NotBuilt
from quine.fanout.items import Items
from quine.fanout.options import Options, parse, usage
from quine.fanout.template import Template
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from quine.fanout.items import Item

EXAMPLE = "quine xargs [OPTIONS] [--on WHERE] -- CMD [ARG…]"


def main(words: list[str]) -> int:
    """Return the exit status."""
    options, rest, dashes = parse(words)
    if options.help:
        print(usage())
        return 0
    items = Items(options, rest)
    if not items.command:
        raise Misconfigured("no command", EXAMPLE)
    if not dashes:
        raise NotBuilt("an agent for each item", f"for a command: {EXAMPLE}")
    if not options.dry_run:
        raise NotBuilt("quine xargs without --dry-run")
    return _print(template(options, items.command), items)


def template(options: Options, command: list[str]) -> Template:
    """Return the template of the command; an item that is stdin need not be an argument."""
    append = not options.pipe and options.stdin != "item"
    return Template(command, options.replace or "{}", options.jsonl, append)


def _print(command: Template, items: Items) -> int:
    """Print the commands, as a shell would have to be given them."""
    from shlex import join

    for item in _waited(items):
        write_all(1, os.fsencode(join(command.argv(item)) + "\n"))
    return 0


def _waited(items: Items) -> Iterator[Item]:
    """The items, waiting for each."""
    for item in items:
        if item is not None:
            yield item
            continue
        poll = select.poll()
        poll.register(items.fd, select.POLLIN)
        poll.poll()
