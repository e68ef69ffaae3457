"""rpc: named requests between a job and its origin, with bodies and answers of any size.

May import: transport, wire, carrier, job, node.
"""
