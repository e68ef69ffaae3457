"""Tests of the documents against the program."""
