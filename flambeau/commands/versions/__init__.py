"""Commands on many versions of a model: their history, and their retention."""
