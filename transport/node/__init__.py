"""node: the daemon of one user on one machine: its links, its hosts, the relays between them.

May import: transport, wire, carrier, job, launcher.
"""
