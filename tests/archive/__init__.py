"""Tests of copies of tapes and results."""
