"""jobs: agents and detached commands as users see them: found, followed, awaited and signalled, here and on hosts."""
