"""client: the caller's end of a job: streams, signals and exit status of this process.

May import: transport, wire, carrier, node, rpc.
"""
