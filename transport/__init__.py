"""transport: moves bytes, starts processes and carries named requests between nodes; knows nothing of agents.

May import: nothing of this project.
"""
