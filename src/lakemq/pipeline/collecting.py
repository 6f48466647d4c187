"""The garbage collector in Spark's Python processes.

Spark collects after every task, and after every query in the processes that plan it; a collection walks over all that
was imported: for pyspark, pyarrow and numpy that is some hundred thousand objects, and took as long as reading 50 000
messages.
"""

import gc

_is_spared = False


def spare_imports() -> None:
    """What is there now stays, so no collection needs to look at it again; once in a process."""
    global _is_spared
    if not _is_spared:
        _is_spared = True
        gc.freeze()
