"""Commands for the move from another server: `capture`, `replay`, `serve --torchserve`."""
