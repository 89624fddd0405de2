"""Commands on versions of a model: aliases, annotations, history, retention."""
