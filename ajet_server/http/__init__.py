"""Routes, limits of connections and bodies, and errors as answers."""
