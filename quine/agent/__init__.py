"""agent: one agent as one process: host loop, shell, tools, children, signals, and the end of the process.

May import: base, broker, budget, tape, providers, files, mount, archive, staging, transport.
"""
