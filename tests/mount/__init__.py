"""Tests of the FUSE mount."""
