"""`quine xargs --detach`: the batch as a job of its own on this machine, with all of its input taken over.

Law: paths are those of the current directory, in which the batch goes on, except the inputs, which are copied.
"""

from __future__ import annotations

from quine.base.cli_options import as_words
from quine.fanout.input.items import SOURCES
from quine.fanout.options import OPTIONS, Options

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

OURS = ("detach", "from", "job", "output-limit", "arg-file", "help")  # that the detached batch does not get


def detach(options: Options, words: list[str], shown: str, mission: bool) -> int:
    """Start the batch, and print its id. `words` are the command and its sources. Return the exit status."""
    from quine.jobs import detach as jobs
    from quine.jobs.job_files import Inputs

    inputs = Inputs(lambda path_of: command_line(options, words, mission, path_of))
    return jobs.batch(options.spawn, shown, inputs, mission)


def command_line(
    options: Options,
    words: list[str],
    mission: bool,
    path_of: Callable[[str], str],
    without: Collection[str] = (),
    more: Collection[str] = (),
) -> list[str]:
    """Return the command line of the batch, with each path of an input as `path_of` has it.

    Options in `without` are left out, and the words in `more` are added to the others.
    """
    argv = ["xargs"]
    for name in dict.fromkeys(row[0] for row in OPTIONS if row[0] not in (*OURS, *without)):
        argv += as_words(options if options.has(name) else options.spawn, [name])
    argv += [*more, *(f"--arg-file={path_of(path)}" for path in options.arg_file)]
    argv += [] if mission else ["--"]
    kind = ""
    for word in words:
        kind = word if word in SOURCES else kind
        argv.append(path_of(word) if kind.startswith("::::") and word != kind else word)
    if not kind and not options.arg_file:
        path_of("-")
    return argv
