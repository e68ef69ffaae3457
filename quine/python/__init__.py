"""python: jobs and agents for Python programs: `quine.Executor`, `quine.run`, their results and errors.

May import: base, fanout, files, jobs, remote, staging, transport.
"""
