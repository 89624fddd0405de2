"""The queue between processes: Redis streams, one for each priority of a lane."""
