"""Turn stored batches into training data."""
