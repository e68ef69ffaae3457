"""fanout: one job for each input item: items, template, run, outcomes and record; and one on each host, in `each`.

May import: base, files, staging, jobs, remote, deploy, transport.
"""
