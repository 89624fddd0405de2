"""Files on disks and in buckets."""
