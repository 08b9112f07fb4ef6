"""Which method and gamma to use: measured in minutes, predicted for every gamma, checked by a run, and said in words."""
