"""Commands that show or change the run of a running server."""
