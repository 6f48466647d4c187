"""LakeMQ's own code as a zip that Spark sends to workers which have everything but LakeMQ.

They need Python with pyarrow, numpy, lz4, cramjam and deltalake. What is compiled cannot be loaded from a zip: there
the definitions in Python do the work, many times slower. Installed on each host, it need not be sent.
"""

import zipfile
from pathlib import Path

import lakemq


def pack_code(directory: str) -> str:
    """Write the zip into a directory; its path."""
    here = Path(lakemq.__file__).parent
    target = Path(directory) / "lakemq.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as out:
        for package in (here, here.parent / "pyspark_lakemq"):
            for path in sorted(package.rglob("*.py")):
                out.write(path, path.relative_to(package.parent))
    return str(target)
