"""Hypothesis strategies for programs, and for variations of how they are run.

A program grows stage by stage; each stage is one of those that give a defined result on the stream
it stands behind (``model``). ``avoid`` leaves idioms out, by tag.
"""

from tests.programs.generate.run_variations import variations
from tests.programs.generate.whole_programs import STATES, TABLES, all_but, programs

__all__ = ["programs", "variations", "all_but", "STATES", "TABLES"]
