"""Words that people type by habit: verbs of other programs, programs, and English words that are close to our verbs.

A word stands here if it is no likely beginning of a mission in English; or with the words behind it that make it none.
"""

from __future__ import annotations


def _table(text: str) -> dict[str, frozenset[str]]:
    """Return the words behind each word: the lines are FIRST…: OTHER…."""
    lines = (line.partition(":") for line in text.strip().splitlines())
    return {first: frozenset(others.split()) for firsts, _, others in lines for first in firsts.split()}


# Verbs of docker, git, tmux, kubectl, ssh, llm and other agents, as far as they are no tasks in English. Whoever types
# one of them alone, or before an id, does not mean a mission, and would pay for an agent with a shell.
_FOREIGN = """
    abort add agent agents api-resources app-server apply attach-session auth blame branch cancel checkout cherry-pick
    clone cluster-info commit completion completions config continue cordon cost cp create delete detach detach-client
    drain events exec expose fetch get has-session help history host images info init inspect install job jobs keys
    kill-pane kill-server kill-session kill-window list list-sessions list-windows load log login logout ls lsk mcp
    models mv network new new-session new-window pause plugin plugins port port-forward prune pull push rebase
    remote rename rename-session rename-window reset restart restore resume rm rollout save scp select-pane
    select-window send-keys serve server session sessions set setup-token source-file split-window ssh start stash stats
    status stop switch switch-client tag templates terminate tree uncordon uninstall update upgrade version volume
"""
FOREIGN = frozenset(_FOREIGN.split())
# Those of them that take another one, as `session list`, and are no verbs in English.
_GROUPS = "config keys mcp models network plugin plugins session sessions templates volume"
GROUPS = frozenset(_GROUPS.split())
# Those of them, and others, that no English sentence begins with: other words behind them do not make it one.
_UNLIKE_ENGLISH = """
    attach-session cherry-pick cordon cp detach-client exec has-session kill-pane kill-server kill-session
    kill-window list-sessions list-windows ls lsk mv new-session new-window port-forward rename-session
    rename-window rm scp select-pane select-window send-keys setup-token source-file split-window ssh
    switch-client uncordon
"""
UNLIKE_ENGLISH = frozenset(_UNLIKE_ENGLISH.split())
# Others that no task begins with where a short option is behind them: `a -t main`, `build -t web .`.
_BEFORE_OPTION = "a build compose container image new tell watch"
BEFORE_OPTION = frozenset(_BEFORE_OPTION.split())

# The beginnings of commands of git, docker, kubectl, gh, tmux and of other agents: words, and those behind them.
_IDIOMS = """
    agent agents: create delete info inspect list ls new ps rm show start status stop
    host: add check discover import list ls remove rm show status trust
    job session sessions: attach delete info kill list ls new resume rm show status
    auth: list login logout refresh status switch token
    config: edit get get-contexts init list ls path set show unset use-context view
    daemon server service: list logs ls restart run start status stop
    keys mcp model models plugin plugins templates: add get install list ls pull remove rm set show uninstall
    get: cm configmaps cronjobs daemonsets deployment deployments ingress namespaces ns po pod pods pvc svc
    delete describe: deployment namespace ns pod pods pvc svc
    rollout: history pause restart resume status undo
    remote: add prune remove rename set-url show
    stash: apply branch clear drop list pop push save show
    bisect: bad good reset start
    submodule worktree: add init list lock move prune remove status sync update
    pull push fetch: main master origin upstream
    checkout rebase switch: HEAD develop main master
    reset: HEAD
    gist issue pr release repo workflow: checkout clone close create delete edit list ls status view
    compose container image network stack system volume: create df down info inspect logs ls prune ps pull push rm up
"""
IDIOMS = _table(_IDIOMS)
# The same, with nothing behind them.
_PAIRS = """
    abort cancel delete pause restart resume start stop terminate: all
    completion completions: bash elvish fish powershell zsh
    list: agents hosts jobs models sessions tapes
"""
PAIRS = _table(_PAIRS)
# Words that a command of another program does not have, and a sentence does.
_PROSE = """
    a about after all an and any are as at before by each every for from how if in into is it its like my no of on
    or our that the their them there these this those to what when where which with without your
"""
PROSE = frozenset(_PROSE.split())
HELPED = frozenset(["her", "him", "me", "people", "them", "us"])  # behind `help` these make a mission

# Verbs of the command line that are promised and not built; they are verbs before an option, an id or nothing.
_NOT_BUILT = "continue explain pause resume tell watch"
NOT_BUILT = frozenset(_NOT_BUILT.split())
# English words that are one edit away from a verb of ours.
_NEAR_ENGLISH = """
    ape args attack await bait beach bill blogs bode cape code cogs costs dill dogs employ etch fill fogs gait
    gape gill hill hogs hoses ill kill kiln kilt krill leach legs lobs lode logo loss lots lows lugs mill mode
    nape none nope nose note nude peach pill posts reach rhs rode sill skill taken take tale tame tap taper taps
    tare teach till type urn vape waif wail waist want wart watt will wit
"""
NEAR_ENGLISH = frozenset(_NEAR_ENGLISH.split())

# Programs that people put before `{}`; not the PATH, in which `summarize` may be one.
_PROGRAMS = """
    cat convert cut df diff du echo false file find head identify kill ln magick make node sleep sort split stat tail
    tee touch true unzip zip
"""
# Those of them that are no verbs in English: whatever is behind them, it is no sentence unless it has words of one.
_NAMES = """
    ansible apt apt-get awk aws base64 bash bunzip2 bzip2 cargo chmod chown cksum cp curl docker egrep ffmpeg ffprobe
    gcc gcloud gh git grep gunzip gzip helm jq kubectl ls md5sum mkdir mv mysql npm npx pandoc pdftotext perl pip pip3
    pnpm podman printf psql pytest python python3 rg rm rsync ruby scp sed sh sha1sum sha256sum sha512sum sox sqlite3
    ssh sudo systemctl tac tar terraform tmux tr uniq unxz unzstd uv wc wget xz yarn yq zcat zsh zstd
"""
NAMES = frozenset(_NAMES.split())
PROGRAMS = frozenset(_PROGRAMS.split()) | NAMES

# Commands of quine that are meant by some of them.
OURS = {
    "abort": "kill ID",
    "agent": "ps",
    "agents": "ps",
    "attach-session": "attach ID",
    "cancel": "kill ID",
    "completion": "--completion SHELL",
    "completions": "--completion SHELL",
    "config": "doctor",
    "cost": "tape cost",
    "cp": "fs cp",
    "exec": "run -- CMD",
    "help": "--help",
    "history": "tape ls",
    "host": "hosts",
    "info": "doctor",
    "inspect": "tape show ID",
    "job": "ps",
    "jobs": "ps",
    "kill-session": "kill ID",
    "list": "ps",
    "list-sessions": "ps",
    "log": "logs ID",
    "ls": "ps",
    "models": "doctor --guest",
    "rm": "kill ID",
    "session": "tape ls",
    "sessions": "tape ls",
    "ssh": "rsh HOST",
    "start": "run --detach -- CMD",
    "status": "ps",
    "stop": "kill ID",
    "terminate": "kill ID",
    "tree": "tape tree; quine tape cost",
    "version": "--version",
}
OF_LIST = {
    "hosts": "hosts",
    "models": "doctor --guest",
    "sessions": "tape ls",
    "tapes": "tape ls",
}  # others: ps
# Words that begin missions, too: before an id they are verbs, and nothing else is meant.
BEFORE_ID = {
    "continue": "attach ID",
    "follow": "attach ID",
    "result": "tape show ID",
    "show": "tape show ID",
    "tail": "logs -f ID",
    "watch": "attach ID",
}
