"""Version 1 of them."""
