"""Tests of limits of a tree, the ledger and prices."""
