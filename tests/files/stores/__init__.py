"""Tests of every kind of store behind one suite."""
