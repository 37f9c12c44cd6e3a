"""The folder as the package ``benchmarks`` for scripts that are run by their paths.

Python looks for modules in the folder of a script first, so that `python benchmarks/gate.py` finds `benchmarks.datasets` here, whatever the
current folder is.
"""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent)]
