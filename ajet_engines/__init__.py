"""What engines share that serve a model by processes of their own."""
