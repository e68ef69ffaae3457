"""client: the caller's end of a job: streams, signals and exit status of this process; or of many jobs (`batch.py`).

May import: transport, wire, carrier, node, rpc.
"""
