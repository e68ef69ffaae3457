"""launcher: the process beside a node that starts its jobs, reaps them and ends them; the work of a start; its table.

May import: transport, transport.provenance.
"""
