"""Tests of the verbs, their messages and terminals."""
