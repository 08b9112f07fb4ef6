"""From records to numbers with intervals: acceptance, speed, match rates, quality, verdicts of stored audits. Runs no model."""
