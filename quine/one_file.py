"""`__main__.py` of the binary: starts quine if it has been unpacked, else unpacks it first.

Law: it parses in every Python 3, so that an old one gets a sentence and no traceback.
"""

import os
import sys


def main() -> None:
    if not sys.platform.startswith("linux"):
        sys.stderr.write("quine: error: quine runs on Linux (and WSL2), and this is %s\n" % sys.platform)
        sys.exit(2)
    if sys.version_info < (3, 9):
        sys.exit("quine: error: this is Python %d.%d, quine needs 3.9 or newer" % sys.version_info[:2])
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.isdir(here):
        from quine.__main__ import main as start

        start()
        return
    from pathlib import Path

    from deploy import paths
    from deploy.there import installer

    try:
        lib = installer.unpacked(Path(here), Path(paths.cache()) / "unpacked")
    except (OSError, installer.Failure) as error:
        why = getattr(error, "text", "")  # of a Failure
        if isinstance(error, OSError):
            why = "%s: %s" % (error.filename or here, (error.strerror or str(error)).lower())
        sys.stderr.write("quine: error: cannot unpack %s: %s\n" % (here, why))
        sys.stderr.write(
            "quine: hint: set XDG_CACHE_HOME to a directory of yours that allows programs, with 6 MB\n"
        )
        sys.exit(69)
    os.execv(sys.executable, [sys.executable, str(lib)] + sys.argv[1:])


if __name__ == "__main__":
    main()
