"""broker: the one process that has keys: it makes the inferences of all agents of a user, and pays from their ledgers.

May import: base, budget, tape, providers, transport.
"""
