"""carrier: pipes, sockets and ssh channels that carry the bytes of a session, and the handshake on them.

May import: transport, wire, provenance.
"""
