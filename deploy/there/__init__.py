"""there: the parts of a deployment that run on the host; the installer runs there before anything else of ours does.

May import: transport.
"""
