"""provenance: whose a file is, who else may have put it there, whether it came with a repository or is only in memory.

May import: nothing.
"""
