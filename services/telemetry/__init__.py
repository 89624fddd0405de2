"""What a process tells about itself: metrics and logs."""
