"""Tests of tapes: writing, reading, masks, replay, verification."""
