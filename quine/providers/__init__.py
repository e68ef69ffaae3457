"""providers: the guests of the host loop, the choice of one, and the payment of inferences.

May import: base, budget, tape, transport.
"""
