"""Commands that create projects."""
