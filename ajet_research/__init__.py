"""Automated research: a registered study goes in, a report that can be verified comes out.

A deterministic program, the leader, runs the study. It needs no language model. All state is in the
study's directory; the command ``ajet research run`` starts a study, resumes it, or reports that it
is finished. docs/research.md explains it.
"""
