"""What the papers prove, as functions of plain numbers; estimators of those numbers; advice made from both.

`area`, `fedbuff`, `persafl` (FedAsync too), `fedast` and `defedavg` hold one paper each; `times` and `limits` hold
closed forms that follow from the timing model. Every right-hand side is a `Bound`, a sum of named terms.
"""
