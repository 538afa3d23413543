"""What the papers prove, as functions of plain numbers; estimators of those numbers; advice made from both.

`area`, `fedbuff`, `persafl` (FedAsync too), `fedast` and `defedavg` hold one paper each, `ringmaster` what is known for
fixed times; `times` and `limits` hold
closed forms that follow from the timing model. Every right-hand side is a `Bound`, a sum of named terms. `advise`
compares the settings of a run with those of its algorithm's theorem.
"""

from offbeat.theory.compare import Choice, Comparison, advise

__all__ = ["Choice", "Comparison", "advise"]
