"""Helpers that several test files share. A test file imports from here, never from another test file."""
