"""Random programs, partitioned for random meshes and layouts, against what the global program computes.

`python -m spmd_compiler.tools.fuzz --seconds 60` runs; `check.failure(module)` is the judge.
"""
