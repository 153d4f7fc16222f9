"""Routes, limits on connections and bodies, and error responses."""
