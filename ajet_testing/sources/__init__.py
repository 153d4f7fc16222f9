"""Tests of task sources."""
