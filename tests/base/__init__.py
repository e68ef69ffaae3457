"""Tests of the pieces that several rooms use."""
