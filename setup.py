"""The one thing pyproject.toml cannot say: what is compiled is optional.

Without a compiler the package installs all the same: it runs on the Python definitions of the hot loops, and serves
sockets through the event loop's own protocol. With LAKEMQ_PURE set nothing is compiled, for a wheel that fits every
Python and every system (docs/decisions/0036).
"""

import os

from setuptools import Extension, setup

NAMES = () if os.environ.get("LAKEMQ_PURE") else ("_hot", "_poll", "_sync", "_columns")

setup(
    ext_modules=[
        Extension(
            f"lakemq.{name}",
            [f"src/lakemq/{name}.c"],
            depends=["src/lakemq/_message.h"],
            extra_compile_args=["-O2"],
            optional=True,
        )
        for name in NAMES
    ]
)
