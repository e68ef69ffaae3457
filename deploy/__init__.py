"""deploy: puts this binary on hosts and opens the byte duplex to the node over there.

May import: there, transport, transport.wire, transport.carrier.
"""
