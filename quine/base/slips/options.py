"""Options that a verb does not have. One of another program is answered with ours, or with the reason for its absence.

Loaded after an error. A hint names only options of the verb that it is for, or another verb with its own ones.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NEAR = 0.7  # similarity of an option that may be meant: --json is not a slip of --on
# Options of the command line that are promised and not built.
NOT_BUILT = frozenset(
    (
        *(
            "after",
            "check",
            "memo",
            "need",
            "no-project",
            "on-done",
            "project",
            "record",
            "rejected",
            "schema",
        ),
        *("strict-denials", "strict-stdin", "trust-project"),
    )
)


def _table(rows: Mapping[str, str]) -> dict[str, str]:
    """Return the hint for each name of a table, whose keys are several names."""
    return {name: hint for names, hint in rows.items() for name in names.split()}


RIGHTS = "there are no prompts: an agent has the rights of its user"
TOOLS = "an agent has a shell, and the programs on its PATH"
MATERIAL = "stdin is the material; or name the file in the mission"
DELIVERABLE = "stdout is the deliverable alone; quine tape show has the rest"
GOING_ON = "going on with a session is not built yet; quine tape show ID prints one"
# of claude, codex and llm
_AGENT = {
    "p print prompt": "the mission is the argument: quine MISSION",
    "r resume c continue cid session-id fork-session": GOING_ON,
    "m": "--model NAME",
    "max-budget-usd budget": "--max-cost USD",
    "output-format json include-partial-messages json-schema output-schema no-stream x extract": DELIVERABLE,
    "o output-last-message": "stdout is the deliverable: quine MISSION >FILE",
    "input-format fragment attachment image at": MATERIAL,
    "s system system-prompt append-system-prompt system-prompt-file template": "say it in the mission",
    "allowedTools allowed-tools disallowedTools disallowed-tools permission-mode permission-prompt-tool": RIGHTS,
    "dangerously-skip-permissions allow-dangerously-skip-permissions": RIGHTS,
    "ask-for-approval sandbox full-auto yolo dangerously-bypass-approvals-and-sandbox add-dir": RIGHTS,
    "a": f"{MATERIAL}; {RIGHTS}",
    "mcp-config strict-mcp-config tools T tool functions plugin-dir chain-limit": TOOLS,
    "agents": "the tool fork has agents below this one, here or on hosts",
    "C cd": "--cwd DIR",
    "key": "QUINE_API_KEY=KEY, or the variable of the vendor",
    "settings config profile option fallback-model": "settings are variables, as QUINE_MODEL_ID",
    "oss": "QUINE_API_BASE=URL, or OLLAMA_HOST",
    "u usage": "quine tape cost",
    "n no-log log ephemeral skip-git-repo-check no-session-persistence": "leave it out: tapes are in QUINE_DATA_DIR",
    "database": "QUINE_DATA_DIR=DIR",
    "t tt terminal": "an agent has no terminal, only streams; quine run -t gives one to a command",
    "timeout time": "--deadline SECONDS",
    "retries": "--retry N",
}
# of docker, srun and ssh
_RUN = {
    "rm": "leave it out",
    "interactive": "leave it out: the command reads our stdin",
    "tty pty": "-t",
    "e": "--env K[=V]",
    "w workdir D chdir": "--cwd DIR",
    "d": "--detach",
    "N nodes": "quine each WHERE CMD: once on each host that matches",
    "nodelist host": "--on HOST",
    "x exclude": "--on '@TAG!HOST'",
    "partition constraint C": "--on @TAG",
    "p": "--on USER@HOST:PORT, or @TAG for a partition",
    "n ntasks a array": "quine xargs CMD: one job for each item",
    "time timeout": "--deadline SECONDS",
    "l u user": "--on USER@HOST",
    "m memory mem": "--limit as=SIZE",
    "c cpus cpus-per-task G gpus gres": "--on @TAG: the inventory says what a host has, and how many jobs it takes",
    "volume": "--files PATH",
    "J job-name name": "--detach prints an id",
    "o output error": "redirect it: quine run CMD >FILE",
    "label": "quine each --tag WHERE CMD",
    "retries": "--retry N",
}
# of GNU parallel, xargs, pdsh, clush and sbatch
_XARGS = {
    "j procs max-procs f fanout": "-P N",
    "S sshlogin sshlogins sshloginfile slf w g group-by": "--on WHERE: hosts, @tag, any",
    "x exclude X": "--on '@tag!HOST'",
    "bar progress eta t": "the view on a terminal shows it, and quine top; --report FILE at the end",
    "transferfile tf transfer basefile bf copy": "--files PATH",
    "return rcopy": "--returns PATTERN",
    "trc": "--files {} --returns {.}.EXT --cleanup",
    "workdir wd": "--cwd DIR",
    "tagstring": "--tag",
    "group ungroup u lb linebuffer": "outputs come as a whole; --line-buffer: line by line",
    "N m xargs s max-chars": "-n N: items to a job",
    "spreadstdin pipepart pipe-part": "--pipe",
    "block-size": "--block SIZE",
    "retry-failed": "--resume-failed",
    "retry": "--retries N",
    "halt-on-error e": "--halt now,fail=1",
    "memfree memsuspend noswap": "--load N",
    "nice": "nice quine xargs, or nice in the command",
    "will-cite citation": "leave it out",
    "quote": "words reach the command as they are; sh -c '…' for a shell",
    "onall nonall": "quine each WHERE CMD",
    "p interactive": "--dry-run shows the commands",
    "process-slot-var": "{%} is the number of the slot",
    "b B dshbak gather": "--fold",
    "l user": "USER@HOST, or user of the host's table",
    "array": "items are the lines of stdin: seq 100 | quine xargs -- CMD {}",
}
HOSTS = "WHERE is an argument, hosts, @tag or any: quine each WHERE CMD"
BATCH = "quine xargs has it; each runs one command once on each host"
# of the same, and of srun
_EACH = {
    "j procs max-procs f fanout": "-P N",
    "on S sshlogin sshlogins sshloginfile slf w g N nodes nodelist p partition onall nonall": HOSTS,
    "x exclude X": "quine each '@tag!HOST' CMD",
    "workdir wd D chdir": "--cwd DIR",
    "tagstring label": "--tag",
    "group ungroup u lb linebuffer": "outputs come as a whole; --line-buffer: line by line",
    "b B dshbak gather": "--fold",
    "t": "--timeout SECONDS",
    "l user": "USER@HOST, or user of the host's table",
    "quote": "words reach the command as they are; sh -c '…' for a shell",
    "transferfile tf transfer basefile bf copy files return rcopy returns trc n ntasks array m s max-args": BATCH,
    "retry retries joblog resume resume-failed halt dry-run results report pipe block delay load": BATCH,
    "o output e error": "redirect it: quine each WHERE CMD >FILE",
}
ANSWERS = {"agent": _table(_AGENT), "run": _table(_RUN), "xargs": _table(_XARGS), "each": _table(_EACH)}


def unknown(verb: str, word: str, longs: Sequence[str]) -> Misconfigured:
    """Return the error for a word that is no option of a verb, with ours that does the same, or is near."""
    from difflib import get_close_matches

    name = word[2:].partition("=")[0] if word.startswith("--") else word[1:2]
    if name in NOT_BUILT and verb in ANSWERS:
        return Misconfigured(f"not built yet: --{name}")
    answers = ANSWERS.get(verb, {})
    near = (
        get_close_matches(name, [*longs, *answers], 1, NEAR) if len(name) > 1 and name not in answers else []
    )
    command = "quine" if verb == "agent" else f"quine {verb.replace(':', ' ')}"
    hint = f"did you mean --{near[0]}?" if near and near[0] in longs else f"see {command} --help"
    return Misconfigured(f"no such option: {word}", answers.get(near[0] if near else name, hint))
