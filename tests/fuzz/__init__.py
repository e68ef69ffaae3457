"""Tests of parsers, fed with broken recordings."""
