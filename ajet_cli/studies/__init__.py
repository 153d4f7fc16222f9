"""Studies in the terminal and on a page: watching them, and steering them."""
