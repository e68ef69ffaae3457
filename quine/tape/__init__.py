"""tape: the record of a session: written, indexed, shown, verified and replayed.

May import: base, budget, transport.
"""
