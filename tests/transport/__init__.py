"""Tests of what the transport's rooms share."""
