"""Tests of an agent as a process: its loop, tools, signals, shell."""
