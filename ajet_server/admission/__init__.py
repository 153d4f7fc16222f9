"""Admission of claims and filling of batches."""
