"""Tests of the launcher: starts, spares, folders, the table and its guard."""
