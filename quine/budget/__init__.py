"""budget: limits on the spending of a tree of agents, counted on every machine and settled at the origin.

May import: base, transport.
"""
