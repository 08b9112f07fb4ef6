"""The report: a static site and a ledger made of committed tables, figures and whatever records are at hand. Runs no model."""
