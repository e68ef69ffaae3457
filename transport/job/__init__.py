"""job: one job of a node behind a channel (order, start, streams, end), and the node's end of its launcher.

May import: transport, wire, carrier, launcher.
"""
