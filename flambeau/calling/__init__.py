"""Parts of the client: connections, values of inputs, classes of outputs, and many rows."""
