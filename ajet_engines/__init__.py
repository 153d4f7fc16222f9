"""Parts shared by engines, and what checks the models and weights that they serve."""
