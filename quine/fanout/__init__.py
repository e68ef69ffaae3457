"""fanout: one job for each input item: the items, the template of the command, the run, its outcomes and its record.

May import: base, files, staging, jobs, remote, deploy, transport.
"""
