"""Open episodes, leases, joint episodes and evaluations."""
