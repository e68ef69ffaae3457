"""Tests of jobs, launchers and processes."""
