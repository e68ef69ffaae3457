"""files: the shared files of a tree of agents: one file system that spans machines, over many kinds of stores.

May import: base, budget, deploy, transport.
"""
