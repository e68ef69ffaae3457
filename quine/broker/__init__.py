"""broker: one process for each user and set of credentials that alone has the keys, and infers for all agents.

May import: base, budget, tape, providers, transport.
"""
