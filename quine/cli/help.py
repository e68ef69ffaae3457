"""The text of --help of the verbs that quine/base/cli_options.py parses; a process without --help does not load it."""

from __future__ import annotations

from quine.base.cli_options import VERBS, listing, rows

# the text of --help before the options
USAGE = {
    "agent": """\
usage: quine [OPTIONS] MISSION…
       quine VERB …

Run one LLM agent as this process: the mission is argv, stdin the material, stdout the deliverable,
the exit status the verdict. Options come before the mission: behind its first word one is refused (2). A mission that
has the name of an option in it is one quoted word, or stands behind `--`.""",
    "run": """\
usage: quine run [OPTIONS] [--on WHERE] -- CMD [ARG…]

Run one command, here or on a host, as if it were a local one: its streams, its signals, its exit
status. Without --on it replaces this process. stdin is read ahead of the command, as by ssh; give
</dev/null where that matters, as in a loop.""",
    "budget": """\
usage: quine budget [OPTIONS] -- CMD [ARG…]
       quine budget show [--json] [ID…]
       quine budget raise [--max-cost USD] [--max-tokens N] [--deadline TIME] ID

Run a command, usually a shell or xargs, with one budget for all agents that it starts: each `quine` below it, here or
--on hosts, draws on the same ledger, whatever its environment, session or descriptors are. The command has the streams
and the signals of this process, and its exit status is that of this process. An agent that finds the budget spent ends
with 77. A budget inside another one, or inside an agent, is a part of that one.
`show` lists the budgets of this user that are in use, those of `quine xargs` with agents, too. `raise` sets higher
limits, counted from the start as the first ones were; 0 = no limit. Agents that run already have them at once. A
process below a budget cannot raise it, and no job of a node can.""",
    "ps": """\
usage: quine ps [OPTIONS]

List what runs: the agents of a data directory (roots, children, jobs that nobody waits for) and the detached jobs
of this user, with --on those of other machines, too. An agent's id is the session of its first life, which is what
fork told of a child, and stays over exec; a detached job's is what --detach printed. Wherever an ID is wanted, its
beginning will do if no other begins so. Where a host, or the node of this machine, does not answer, the list is
printed without it, and the exit status is 69.""",
    "top": """\
usage: quine top [OPTIONS]

Show what runs, live: the batches of `quine xargs`, the trees of agents, and the jobs that `quine ps` lists, of this
machine, and with --on of hosts, too. q ends it. Where stdout is no terminal it prints the same as text, once. Of a
batch it shows the items by their ends, those that run, items a second, the time that is left, tokens and cost of its
agents, and its hosts; of a tree the agents below each other, with tokens and cost of all. It starts nothing.""",
    "wait": """\
usage: quine wait [OPTIONS] ID…

Wait until these have ended. The exit status is the job's own, 128+n where a signal n ended it; of several it is
that of the last ID, as with the wait of a shell. Where its process is gone and nothing tells how it ended, it
is 74. No such ID: 2; one that may be on a host that does not answer: 69. Any process may wait, not only the parent.
With --returns files of a detached job's directory are brought to the current one, also where it failed.""",
    "logs": """\
usage: quine logs [OPTIONS] ID

Print the stdout of a job that runs in the background. With --follow, continue until it has ended; the status
is 74 if it is lost.""",
    "attach": """\
usage: quine attach [OPTIONS] ID

Be the proxy of a detached job: print its output so far, or from an offset on, then what it writes from now on; and
leave as it leaves. A signal that ends this process (^C, a hangup) does not reach the job: it goes on, and can be
attached to again; `quine kill` ends it. Its stdin is left alone without --stdin. Many may be attached at one time.""",
    "kill": """\
usage: quine kill [-SIGNAL | -s SIGNAL] ID…
       quine kill -l [SIGNAL…]

Signal agents, and detached jobs with their process groups; TERM where no signal is named. An agent that is ended by a
signal ends its children and commands. One that was stopped is let go on to take a TERM or HUP. The exit status is 1
where one had ended already.""",
}


def usage(verb: str, head: str = "") -> str:
    """Return the text of --help; `head` is the part before the options for a verb that is not in USAGE."""
    lines = [head or USAGE[verb], "", "options:", *listing(rows(verb))]
    if verb == "agent":
        lines += [
            "",
            "verbs, before their options (a mission that begins with one of these words: quine -- WORD …):",
        ]
        lines += [f"  {name:8} {text}" for name, text in VERBS.items()]
    if verb not in ("agent", "run"):
        return "\n".join(lines)
    lines += [
        "",
        "exit status: that of the agent or command; 2 usage; 69 nothing was started; 70 a defect in quine;",
        "74 lost: started, outcome unknown; 75 guest out of reach; 77 denied; 128+n died of signal n",
    ]
    return "\n".join(lines)
