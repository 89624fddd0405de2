"""Kills every process under load; a ledger verifies that no request was lost."""
