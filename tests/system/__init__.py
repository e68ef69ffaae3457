"""Tests of the whole program: broken links, killed processes, secrets, examples."""
