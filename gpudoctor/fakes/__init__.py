"""Fake NVIDIA drivers: in Python for tests, and as a C library for programs. The public name is `gpudoctor.testing`."""
