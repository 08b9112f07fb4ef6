"""From an experiment to its records: prompts, methods built from their descriptions, comparisons in turns, benches."""
