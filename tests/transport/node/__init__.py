"""Tests of the node and its peers."""
