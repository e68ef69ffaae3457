"""Entry of a node: the daemon, started by a client or in the foreground, and the end of a link that dials it.

Law: transport is given the functions that place and dial; it never reads an inventory.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from transport.job.launcher_process import Beside

# Those of the login say where the key of this host is (`inference = "direct"`), and hold none.
NODE_VARIABLES = ("QUINE_NODE_IDLE", "QUINE_TRACE", "QUINE_API_KEY_FILE", "QUINE_API_KEY_COMMAND")
NO_SHELLS = ("", "nologin", "false")  # in the password database, for accounts without a login


def node(words: list[str]) -> int:
    """`quine node --dial`, or the daemon: with `--ready-fd N` if a client started it, else in the foreground."""
    from transport import inherit
    from transport.node import rendezvous

    if words == ["--dial"]:
        if wish := os.environ.pop("QUINE_LAYER", ""):
            from deploy.there import layers as layer_host

            layer_host.receive(wish)
        return rendezvous.dial()
    ready = int(words[words.index("--ready-fd") + 1]) if "--ready-fd" in words else -1
    if ready < 0:  # by hand, perhaps by that of an agent
        users = inherit.scrubbed(inherit.users_environment(), here=True)
        if os.environ.keys() - {inherit.VARIABLE} != inherit.scrubbed(os.environ, here=True).keys():
            # Begin anew without secrets: with them it is closed, and nothing shows that its jobs are below a node.
            inherit.renew(users, {})
        os.environ.clear()
        os.environ.update(users)
    inherit.close_others({ready})  # close the memo and ledger of the agent that started this node
    inherit.stand_apart()
    for name in [name for name in os.environ if name.startswith("QUINE_") and name not in NODE_VARIABLES]:
        del os.environ[name]  # of the agent or shell that started this node: no job may inherit it
    complete_login()
    bound = rendezvous.bind()
    if bound is None:
        if ready >= 0:
            os.write(ready, b"\n")
            return 0
        from quine.base.errors import complain

        complain("a node is running here already", "quine node --status, or quine node --stop")
        return 1
    if ready >= 0:
        beside = rendezvous.daemonize(ready)
    else:
        from transport.job.launcher_process import Beside

        beside = Beside()
        beside.begin()
    serve_node(beside, *bound)
    return 0


def complete_login() -> None:
    """Add the variables that sshd gives to each login, where they are missing: a container or `env -i` gives none.

    Programs start `$SHELL script`. GNU parallel did so with an empty one, and started the script's name as a program.
    """
    import pwd

    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:  # the number of a container's user, who has no name
        return
    shell = "/bin/sh" if os.path.basename(user.pw_shell) in NO_SHELLS else user.pw_shell
    names = {"USER": user.pw_name, "LOGNAME": user.pw_name}
    for name, value in {**names, "HOME": user.pw_dir, "SHELL": shell}.items():
        if not os.environ.get(name):
            os.environ[name] = value


def serve_node(beside: Beside, listener: object, seat: Mapping[str, object]) -> None:
    """Run the daemon; see `rendezvous.bind`."""
    import logging
    import socket

    # asyncio imports ssl if it is there. A node speaks no TLS, and ssl is a fifth of an idle node's memory.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    import asyncio  # noqa: F401

    del sys.modules["ssl"]
    from quine.mount.mounts import lacking
    from quine.remote.placement import Placer
    from transport.job.launcher_client import Launching
    from transport.node.daemon import IDLE, serve

    assert isinstance(listener, socket.socket)
    level = logging.DEBUG if os.environ.get("QUINE_TRACE") else logging.INFO
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(name)s[%(process)d] %(message)s"
    )
    # Two lines a job: all that a record has beside the format, such as its place in the source, is half of their cost.
    logging.logThreads = logging.logMultiprocessing = False
    logging._srcfile = None
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    idle = float(os.environ.get("QUINE_NODE_IDLE") or IDLE)
    serve(Launching(beside), Placer(), listener, idle, seat, {"mount": lacking(opens=False)[0]})
