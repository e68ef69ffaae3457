"""Tests of requests and streams of jobs."""
