"""cli: the command line: a module for each verb or family of verbs; the table of options is in base.

May import: base, broker, budget, tape, providers, files, mount, archive, staging, agent, jobs, fanout, remote, deploy,
transport.
"""
