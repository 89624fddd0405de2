"""The layer between gateway and inference: records, the queue, the directory."""
