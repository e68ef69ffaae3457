"""detached: a job that outlives its caller: its supervisor, its spool, its control socket.

May import: transport, wire, job, launcher.
"""
