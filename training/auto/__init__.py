"""`export: auto`: proposes candidates, tries them, and selects those worth keeping."""
