"""The planner's behaviour, frozen: everything that it answers is recorded at one commit and compared with another.

Usage::

    python -m benchmarks.freeze record DIR [--tree PATH]              # about 10 minutes of CPU in two processes
    python -m benchmarks.freeze compare A B [--allow FILE]            # exit code 1 if something differs that is not allowed

A record holds JSON answers of all commands and spaces, exit codes and messages of bad input, exports file by file, the names of the
Python interface, and the parts of the costs of 5,000 random plans. Records are made from a tree at a commit and never committed.

A file of allowed differences is a YAML list; a path is as ``compare`` prints it, and ``*`` in it stands for anything::

    - path: "answers/*.stdout.plans.*.gpu_hours"
      reason: GPU-hours per step are gone; gpu_hours_per_million_tokens says the same.

``expected.yaml`` beside this file has what differs on purpose from the freeze.
"""

# The commit that later ones are compared with.
FREEZE_COMMIT = "130de64755881f1e48f312c15367036180d90164"
