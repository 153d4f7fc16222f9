"""Alerts: commands and webhooks that are called when a finding begins."""
