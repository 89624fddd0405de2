"""Everything that can die, killed under load, and a ledger that proves that nothing was lost."""
