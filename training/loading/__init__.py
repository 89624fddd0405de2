"""How rows reach the network: read, checked, ordered, varied, and made into batches."""
