"""What metrics loggers share."""
