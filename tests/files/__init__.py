"""Tests of shared files."""
