"""Tests of detached jobs, ps, wait, kill, retry."""
