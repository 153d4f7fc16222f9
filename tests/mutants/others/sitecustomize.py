"""Plants a mutation in processes that a suite starts; in that of pytest, a plugin does."""

import sys

if "pytest" not in sys.orig_argv:
    from tests.mutants.planting import plant

    plant()
