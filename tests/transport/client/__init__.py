"""Tests of the client of a node."""
