"""Projects of plugins: rendered from a template, updated with it, checked before publishing."""
