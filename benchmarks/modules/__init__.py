"""Random StableHLO modules with random annotations, as text; the plain program says what they compute.

`programs` draws programs, `shardings` draws what to say of a value, `annotate` writes modules, `check` judges them.
"""
