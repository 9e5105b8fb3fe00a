"""Fake NVIDIA drivers: in Python for tests, and as a C library for programs. `gpudoctor.testing` is the public name."""
