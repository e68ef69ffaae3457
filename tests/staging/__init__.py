"""Tests of files that are sent with a job and brought back."""
