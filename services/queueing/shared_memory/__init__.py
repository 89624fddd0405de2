"""The queue between the processes of one server: records and tensors in memory that both map."""
