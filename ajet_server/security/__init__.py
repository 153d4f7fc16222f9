"""Tokens, tenants and their limits, visibility, and the audit log."""
