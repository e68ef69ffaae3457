"""Tests of `quine fs` and its verbs."""
