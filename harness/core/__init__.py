"""What is run and what is kept: experiments, records, their files, plug-ins, jobs, settings. Knows no model and no paper."""
