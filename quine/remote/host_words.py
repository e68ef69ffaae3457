"""Data from hosts: the type and the bound of each item, where it is shown, and the use that the origin makes of it.

Laws
1. TABLE and MODELS are the page docs/reference/host-words.md, which `make reference` writes from them. Bounds are those
   of the code: they are imported, and not written down again.
2. A new item that comes from a host gets a row here, with a type and a bound.
"""

from __future__ import annotations

from deploy import hosts_for_agents, probe
from quine.base import strict
from quine.base.sessions import SHOWN
from quine.files.wire import protocol
from quine.jobs import adoption, asking, hosts_service
from quine.providers.asking import Infer
from quine.remote import handlers, tape_receiver
from quine.staging import content, manifest, returns_limit
from quine.tape import lines
from transport import status
from transport.carrier import duplex
from transport.client import batch_job, overtime
from transport.lean import NamedTuple
from transport.node import host
from transport.rpc import services
from transport.wire import flow, frames, numbers, parts, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

# Of rooms that this one may not import; a test compares them.
LOAD_ANSWER, MOST_LOAD, LOAD_SECONDS = 4096, 1_000_000, 10.0
NOWHERE, NOTHING = "nowhere", "nothing"
UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


class Row(NamedTuple):
    """One item. `bound` names the option that changes it, if there is one."""

    item: str
    kind: str
    bound: str
    shown: str
    use: str


def size(count: int) -> str:
    """Return a number of bytes for people."""
    return next(
        (f"{count // unit} {name}" for unit, name in UNITS if not count % unit and count), f"{count} bytes"
    )


TABLE: dict[str, tuple[Row, ...]] = {
    "Before and in the greeting": (
        Row(
            "host key, ssh banner, login text",
            "bytes",
            f"{size(frames.MAX_NOISE)} before the greeting",
            "errors, without control characters",
            "the host key is checked by ssh's own files; the rest: " + NOTHING,
        ),
        Row(
            "stderr of the carrier",
            "bytes",
            f"the last {size(duplex.STDERR_KEPT)}",
            "errors",
            "whether the connection broke",
        ),
        Row(
            "answer of the probe: state, system, machine, version, free, kept, Python",
            "words and numbers of one line",
            f"{probe.WORD} letters of a word, {probe.LONGEST_PATH} of a path",
            "`hosts check`, errors",
            "which build and which Python to use there",
        ),
        Row(
            "hello: `version`, `build`",
            "integer, text",
            size(frames.MAX_PAYLOAD),
            "errors, 40 characters",
            "another one ends the link",
        ),
        Row(
            "hello: `system`",
            "two words of `[A-Za-z0-9_.-]`",
            f"{hosts_for_agents.LONGEST} characters",
            "the first message of agents, `quine hosts`",
            "a description",
        ),
        Row(
            "hello: `mount`",
            "text",
            "80 characters",
            "`doctor HOST`",
            "a host that says why it cannot is the last one chosen for `--mount`",
        ),
        Row(
            "hello: `processors`",
            "integer",
            f"1 to {numbers.PROCESSORS}; else 1",
            NOWHERE,
            "slots of a host without `slots`",
        ),
        Row(
            "hello: `link`, `seen`, `attempt`, `life`",
            "32 letters and digits, integers",
            "0 or more",
            NOWHERE,
            "where its line goes on; more than was sent ends it",
        ),
    ),
    "Frames": (
        Row(
            "a frame",
            "header and payload",
            f"{size(frames.MAX_PAYLOAD)}, {size(frames.BULK_PAYLOAD)} of output",
            NOWHERE,
            NOTHING,
        ),
        Row(
            "control frames",
            "counted",
            f"{session.MAX_CONTROL} that wait for an end that does not read",
            NOWHERE,
            NOTHING,
        ),
        Row("spawns", "refused", "a node that was dialled starts nothing here", NOWHERE, NOTHING),
        Row(
            "requests: opening",
            "JSON object",
            f"{size(parts.MAX_OPENING)}; {session.MAX_CHANNELS} channels",
            NOWHERE,
            "the capability of the job",
        ),
        Row("bodies under way", "bytes", size(session.MOST_ASKED), NOWHERE, NOTHING),
        Row(
            "acknowledged offsets, windows",
            "integers",
            f"the bytes that were sent; {flow.MAX_VAIN} in a row of nothing new; windows of {size(flow.MAX_WINDOW)}",
            NOWHERE,
            "bytes that are not sent again to this host",
        ),
        Row(
            "notes about slots and links",
            "JSON object",
            size(frames.MAX_PAYLOAD),
            "stderr: 500 characters, none of control",
            NOTHING,
        ),
    ),
    "The end and the output of a job": (
        Row(
            "exit record: `state`, `code`, `signal`",
            f"one of {', '.join(status.STATES)}; 0 to 255; a name",
            "an unknown field or type is refused; so is code 0 of another state than `exited`, "
            "a signal that ends no process, and an end of what was not started",
            "the exit status, `--report`",
            "how the job ended",
        ),
        Row(
            "exit record: `detail`, `hint`, `host`",
            "text",
            f"{status.LONGEST} characters, none of control",
            "stderr, `--report`",
            "a message; the host is the one that was dialled",
        ),
        Row(
            "exit record: `left`",
            "path of one line",
            f"{status.LONGEST} characters, printable; else the record is refused",
            "stderr, quoted as for a shell; `--report`",
            "a message",
        ),
        Row(
            "the answer to a start, a question or an adoption; the end of a job that was to end",
            "time",
            f"{host.START:g} s, or {host.ENDING:g} s after `--deadline` or `--timeout`; "
            f"{2 * overtime.GRACE:g} s after `--deadline`; "
            f"{overtime.ENDING + 2 * overtime.GRACE:g} s after a signal to an agent",
            "an error, and 74",
            "how long it is waited for",
        ),
        Row("exit record: `pid`, `rusage`", "numbers", f"0 to {status.MOST}", "`--report`", "a report"),
        Row(
            "stdout and stderr",
            "bytes",
            f"{size(flow.MAX_WINDOW)} that nobody has taken; those of a batch wait in temporary files",
            "as they came",
            "the output",
        ),
        Row(
            "the same in `--json` and in a table",
            "text, or base64",
            "`--json-limit`: 1 GiB of each stream",
            "cut there, which is said; 74",
            "the output",
        ),
        Row(
            "offsets of an output that is kept there",
            "integers",
            "the bytes that were passed on before",
            NOWHERE,
            "an output with a gap is lost, 74",
        ),
    ),
    "Files": (
        Row(
            "returns: bytes",
            "as announced, by digest",
            f"`--returns-limit`: {size(returns_limit.BYTES)} a job; "
            f"{returns_limit.Bound().patience:g} s without a byte",
            "stderr",
            "the contents of files",
        ),
        Row(
            "returns: names",
            f"paths of up to {manifest.LONGEST_PATH} bytes that match `--returns`",
            f"`--returns-limit`: {returns_limit.NAMES} a job, {returns_limit.NAME} bytes of a manifest for each; "
            f"{content.ROUNDS} manifests in each try to fetch them",
            "stderr, without control characters",
            "where a file goes, below the current directory, through no link, over no file that quine obeys; whether "
            f"it is here: a host may guess the content of a file that matches, {content.ROUNDS} times in each try",
        ),
        Row(
            "returns: modes, links",
            "permissions; relative targets that stay inside",
            "the umask; no setuid and the like",
            NOWHERE,
            "permissions",
        ),
        Row(
            "messages of staging",
            "JSON object",
            size(content.LONGEST_MESSAGE),
            "stderr, 200 characters",
            "the reason of a failure",
        ),
        Row(
            "messages of staging: `place`",
            "32 hexadecimal digits",
            "one of each host; else it has none",
            NOWHERE,
            "which hosts have one directory; files that jobs there may be writing stay as they are",
        ),
        Row(
            "shared files: bytes",
            "as written",
            "`QUINE_FS_QUOTA`: half of what is free there",
            "EDQUOT",
            "contents of the shared files, but for `.quine`",
        ),
        Row(
            "shared files: a request",
            "operation and its fields",
            f"{size(protocol.LONGEST_ASKED)}; numbers to {protocol.MOST}",
            "errors",
            "a change within the tier of the tree",
        ),
    ),
    "Agents": (
        Row(
            "body of a request",
            "JSON object of a model, see below",
            f"{size(strict.MAX_BODY)}, {strict.MAX_VALUES} values; "
            f"{services.MAX_OPEN} requests of a job, {size(services.HELD)} of all of them",
            f"`SESSION.log`, {services.MOST_NOTES} refusals of a job",
            "its job's tree, levels, sessions, ledger and model, which the origin knows",
        ),
        Row(
            "tape: lines",
            "JSON, chained; of a fork a session, and an end that is a status",
            f"{size(lines.LONGEST)} a line, "
            f"{size(tape_receiver.MAX_TAPES)} and {tape_receiver.MAX_SESSIONS} sessions a job",
            "`tape show` and others, without control characters",
            "the record of its commands; `told_by` in the meta is its host, and its pid names no process here",
        ),
        Row(
            "tape: replies of the guest",
            "message",
            "those that were given to that session",
            "`tape verify` counts those that could not be compared",
            "`tape replay` runs none without `--force`",
        ),
        Row(
            "tape: tokens of a reply",
            "integers",
            f"{tape_receiver.MOST_TOKENS}; counted where the host infers by itself",
            "`--report`, `tape cost`",
            "a report; the ledger counts what the origin paid or lent",
        ),
        Row(
            "tape: agents",
            "a meta below a session that is known",
            "`--max-depth`, `--max-agents`",
            "`budget show`",
            "one agent more, once its tape has begun",
        ),
    ),
    "Answers of `ps`, `wait`, `kill`, `logs`": (
        Row(
            "the list of jobs of a host",
            "JSON lines of known fields",
            f"{size(asking.MOST)} and {asking.MOST_LINES} lines an answer, {SHOWN} characters of a text",
            "`ps`, `top`, without control characters",
            "which jobs it has; the host's name is ours. A malformed line is left out, which is said; 69",
        ),
        Row("its errors", "text", "one line", "stderr", "a reason"),
    ),
    "Hosts of a batch": (
        Row(
            "its load: of /proc/loadavg, and processors",
            "decimal number, integer",
            f"0 to {MOST_LOAD}; 1 to {numbers.PROCESSORS}; {size(LOAD_ANSWER)} "
            f"and {LOAD_SECONDS:g} s an answer; else it is not known",
            "the view of a batch, `quine top`",
            "`--load`; a host whose load is not known is not held back, a silent one only while another answers",
        ),
        Row(
            "`--resume`: the jobs that it keeps, `remembers`",
            "list of ids, number of seconds",
            f"{size(adoption.MOST)} and {adoption.PATIENCE:g} s an answer; 0 to {numbers.SECONDS:g} s; "
            "else it has not answered",
            NOWHERE,
            "which jobs are taken over: none that has started on another host; and which were never begun",
        ),
        Row(
            "a job that is taken over: `base`, `seconds`",
            "integers, number",
            f"0 to {batch_job.MOST_BYTES}; 0 to {numbers.SECONDS:g} s; else the job is lost",
            "the view of a batch",
            "where its output goes on; its time in the log",
        ),
    ),
}
MODELS: tuple[type[strict.Strict], ...] = (
    Infer,
    handlers.LedgerRequest,
    tape_receiver.TapeRequest,
    tape_receiver.EntryRequest,
    hosts_service.HostsRequest,
)
HEAD = """\
# Data from hosts

<!-- written by scripts/reference.py from quine/remote/host_words.py; do not edit -->

A host is trusted with its job and with nothing else. This is all that it may tell its origin, with its type and its
bound: beyond that it is refused, cut or not shown, and where a bound is met a message says so. Where the origin knows
better it does not ask: the name of a host, the tree and the levels of a job, what was spent.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *_tables(), "## Bodies of requests", "", *_models()]) + "\n"


def _tables() -> Iterator[str]:
    for title, rows in TABLE.items():
        yield from (
            f"## {title}",
            "",
            "| item | type | bound | shown | used for |",
            "|---|---|---|---|---|",
        )
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""


def _models() -> Iterator[str]:
    yield from ("Any other field, a missing one, another type or size is refused.", "")
    yield from ("| body | field | type | bound |", "|---|---|---|---|")
    for model in MODELS:
        for name, field in vars(model).items():
            if isinstance(field, strict.Field):
                body = model.__name__.removesuffix("Request").lower()
                yield f"| {body} | `{name}` | {_kind(field)} | {_bound(field)} |"


def _kind(field: strict.Field) -> str:
    name = strict.NAMES[field.kind]
    return f"{name} of {_kind(field.each)}" if field.each else name


def _bound(field: strict.Field) -> str:
    """Return the bound of a field; that of the whole body where it has none of its own."""
    if field.sizes:
        return f"{' or '.join(map(str, field.sizes))} of `{field.letters}`"
    if field.kind is bool:
        return "–"
    if field.most == float("inf"):
        return "the body"
    own = f"{field.least:g} to {int(field.most)}"
    return f"{own}, each {_bound(field.each)}" if field.each else own


if __name__ == "__main__":
    print(page(), end="")
