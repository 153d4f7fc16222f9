"""Conformance suites, one module per kind of component, and their helpers."""
