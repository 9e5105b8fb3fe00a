"""driver.*: is the NVIDIA driver installed, of one version, and does it answer?"""
