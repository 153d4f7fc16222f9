"""Conformance suites, a module for each kind of component, and what they are made of."""
