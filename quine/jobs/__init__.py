"""jobs: agents and detached commands as users see them: found, followed, waited for, signalled, here and on hosts."""
