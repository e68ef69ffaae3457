"""Tests of jobs, of their processes, and of the node's end of the launcher."""
