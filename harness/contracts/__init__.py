"""What CONTRIBUTING.md asks of a task, drafter, rule, method or table, as checks that run on any of them.

A check is named by the property it holds something against; one that fails says how in one line.
"""
