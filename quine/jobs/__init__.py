"""jobs: agents and detached commands as users see them: found, followed, awaited and signalled, here and on hosts.

May import: base, broker, budget, tape, providers, files, staging, agent, deploy, transport.
"""
