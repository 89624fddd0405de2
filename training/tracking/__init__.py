"""Progress displays and metric trackers of a run."""
