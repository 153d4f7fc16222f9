"""Parts shared by engines that serve a model in separate processes."""
