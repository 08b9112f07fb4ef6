"""The exactness room: does every method keep its guarantee?

Statistics: a rule's output law, integrated over its uniforms (law), and goodness of fit of samples (fit).
An audit: its subjects (subjects), the ground that they share (ground), the checks and their findings (checks), deliberately
wrong variants that the checks must catch (controls), the run of all parts (run) and its document (document).
One run: the verdict on its method (run_verdict).
Any engine: outputs that were captured, plain and speculative (captured).
Plug-ins: a contract for each kind (contracts, contract_*), by the same checks on toy models (toy).
"""
