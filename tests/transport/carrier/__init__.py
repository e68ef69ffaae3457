"""Tests of SSH below a link."""
