"""Outputs of hosts on their way to stdout and stderr: below the name of the host, tagged, folded, as JSON.

Laws
1. The bytes of a host are passed on as they came. Only a newline is added, where one is missing at the end of a stream.
2. A line of stderr always has its host before it: where stderr goes elsewhere there is no line above it.
3. Outputs that are folded are compared by their contents; of equal ones a single one is kept.
"""

from __future__ import annotations

from quine.base.host_ranges import fold
from quine.fanout.output.lines import Lines
from quine.fanout.output.sinks import Output
from quine.fanout.output.spool import Spool
from quine.fanout.output.tags import Tags

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from quine.fanout.output.sinks import Sink
    from quine.fanout.output.streams import Chunks


def shown(chunks: Chunks, host: str, title: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield an output with `title` above its stdout. Lines of stderr, and without a title all lines, are tagged."""
    tags = {1: Tags(None if title else host.encode()), 2: Tags(host.encode())}
    last = {1: b"\n", 2: b"\n"}
    for stream, data in chunks:
        if stream == 1 and title:
            yield 1, title
            title = b""
        yield stream, tags[stream].put_before(data)
        last[stream] = data[-1:]
    yield from ((stream, b"\n") for stream, end in last.items() if end != b"\n")


def title(names: list[str]) -> bytes:
    """Return the line above the output of these hosts, as head(1) and tail(1) have it for files."""
    count = f" ({len(names)})" if len(names) > 1 else ""
    return f"==> {fold(names)}{count} <==\n".encode()


class HostOutput(Output):
    """The output of one host, passed on after its end."""

    def __init__(self, sink: Sink, number: int, host: str, tagged: bool) -> None:
        super().__init__(sink, number, None)
        self._host = host
        self._title = b"" if tagged else title([host])

    def close(
        self,
        done: Callable[[], None],
        instead: Callable[[Spool], Iterable[bytes]] | None = None,
        whole: bool = True,
    ) -> None:
        chunks = self._other(instead) if instead else shown(self._spool.chunks(), self._host, self._title)
        self._sink.close(self._number, chunks, self._spool, done)


class HostLines(Lines):
    """The output of one host, passed on line by line while its command runs."""

    def close(
        self,
        done: Callable[[], None],
        instead: Callable[[Spool], Iterable[bytes]] | None = None,
        whole: bool = True,
    ) -> None:
        for begun in self._begun.values():
            if begun:
                begun.extend(b"\n")
        super().close(done)


class FoldedOutput(Output):
    """The output of one host, kept until those of all hosts are there."""

    def __init__(self, sink: Sink, number: int, host: str, folds: Folds) -> None:
        from hashlib import sha256

        super().__init__(sink, number, None)
        self._host = host
        self._folds = folds
        self._digests = {1: sha256(), 2: sha256()}

    def take(self, stream: int, data: memoryview) -> int | None:
        self._digests[stream].update(data)
        return super().take(stream, data)

    def close(
        self,
        done: Callable[[], None],
        instead: Callable[[Spool], Iterable[bytes]] | None = None,
        whole: bool = True,
    ) -> None:
        key = b"".join(digest.digest() for digest in self._digests.values())
        self._folds.add(self._host, key, self._spool)
        done()


class Folds:
    """Outputs by their content."""

    def __init__(self) -> None:
        self._found: dict[bytes, tuple[list[str], Spool]] = {}

    def add(self, host: str, key: bytes, spool: Spool) -> None:
        if key in self._found:
            self._found[key][0].append(host)
            spool.drop()
        else:
            self._found[key] = ([host], spool)

    def pass_on(self, sink: Sink) -> None:
        """Pass all of them on, that of most hosts first."""
        for number, (hosts, spool) in enumerate(
            sorted(self._found.values(), key=lambda found: -len(found[0])), 1
        ):
            sink.close(number, shown(spool.chunks(), fold(hosts), title(hosts)), spool, lambda: None)
