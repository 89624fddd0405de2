"""What lies between gateway and inference: the records that move, the queue, the directory."""
