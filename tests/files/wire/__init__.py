"""Tests of the file service of a job, over a link."""
