"""The exactness audit (``foretoken audit``): what is audited, how, against which wrong variants, and what was found.

``subjects`` and ``models`` list what is audited, ``run`` shares it out in parts, ``part`` works on one; ``greedy``,
``sampling`` and ``lossy`` check it, ``controls`` send deliberately wrong variants (``wrong``) through the same checks,
``report`` writes what was found, ``verdicts`` looks it up. ``of_run`` audits a single run.
"""
