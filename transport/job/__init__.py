"""job: one child process behind a channel (start, streams, end), and the launcher process beside the node.

May import: transport, wire, carrier.
"""
