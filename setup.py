"""The one thing pyproject.toml cannot say: the compiled twin of the hot loops is optional.

Without a compiler the package installs all the same and runs on the Python definition in record.py.
"""

from setuptools import Extension, setup

setup(ext_modules=[Extension("lakemq._hot", ["src/lakemq/_hot.c"], extra_compile_args=["-O2"], optional=True)])
