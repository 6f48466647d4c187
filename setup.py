"""The one thing pyproject.toml cannot say: what is compiled is optional.

Without a compiler the package installs all the same: it runs on the Python definitions of the hot loops, and serves
sockets through the event loop's own protocol.
"""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            f"lakemq.{name}",
            [f"src/lakemq/{name}.c"],
            depends=["src/lakemq/_message.h"],
            extra_compile_args=["-O2"],
            optional=True,
        )
        for name in ("_hot", "_poll", "_sync", "_columns")
    ]
)
