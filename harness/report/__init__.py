"""Everything at hand as a site, a ledger, notebooks and a regression check on metrics."""
