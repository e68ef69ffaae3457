"""Tests of agents on other machines."""
