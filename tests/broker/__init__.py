"""Tests of the broker: its gate, its payments, its inferences, and its processes."""
